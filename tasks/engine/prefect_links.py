"""What the Prefect UI shows of a run beside its tasks, and how a server is asked whose answer is not needed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy.addresses import public_address

_log = logging.getLogger(__name__)
_TOLD = "Parameters, metrics and artifacts of this run, and of its tasks below it."


@contextmanager
def asked_once() -> Iterator[None]:
    """Within it, Prefect's client asks a server that is away once; by itself it asks for a minute, and waits."""
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        yield


def link_from_prefect(uri: str, experiment: str, run_id: str) -> None:
    """Show the MLflow run on the page of the Prefect flow run; a server that does not answer costs only that."""
    from prefect.artifacts import create_link_artifact, create_markdown_artifact

    uri = public_address(uri)
    with _shown(f"MLflow run {run_id}"):
        if uri.startswith("http"):
            url = f"{uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"
            create_link_artifact(link=url, link_text=f"MLflow run {run_id}", key="mlflow-run", description=_TOLD)
        else:
            text = f"MLflow run `{run_id}`; to look at it: `mlflow ui --backend-store-uri {uri}`"
            create_markdown_artifact(markdown=text, key="mlflow-run", description=_TOLD)


def show_statement(file: Path, *, in_short: str) -> None:
    """Show an exported privacy statement on the page of the Prefect flow run; a server that is away costs only that.

    Args:
        file: of the statement in words, which is public, as all that lies beside it.
        in_short: what is promised, in a line.
    """
    from prefect.artifacts import create_markdown_artifact

    with _shown(f"the statement {file}"):
        text = f"Exported to `{file.parent}`, with this statement:\n\n{file.read_text(encoding='utf-8')}"
        create_markdown_artifact(markdown=text, key="privacy-statement", description=in_short)


@contextmanager
def _shown(what: str) -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        _log.warning("%s is not shown in Prefect: %s", what, type(error).__name__)

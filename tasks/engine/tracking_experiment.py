"""MLflow's experiment that holds all runs: found under whatever name it was given, and told where it was deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from understudy.addresses import public_address
from understudy.errors import InputError

if TYPE_CHECKING:
    from mlflow.entities import Experiment
    from mlflow.tracking import MlflowClient

EXPERIMENT: Final = "understudy"
OWN: Final = "understudy.runs"  # tag of that experiment, which keeps it under another name


def made_experiment(client: MlflowClient, uri: str, *, files: str | None) -> str:
    """The id of the experiment, which is made where it is missing.

    Args:
        client: of the store.
        uri: of the store, for messages.
        files: where MLflow would keep files of a new one; None leaves that to the store.

    Raises:
        InputError: it was deleted.
    """
    experiment = found_experiment(client, uri)
    if experiment is None:
        return str(client.create_experiment(EXPERIMENT, files, {OWN: "true"}))
    if OWN not in experiment.tags:
        client.set_experiment_tag(experiment.experiment_id, OWN, "true")
    return str(experiment.experiment_id)


def found_experiment(client: MlflowClient, uri: str) -> Experiment | None:
    """The experiment, if it was made.

    Raises:
        InputError: it was deleted.
    """
    found = client.get_experiment_by_name(EXPERIMENT) or _renamed(client)
    if found is not None and found.lifecycle_stage == "deleted":
        raise InputError(f"tracking: {_deleted(uri, found.experiment_id)}")
    return found


def what_was_deleted(client: MlflowClient, uri: str, *, experiment: str, run: str | None) -> str:
    """Experiment or run, and what to do about it; empty where none of them was deleted, or nobody answers."""
    from mlflow.exceptions import MlflowException

    try:
        if (stage := _stage(lambda: client.get_experiment(experiment))) != "active":
            return _deleted(uri, experiment, for_good=stage is None)
        if run and (stage := _stage(lambda: client.get_run(run).info)) != "active":
            what = f"expected the MLflow run {run}, found it deleted"
            restore = f"restore it with `{_mlflow(uri)} runs restore --run-id {run}`"
            return f"{what} for good: another one takes its place" if stage is None else f"{what}: {restore}"
    except MlflowException:
        pass
    return ""


def _renamed(client: MlflowClient) -> Experiment | None:
    """The experiment under another name that somebody gave it; of several, one that was not deleted."""
    from mlflow.entities import ViewType

    found = client.search_experiments(view_type=ViewType.ALL, filter_string=f"tags.`{OWN}` = 'true'")
    return min(found, key=lambda experiment: experiment.lifecycle_stage == "deleted", default=None)


def _deleted(uri: str, experiment: str, *, for_good: bool = False) -> str:
    if for_good:
        return f"expected the MLflow experiment {experiment}, found it deleted for good: another one takes its place"
    return (
        f"expected the MLflow experiment {EXPERIMENT!r}, found it deleted: restore it with `{_mlflow(uri)} experiments "
        f"restore --experiment-id {experiment}`, or set another UNDERSTUDY_MLFLOW_URI"
    )


def _mlflow(uri: str) -> str:
    """MLflow's command, which looks into the working directory unless it is told of a store."""
    return f"MLFLOW_TRACKING_URI={public_address(uri)} mlflow"


def _stage(find: Callable[[], Any]) -> str | None:
    """Of a run or an experiment: "active", "deleted", or None where it was deleted for good."""
    from mlflow.exceptions import MlflowException

    try:
        return str(find().lifecycle_stage)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None

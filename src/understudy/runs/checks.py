"""What a run needs around it, looked at before anything is charged; `understudy doctor` looks at the same list.

Each check is a plain function that does the thing on a small scale - writes a file, asks a server, draws two texts -
and returns in words what it found, or raises an `InputError` that says what was expected and how to fix it. Nothing
private is written, and what a check makes it takes away again. No check waits longer than `PATIENCE_S` for an answer,
but that of a Prefect server.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from understudy.addresses import SQLITE, lock_of_file
from understudy.artifacts import access
from understudy.errors import InputError
from understudy.hardware import check_products
from understudy.locks import holder_of
from understudy.runs.folders import probe_folder, try_folder
from understudy.settings import device_locks, prefect_setting, settings

if TYPE_CHECKING:
    import httpx

    from understudy.models.loading import LoadedModel

R = TypeVar("R")
Check = Callable[[], str]

PATIENCE_S = 15.0
# A Prefect server that many runs ask at once is slow to answer; its own client waits as long.
BUSY_S = 60.0
_BUSY = (429, 502, 503)  # what it answers then, and its client asks again after
NEW_TOKENS = 4
# What MLflow keeps its records in, besides SQLite and its own server.
_DATABASES = ("postgresql", "mysql", "mssql", "sqlite")
# Digests of base models that have generated in this process: the command line and the flow both look.
_GENERATED: set[str] = set()


def checks(*, out: Path | None, base: Callable[[], LoadedModel] | None) -> dict[str, Check]:
    """The one list, in the order in which a run meets them; the server zone has no private store.

    Args:
        out: the folder of a run's results; None leaves that check out.
        base: gives the base model; None leaves its check out.
    """
    return {
        **({"out": lambda: try_folder(out)} if out is not None else {}),
        **({"private store": private_store} if settings().zone != "server" else {}),
        "exchange store": exchange_store,
        "tracking": tracking,
        "prefect": prefect_server,
        "gpu": gpu,
        **({"generation": lambda: generation(base())} if base is not None else {}),
    }


def before_charge(out: Path, base: LoadedModel | None) -> None:
    """Run every check for a run that is about to be charged, or that goes on after its charge was released.

    Args:
        out: the folder of its results.
        base: the base model; None where nothing is left to charge, so that it need not be loaded.

    Raises:
        InputError: of the first check that fails.
    """
    for look in checks(out=out, base=None if base is None else lambda: base).values():
        look()


def private_store() -> str:
    """The private store can be written."""
    access.private_store().check_writable()
    return "writable, mode 0700"


def exchange_store() -> str:
    """The exchange store answers and can be written, wherever it is."""
    store = access.exchange_store()
    _within(PATIENCE_S, store.check_writable, f"UNDERSTUDY_EXCHANGE={_public(store.root)}: the store")
    return _public(store.root)


def tracking() -> str:
    """MLflow's place can be written: a SQLite file, another database, or a server. Each zone looks at its own."""
    now = settings()
    server = {now.server_mlflow_uri: "UNDERSTUDY_SERVER_MLFLOW_URI"} if now.server_mlflow_uri else {}
    client = {now.mlflow_uri: "UNDERSTUDY_MLFLOW_URI"}
    # As tasks/engine/tracking_log.py chooses: the server zone takes the client's place where it has none of its own.
    places = {"client": client, "server": server or client, "both": client | server}[now.zone]
    for uri, name in places.items():
        _within(PATIENCE_S, partial(_tracking_at, uri, name), f"{name}={_public(uri)}: MLflow")
    return ", ".join(map(_public, places))


def prefect_server() -> str:
    """The Prefect server answers, where one is configured."""
    url = prefect_setting("PREFECT_API_URL")
    if url is None:
        return "no server: a temporary one is started for each run"
    answer = _ask_prefect(url, "health")
    if answer.status_code in (401, 403) or answer.status_code >= 500:
        raise InputError(
            f"PREFECT_API_URL={_public(url)}: expected a Prefect server that lets us in, found status "
            f"{answer.status_code}; correct PREFECT_API_KEY or PREFECT_API_AUTH_STRING, or fix the server"
        )
    return f"server {_public(url)}"


def gpu() -> str:
    """On CUDA: the devices compute, and a task can get one: from the server's limit `gpu`, or by a lock of its own.

    On every device float32 products are of whole numbers.
    """
    check_products()
    now = settings()
    if now.device_type != "cuda":
        return "not used: tasks run on the CPU"
    url = prefect_setting("PREFECT_API_URL")
    if url is not None:
        said = _gpu_limit(url)
    else:
        held = [holder_of(path) for path in device_locks()]
        said = f"UNDERSTUDY_DEVICES={now.devices}, {sum(pid is None for pid in held)} of {len(held)} free"
    _compute_on(now.device_indices if url is None else (0,))
    return said


def generation(base: LoadedModel) -> str:
    """Two texts of a few tokens from the base model, on the CPU: a GPU may be another run's at this moment."""
    if base.digest not in _GENERATED:
        try:
            _draw_two(base)
        except InputError:
            raise
        # Whatever a foreign architecture raises.
        except Exception as error:
            raise InputError(
                f"model={base.name!r}: expected a model that can generate, found {type(error).__name__} when two texts "
                f"were drawn: {' '.join(str(error).split())[:200]}; fix its config.json or choose another model"
            ) from error
        _GENERATED.add(base.digest)
    return f"{base.name} draws texts"


def _draw_two(base: LoadedModel) -> None:
    import torch

    from understudy.generation.config import SamplingConfig
    from understudy.generation.prompts import special_ids
    from understudy.generation.sampling import Step, sample

    def finite(_: Any, step: Step) -> torch.Tensor:
        if not bool(torch.isfinite(step.logits).all()):
            raise InputError(
                f"model={base.name!r}: expected finite scores of the next token, found others when two texts were "
                "drawn; choose another model"
            )
        return step.logits

    bos, eos, pad = special_ids(base.tokenizer)
    word = (base.tokenizer.encode(" a", add_special_tokens=False) or [eos])[0]
    ids, mask = torch.tensor([[pad, bos], [bos, word]], device="cpu"), torch.tensor([[0, 1], [1, 1]], device="cpu")
    drawn = sample(
        base.model,
        (ids, mask),
        config=SamplingConfig(max_new_tokens=NEW_TOKENS),
        seeds=(0, 1),
        eos=eos,
        step_hook=finite,
    )
    for tokens in drawn:
        base.tokenizer.decode(tokens)


def _tracking_at(uri: str, name: str) -> None:
    kind = uri.partition(":")[0].partition("+")[0]
    if uri.startswith(("http://", "https://")):
        _tracking_server(uri, name)
    elif uri.startswith(SQLITE):
        _tracking_file(Path(uri.removeprefix(SQLITE)), name)
    elif "://" in uri and kind in _DATABASES:
        _tracking_database(uri, name)
    elif kind not in {"databricks", *(point.name for point in entry_points(group="mlflow.tracking_store"))}:
        raise InputError(
            f"{name}={_public(uri)}: expected {SQLITE}FILE, http(s)://SERVER or the URL of a database "
            f"({', '.join(_DATABASES[:-1])}), found {kind if '://' in uri else 'a path'!r}; name one of these"
        )


def _tracking_server(uri: str, name: str) -> None:
    """The server answers with the credentials that MLflow's client would take from the environment.

    Without any there, a refusal is an answer too: the client has other ways to find some, and opens the run's record
    before anything is charged.
    """
    import httpx

    user, password, token = (os.environ.get(f"MLFLOW_TRACKING_{part}") for part in ("USERNAME", "PASSWORD", "TOKEN"))
    login = httpx.BasicAuth(user, password) if user and password else None
    headers = {"Authorization": f"Bearer {token}"} if token and login is None else {}
    try:
        answer = httpx.get(f"{uri.rstrip('/')}/health", headers=headers, auth=login, timeout=PATIENCE_S / 3)
        if answer.status_code in (401, 403) and login is None and not headers:
            return
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _no_tracking(name, _public(uri), "an MLflow server that answers", _said(error)) from None


def _tracking_file(path: Path, name: str) -> None:
    """The file takes a write, which is rolled back, and its lock a holder; where there is none yet, its folder does."""
    try:
        if not path.exists():
            probe_folder(path.parent)
            return
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=PATIENCE_S / 3)
        try:
            connection.execute("begin immediate")
            # A file that may only be read takes the beginning, and first refuses the write.
            (version,) = connection.execute("pragma user_version").fetchone()
            connection.execute(f"pragma user_version = {int(version)}")
            connection.rollback()
        finally:
            connection.close()
    except (OSError, sqlite3.Error) as error:
        raise _no_tracking(name, f"sqlite:///{path}", "a database that MLflow can write", _said(error)) from None
    lock = lock_of_file(path)
    if not os.access(lock if lock.exists() else lock.parent, os.W_OK):
        raise _no_tracking(name, f"sqlite:///{path}", "a database that MLflow can write", f"{lock} is not writable")


def _tracking_database(uri: str, name: str) -> None:
    import sqlalchemy

    try:
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("select 1"))
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        raise _no_tracking(name, _public(uri), "a database that answers", type(error).__name__) from None


def _no_tracking(name: str, place: str, expected: str, found: str) -> InputError:
    return InputError(f"{name}={place}: expected {expected}, found: {found}; fix or start it, or correct {name}")


def _ask_prefect(url: str, path: str) -> httpx.Response:
    import httpx

    key, auth = prefect_setting("PREFECT_API_KEY"), prefect_setting("PREFECT_API_AUTH_STRING")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    login = httpx.BasicAuth(*auth.split(":", 1)) if auth and ":" in auth else None
    timeout, until = httpx.Timeout(PATIENCE_S / 3, read=BUSY_S), time.monotonic() + BUSY_S
    try:
        while True:
            answer = httpx.get(f"{url.rstrip('/')}/{path}", headers=headers, auth=login, timeout=timeout)
            if answer.status_code not in _BUSY or time.monotonic() > until:
                return answer
            time.sleep(1.0)
    except httpx.ReadTimeout:
        raise InputError(
            f"PREFECT_API_URL={_public(url)}: expected a Prefect server that answers, found none within {BUSY_S:g} s "
            "(timed out); let fewer runs start at once (prefect work-pool set-concurrency-limit client 2), or start "
            "the server anew, and run again"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(
            f"PREFECT_API_URL={_public(url)}: expected a Prefect server that answers, found {_said(error)}; start it "
            "(prefect server start), or unset PREFECT_API_URL to run without one"
        ) from None


def _gpu_limit(url: str) -> str:
    answer = _ask_prefect(url, "v2/concurrency_limits/gpu")
    if answer.status_code not in (200, 404):
        raise InputError(
            f"expected the Prefect server {_public(url)} to tell of its concurrency limit 'gpu', found status "
            f"{answer.status_code}; see to the server and to PREFECT_API_KEY, and run again"
        )
    limit = answer.json() if answer.status_code == 200 else {}
    if limit.get("limit", 0) < 1 or not limit.get("active", False):
        command = "gcl create gpu --limit 1" if answer.status_code == 404 else "gcl update gpu --limit 1 --enable"
        raise InputError(
            f"expected the concurrency limit 'gpu' on the Prefect server {_public(url)}, found "
            f"{limit or 'none'}; make it there: "
            f"PREFECT_API_URL={_public(url)} prefect {command}"
        )
    return f"concurrency limit gpu of {_public(url)}: {limit['limit']}"


def _compute_on(indices: tuple[int, ...]) -> None:
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if max(indices) >= found:
        raise InputError(
            f"expected CUDA device {max(indices)}, torch finds {found}; set UNDERSTUDY_DEVICE=cpu or name other "
            "UNDERSTUDY_DEVICES"
        )
    for index in indices:
        try:
            torch.ones(2, device=f"cuda:{index}").sum().item()
        except RuntimeError as error:
            raise InputError(
                f"CUDA device {index}: expected it to compute, found: {_said(error)}; free it, or set "
                "UNDERSTUDY_DEVICE=cpu"
            ) from None


def _within(seconds: float, call: Callable[[], R], what: str) -> R:
    """What `call` returns or raises, if that comes in time; a call that hangs is left behind in a thread of its own."""
    ended: list[tuple[R | None, Exception | None]] = []

    def run() -> None:
        try:
            ended.append((call(), None))
        except Exception as error:
            ended.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not ended:
        raise InputError(f"{what} gave no answer within {seconds:g} seconds; fix it or name another")
    result, error = ended[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def _public(url: str) -> str:
    """A URL without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else url


def _said(error: Exception) -> str:
    """Without the address that was asked, whose user and password httpx would repeat."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return f"status {error.response.status_code} {error.response.reason_phrase}".strip()
    if isinstance(error, httpx.InvalidURL):
        return "an address that is none"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split())[:200] or type(error).__name__

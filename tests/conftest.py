"""What every test shares: a home of its own, no telemetry, and one Prefect server per session if asked for."""

import fcntl
import gc
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path

import pytest
from confinement import Confinement, files_of, told_of
from homes import bare_environment, fix_root_key, home_environment

# Before anything imports Prefect, MLflow, torch or datasets.
for _name, _value in {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    # As the package gives it: Prefect gives a temporary server 20 seconds, and on a busy machine it imports for longer.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    # Servers that tests start and ask nothing about schedules, late runs or events.
    **{
        f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false"
        for service in ("SCHEDULER", "LATE_RUNS", "FOREMAN", "PAUSE_EXPIRATIONS", "TRIGGERS", "EVENT_PERSISTER")
    },
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Small tensors: a second thread only waits, for very long where the cores are busy. numpy reads it too.
    "OMP_NUM_THREADS": "1",
    # Where a test asks for two, they sleep while they wait, as the package has them do where it is imported first.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Each client of Prefect reads a bundle of certificates, also to ask a server of this machine. One is read faster.
    "SSL_CERT_FILE": str(Path(__file__).with_name("certificate.pem")),
    # What Python runs first in every process that a test starts.
    "PYTHONPATH": str(Path(__file__).with_name("for_children")),
}.items():
    os.environ[_name] = _value

# Imports make half a million objects that stay; garbage is looked for once tests are collected.
gc.disable()

_confinement = Confinement()
_before = pytest.StashKey[frozenset[str]]()
_server = pytest.StashKey["_Server"]()
_UNIT = Path(__file__).with_name("unit")


def pytest_configure() -> None:
    """Hypothesis finds a property broken by an example, not by how long a busy machine takes for it.

    Its examples are the same in every run; those of the profile `exploring`, which `make prove` takes, are new ones.
    """
    from hypothesis import HealthCheck, settings

    timeless = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("tests", timeless, derandomize=True)
    settings.register_profile("exploring", timeless, derandomize=False)
    settings.load_profile("tests")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what the checkout holds; with xdist once, in the process that starts the others."""
    if not hasattr(session.config, "workerinput"):
        session.config.stash[_before] = files_of()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of unit tests from the last to the first: short ones then come last, and no process waits for another."""
    unit = [item for item in items if _UNIT in item.path.parents]
    others = [item for item in items if _UNIT not in item.path.parents]
    items[:] = [*others, *sorted(unit, key=lambda item: item.path, reverse=True)]


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the imports made is there to stay: without this, each collection of garbage looks through half a million."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail when the tests have left a file in the checkout, or taken one."""
    # Pytest looks for garbage five times before it ends.
    gc.collect()
    gc.freeze()
    if _before not in session.config.stash:
        return
    if told := told_of(session.config.stash[_before], files_of()):
        report = session.config.pluginmanager.get_plugin("terminalreporter")
        report.write_line(f"ERROR: {told}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def confined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test runs in its temporary folder and may not write into the checkout."""
    monkeypatch.chdir(tmp_path)
    _confinement.arm()
    yield
    _confinement.disarm()


@pytest.fixture(autouse=True)
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An isolated home, exchange store and MLflow database, one thread, the CPU and float32, for each test.

    Where flows run, the MLflow database has its tables already, which a session makes once, the sentence encoder is a
    small one, and figures are not drawn.
    """
    for name in [name for name in os.environ if name.startswith("UNDERSTUDY_")]:
        monkeypatch.delenv(name)
    root = tmp_path / "understudy-home"
    for name, value in home_environment(root).items():
        monkeypatch.setenv(name, value)
    if "accelerate.utils.memory" in sys.modules:
        # It collects garbage after every training, which takes longer than the training.
        monkeypatch.setattr("accelerate.utils.memory.clear_device_cache", lambda **_: None)
    if "prefect_server" in request.fixturenames:
        root.mkdir(mode=0o700)
        shutil.copy(request.getfixturevalue("empty_tracking_store"), root / "mlflow.db")
        for name in ("one_encoder", "one_load_of_a_model", "one_way_to_connect"):
            request.getfixturevalue(name)
        (root / "calibrations").symlink_to(request.getfixturevalue("calibrations"))
        if "real_encoder" not in request.fixturenames:
            from quick_encoder import take_small

            take_small(monkeypatch, request.getfixturevalue("small_encoder"))
        from tests_support import without_drawing

        without_drawing(monkeypatch)
    return root


@pytest.fixture
def fixed_root_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is held out, and how an audit's coins fall, is no matter of chance: see `fix_root_key`."""
    fix_root_key(monkeypatch)


@pytest.fixture(autouse=True)
def quick_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk, unless a test asks for `real_disk`: tests kill processes, and never the machine."""
    if "real_disk" not in request.fixturenames:
        monkeypatch.setattr(os, "fsync", lambda _: None)
        if "understudy.privacy.ledger.database" in sys.modules:
            monkeypatch.setattr("understudy.privacy.ledger.database._SYNCHRONOUS", "OFF")


@pytest.fixture(autouse=True)
def seeded_generators() -> None:
    """Global random numbers start alike in each test: what they give does not depend on the tests before it."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        # `torch.manual_seed` would also remember, with its stack, a call for GPUs that are not there.
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture
def real_disk() -> None:
    """What is written is brought to the disk, as it is for users."""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes that `make test` starts (`TESTS_SHARED`), else of those of this session."""
    base = tmp_path_factory.getbasetemp()
    return Path(os.environ.get("TESTS_SHARED") or (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base))


def _made_once(folder: Path, make: Callable[[], None]) -> Path:
    """A folder that the first process that wants it fills, while the others wait."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make()
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def empty_prefect_database(shared: Path) -> Path:
    """A Prefect database with its tables: its migrations take longer than all else that a server does to start.

    Made once for all processes; each server gets a copy.
    """
    folder = shared / "empty-prefect"

    def make() -> None:
        url = f"sqlite+aiosqlite:///{folder / 'prefect.db'}"
        environment = bare_environment() | {"PREFECT_API_DATABASE_CONNECTION_URL": url, "PREFECT_HOME": str(folder)}
        command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    return _made_once(folder, make) / "prefect.db"


@pytest.fixture(scope="session")
def prefect_server(
    request: pytest.FixtureRequest, empty_prefect_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """One temporary Prefect server for the whole session; ask for it in tests that run flows.

    Processes of tests do not share one: with SQLite it stood still for a minute now and then.
    """

    from prefect.logging.configuration import setup_logging

    # The first time it closes every handler, and absl's then closes the stream that pytest reads, if a test reads
    # another one at that moment.
    setup_logging()

    def start() -> AbstractContextManager[None]:
        from prefect_servers import temporary_server

        return temporary_server(tmp_path_factory.mktemp("prefect-server"), empty_prefect_database)

    server = request.session.stash[_server] = _Server(start)
    server.start()
    yield
    server.end()


class _Server:
    """A server that is started anew where it has ended: it works for nobody while there is nothing to do."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make
        self._running: ExitStack | None = None

    def start(self) -> None:
        if self._running is None:
            running = ExitStack()
            running.enter_context(self._make())
            self._running = running

    def end(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The unit tests come last, and need no server."""
    server = item.session.stash.get(_server, None)
    if server is not None and "prefect_server" in getattr(item, "fixturenames", ()):
        server.start()
    elif server is not None and _UNIT in item.path.parents:
        server.end()


@pytest.fixture(scope="session")
def one_encoder() -> Iterator[None]:
    """A sentence encoder is read from the disk once in a session, and encodes the same texts in one call once."""
    from quick_encoder import read_once

    with pytest.MonkeyPatch.context() as patch:
        read_once(patch)
        yield


@pytest.fixture(scope="session")
def small_encoder(shared: Path) -> Path:
    """The sentence encoder of flows, made once for all processes of tests."""
    from quick_encoder import make_small

    folder = shared / "small-encoder"
    return _made_once(folder, lambda: make_small(folder / "model")) / "model"


@pytest.fixture(scope="session")
def shallow_models(shared: Path) -> Path:
    """The shipped models with one layer each, made once for all processes of tests."""
    from quick_models import make_shallow

    folder = shared / "shallow-models"
    return _made_once(folder, lambda: make_shallow(folder / "models")) / "models"


@pytest.fixture
def real_encoder() -> None:
    """Flows read texts by the shipped sentence encoder, as the processes do that a test starts."""


@pytest.fixture(scope="session")
def one_load_of_a_model() -> Iterator[None]:
    """A flow loads its base model about ten times; that is for its memory, and the files stay the same."""
    from loaded_once import loaded_once

    with pytest.MonkeyPatch.context() as patch:
        loaded_once(patch)
        yield


@pytest.fixture(scope="session")
def one_way_to_connect() -> Iterator[None]:
    """Databases of MLflow that are alike are connected to alike."""
    from quick_tracking import quick_tracking

    with pytest.MonkeyPatch.context() as patch:
        quick_tracking(patch)
        yield


@pytest.fixture(scope="session")
def calibrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise calibrations, which are public and belong to no home: a process makes each of them once.

    Not shared with other processes: a replay looks for what comes into this folder.
    """
    return tmp_path_factory.mktemp("calibrations")


@pytest.fixture(scope="session")
def empty_tracking_store(shared: Path) -> Path:
    """An MLflow database with its tables and the experiment, made once: that takes seconds.

    Its copies write ahead: a commit waits for the disk once instead of three times, and a run commits a hundred times.
    """
    path = shared / "empty-mlflow" / "mlflow.db"

    def make() -> None:
        from understudy.tasks.engine import tracking_log

        tracking_log.connect(f"sqlite:///{path}").client._tracking_client.store.engine.dispose()
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("pragma journal_mode = wal").fetchone() == ("wal",)

    _made_once(path.parent, make)
    return path

"""A small private table, a random base model, the request that every flow test runs, and what they all look at."""

import contextlib
import functools
import io
import re
import shutil
import sqlite3
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from homes import home_environment
from installed_methods import install_into
from needles import found_in
from tests_support import SMALL, write_random_model

from understudy.runs.request import Budget, RunRequest

# A run of gradient matching of a few seconds on the random model, with no text filtered out.
SMALL_MATCHING = (
    "target.sketch_dimension=32",
    "max_length=24",
    "length=6",
    "matching.rounds=3",
    "matching.inner_steps=2",
    "matching.swap_sweeps=1",
    "matching.shard_size=16",
    "matching.batch_size=8",
    "projection.k=20",
    "verbalizer.words=names",
    'verbalizer.template=" It was"',
    "filter.label_check=false",
    "filter.balance=false",
)


@pytest.fixture(scope="session")
def random_model_folder(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("model") / "random")


@pytest.fixture(scope="session")
def wide_model_folder(tmp_path_factory):
    """A random model with room for pairs in their template."""
    return write_random_model(tmp_path_factory.mktemp("model") / "wide", positions=128)


@pytest.fixture(scope="session")
def private_pairs():
    """Pairs with words that occur nowhere else."""
    asked = [f"patient zq{i}x asks doctor vw{i * 7}k on ward {i % 9} about the ailment number {i}" for i in range(40)]
    answered = [f"tell zq{i}x to rest for {i} days and to call ward {i % 9} if vw{i * 7}k is away" for i in range(40)]
    return pa.table({"instruction": asked, "response": answered})


@pytest.fixture(scope="session")
def small_matching():
    return SMALL_MATCHING


@pytest.fixture(scope="module")
def small_measures():
    """Gradient matching is measured with target models that are tuned for a step: their worth is measured elsewhere."""
    from understudy.flows import gradient_matching

    sizes = {"steps": 1, "most_models": 1, "replicates": 100, "test_rows": 4, "real_rows": 4, "gradient_rows": 4}
    with pytest.MonkeyPatch.context() as patch:
        small = functools.partial(gradient_matching.MatchingEvaluationConfig, **sizes)
        patch.setattr(gradient_matching, "MatchingEvaluationConfig", small)
        yield


@pytest.fixture(scope="session")
def private_rows():
    """Rows with words that occur nowhere else, so that a leak is a leak."""
    texts = [
        f"patient zq{i}x met doctor vw{i * 7}k on ward {i % 9} about the {'dreadful' if i % 2 else 'lovely'} ailment "
        f"number {i} and was told to rest"
        for i in range(60)
    ]
    return pa.table({"text": texts, "label": ["bad" if i % 2 else "good" for i in range(60)]})


@pytest.fixture
def data(tmp_path, private_rows):
    path = tmp_path / "rows.parquet"
    pq.write_table(private_rows, path)
    return path


@pytest.fixture
def request_of(tmp_path, data, random_model_folder):
    """Make a request with some fields changed."""

    def make(**given) -> RunRequest:
        fields = {
            "data": str(data),
            "source": "ward",
            "out": str(tmp_path / "out"),
            "epsilon": 3.0,
            "budget": Budget(epsilon=8, delta=0.01),
            "model": str(random_model_folder),
            "label_names": {"bad": "bad", "good": "good"},
            "samples": 12,
            "overrides": SMALL,
        }
        return RunRequest.model_validate(fields | given)

    return make


@pytest.fixture(scope="session")
def in_home(empty_tracking_store):
    """A context with a home of its own, for what outlives one test or moves between homes."""

    @contextlib.contextmanager
    def enter(root: Path):
        root.mkdir(mode=0o700, exist_ok=True)
        if not (root / "mlflow.db").exists():
            shutil.copy(empty_tracking_store, root / "mlflow.db")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in home_environment(root).items():
                patch.setenv(name, value)
            yield root

    return enter


@pytest.fixture(scope="session")
def call():
    """Run the command line in this process; gives (exit code, what it said)."""
    from understudy.flows import cli

    def run(*words: object) -> tuple[int, str]:
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["understudy", *map(str, words)])
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                try:
                    cli.main()
                    code = 0
                except SystemExit as stop:
                    code = int(stop.code or 0)
        return code, said.getvalue()

    return run


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The folder of an installed distribution with two methods."""
    site = tmp_path_factory.mktemp("site-packages")
    install_into(site)
    return site


@pytest.fixture
def on_path(installed, monkeypatch):
    """These methods are there, as if they were installed."""
    from understudy.methods import registry

    monkeypatch.syspath_prepend(str(installed))
    registry._places.cache_clear()
    yield installed
    registry._places.cache_clear()


@pytest.fixture
def database(empty_prefect_database, tmp_path):
    """The folder of temporary servers, whose database has its tables."""
    folder = tmp_path / "prefect"
    folder.mkdir()
    shutil.copy(empty_prefect_database, folder / "prefect.db")
    return str(folder)


@pytest.fixture
def run_flow(prefect_server):
    """Run a method's flow; gives its result and task name -> its last state, those of mapped tasks joined by '/'."""
    from understudy.lazy import load
    from understudy.methods import registry

    def run(method: str, request: RunRequest, *, tasks: set[str]):
        state = load(registry.get(method).flow)(request, return_state=True)
        return state.result(), _task_states(state.state_details.flow_run_id, tasks)

    return run


def _task_states(flow_run_id, tasks: set[str]) -> dict[str, str]:
    """As the server recorded them."""
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    with get_client(sync_client=True) as client:
        for _ in range(600):
            found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])))
            states: dict[str, set[str]] = {}
            for one in found:
                states.setdefault(one.name, set()).add(one.state_name)
            if states.keys() >= tasks and set().union(*states.values()) <= {"Completed", "Cached"}:
                return {name: "/".join(sorted(ends)) for name, ends in states.items()}
            time.sleep(0.1)
    pytest.fail(f"expected an ended run of every task in {sorted(tasks)}, found {states}")


@pytest.fixture(scope="session")
def find_leaks():
    """Look for private rows, their 8-grams and digests in what was said and in every byte outside of a private root.

    Gives (place, beginning of what was found there) of each leak.
    """
    from understudy.data.columns import text_columns
    from understudy.data.tables import row_digests

    def find(rows: pa.Table, *, home: Path, export: Path, said: dict[str, str]) -> list[tuple[str, bytes]]:
        texts = [text for name in text_columns(rows) for text in rows[name].to_pylist()]
        grams = {" ".join(words[i : i + 8]) for words in map(str.split, texts) for i in range(len(words) - 7)}
        digests = {digest.hex() for digest in row_digests(rows)}
        needles = [text.encode() for text in (*texts, *grams, *digests)]
        places = {name: text.encode() for name, text in said.items()} | {"prefect": _prefect_rows()}
        private = home / "private"
        for root in (export, home, home / "calibrations"):
            for path in sorted(p for p in root.rglob("*") if p.is_file() and not p.is_relative_to(private)):
                places[str(path)] = path.read_bytes() if path.name != "synthetic.parquet" else b""
        synthetic = pq.read_table(export / "synthetic.parquet")
        made = [text for name in text_columns(synthetic) for text in synthetic[name].to_pylist()]
        places["synthetic.parquet"] = "\n".join(made).encode()
        assert {"ledger.db", "mlflow.db", "statement.json"} <= {Path(name).name for name in places}
        assert len(places["prefect"]) > 1000
        # The search itself can find: the rows do lie in the private root.
        tables = [pq.read_table(path) for path in private.rglob("table.parquet")]
        kept = [text for table in tables for name in text_columns(table) for text in table[name].to_pylist()]
        assert found_in("\n".join(text for text in kept if text is not None).encode(), needles)
        return [(name, needle[:30]) for name, content in places.items() for needle in found_in(content, needles)]

    return find


@pytest.fixture
def told_prefect(prefect_server):
    """What the test server's database holds once a word stands in it: events of tasks come a moment later."""

    def told(word: str) -> bytes:
        deadline = time.monotonic() + 60
        while word.encode() not in (found := _prefect_rows()):
            assert time.monotonic() < deadline, f"expected Prefect to be told of {word!r}"
            time.sleep(0.2)
        return found

    return told


def _prefect_rows() -> bytes:
    """Every value of every table of the test server's database."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    path = Path(re.sub(r"^sqlite\+aiosqlite:/{3}", "", str(getattr(url, "get_secret_value", lambda: url)())))
    if not path.is_file():
        pytest.fail(f"expected the test server's database, found none at {path}")
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    names = [row[0] for row in connection.execute("select name from sqlite_master where type='table'")]
    rows = [row for name in names for row in connection.execute(f'select * from "{name}"')]
    connection.close()
    return repr(rows).encode()

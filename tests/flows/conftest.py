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
    "filter.label_check=false",
    "filter.balance=false",
)


@pytest.fixture(scope="session")
def random_model_folder(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("model") / "random")


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
            patch.setenv("UNDERSTUDY_HOME", str(root))
            patch.setenv("UNDERSTUDY_EXCHANGE", str(root / "exchange"))
            patch.setenv("UNDERSTUDY_MLFLOW_URI", f"sqlite:///{root / 'mlflow.db'}")
            patch.setenv("UNDERSTUDY_THREADS", "1")
            patch.setenv("UNDERSTUDY_DEVICE", "cpu")
            patch.setenv("UNDERSTUDY_PRECISION", "float32")
            patch.setenv("HF_DATASETS_CACHE", str(root / "datasets"))
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


@pytest.fixture
def run_flow(prefect_server):
    """Run a flow; gives its result and task name -> name of its last state, those of mapped tasks joined by '/'."""

    def run(flow, request: RunRequest, *, tasks: set[str]):
        state = flow(request, return_state=True)
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
    from understudy.data.tables import row_digests

    def find(rows: pa.Table, *, home: Path, export: Path, said: dict[str, str]) -> list[tuple[str, bytes]]:
        texts = rows["text"].to_pylist()
        grams = {" ".join(words[i : i + 8]) for words in map(str.split, texts) for i in range(len(words) - 7)}
        digests = {digest.hex() for digest in row_digests(rows)}
        needles = [text.encode() for text in (*texts, *grams, *digests)]
        places = {name: text.encode() for name, text in said.items()} | {"prefect": _prefect_rows()}
        private = home / "private"
        for root in (export, home):
            for path in sorted(p for p in root.rglob("*") if p.is_file() and not p.is_relative_to(private)):
                places[str(path)] = path.read_bytes() if path.name != "synthetic.parquet" else b""
        synthetic = pq.read_table(export / "synthetic.parquet")
        places["synthetic.parquet"] = "\n".join(synthetic["text"].to_pylist()).encode()
        assert {"ledger.db", "mlflow.db", "statement.json"} <= {Path(name).name for name in places}
        assert len(places["prefect"]) > 1000
        # The search itself can find: the rows do lie in the private root.
        kept = [text for p in private.rglob("table.parquet") for text in pq.read_table(p)["text"].to_pylist()]
        assert set(needles) & {text.encode() for text in kept if text is not None}
        return [(name, needle[:30]) for name, content in places.items() for needle in needles if needle in content]

    return find


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

"""The whole flow with the real Prefect engine, MLflow database, ledger and stores, on a random base model."""

import json
import math
import re
import sqlite3
import stat
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

from understudy.privacy.ledger import Ledger
from understudy.records import row_digests
from understudy.settings import prepare_environment, settings

COMPUTED = {"train", "generate", "prompt-only", "evaluate"}


@pytest.fixture(autouse=True)
def with_server(prefect_server):
    prepare_environment()


def run(request):
    from understudy.flows.conditional_generation import conditional_generation

    state = conditional_generation(request, return_state=True)
    return state.result(), task_states(state.state_details.flow_run_id)


def task_states(flow_run_id) -> dict[str, str]:
    """Task name -> name of its last state, as the server recorded it."""
    import time

    with get_client(sync_client=True) as client:
        for _ in range(600):
            found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])))
            states = {run_.name: run_.state_name for run_ in found}
            if states.keys() >= COMPUTED and set(states.values()) <= {"Completed", "Cached"}:
                return states
            time.sleep(0.1)
    pytest.fail(f"expected an ended run of every task in {sorted(COMPUTED)}, found {states}")


def test_a_run_ends_with_a_statement_and_a_second_one_computes_and_charges_nothing(request_of, tmp_path, private_rows):
    request = request_of()
    first, states = run(request)
    assert {states[name] for name in COMPUTED} == {"Completed"}
    statement = json.loads((tmp_path / "out/export/statement.json").read_text())
    assert 0 < statement["epsilon"] <= 3
    assert statement["epsilon_rdp"] > statement["epsilon"]
    assert statement["verdict"] == "proven under assumptions"
    table = pq.read_table(tmp_path / "out/export/synthetic.parquet")
    assert table.column_names == ["text", "label"]
    assert table.num_rows == 12
    assert set(table["label"].to_pylist()) == {"good", "bad"}
    report = json.loads((tmp_path / "out/internal/report.json").read_text())
    assert {"utility.synthetic.accuracy", "utility.prompt_only.accuracy"} <= report["metrics"].keys()
    before = Ledger.open().spent("ward")
    assert before[0] == 3.0

    second, states = run(request)
    assert {states[name] for name in COMPUTED} == {"Cached"}
    assert Ledger.open().spent("ward") == before
    assert (second.released, second.synthetic) == (first.released, first.synthetic)

    more, states = run(request_of(samples=14))
    assert states["train"] == "Cached", "more samples are post-processing"
    assert states["generate"] == "Completed"
    assert Ledger.open().spent("ward") == before
    assert more.released == first.released

    changed = private_rows.to_pydict()
    changed["text"][0] = "another text altogether"
    path = tmp_path / "changed.parquet"
    pq.write_table(private_rows.from_pydict(changed), path)
    third, states = run(request_of(data=str(path)))
    assert states["train"] == "Completed"
    assert Ledger.open().spent("ward")[0] == 6.0
    assert third.released != first.released


def test_epsilon_infinity_exports_nothing_and_spends_nothing(request_of, tmp_path):
    result, _ = run(request_of(epsilon=math.inf))
    assert result.export is None
    assert not (tmp_path / "out/export").exists()
    assert (tmp_path / "out/internal/synthetic.parquet").exists()
    assert Ledger.open().spent("ward") == (0.0, 0.0)
    assert result.statement["verdict"] == "none"


def test_nothing_private_leaves(request_of, tmp_path, private_rows, home, caplog, capfd):
    """Every private row, its digest and its 8-grams, looked for in every byte that is not in the private root."""
    caplog.set_level("DEBUG")
    run(request_of())
    texts = private_rows["text"].to_pylist()
    grams = {" ".join(words[i : i + 8]) for words in map(str.split, texts) for i in range(len(words) - 7)}
    digests = {d.hex() for d in row_digests(private_rows)}
    needles = [text.encode() for text in (*texts, *grams, *digests)]
    printed = capfd.readouterr()
    places = {
        "log": caplog.text.encode(),
        "printed": (printed.out + printed.err).encode(),
        "prefect": prefect_rows(),
    }
    private = settings().private_root
    for root in (tmp_path / "out/export", home):
        for path in sorted(p for p in root.rglob("*") if p.is_file() and not p.is_relative_to(private)):
            places[str(path)] = path.read_bytes() if path.name != "synthetic.parquet" else b""
    assert any(name.endswith("ledger.db") for name in places)
    assert any(name.endswith("mlflow.db") for name in places)
    assert len(places["prefect"]) > 1000
    found = [(name, needle[:30]) for name, content in places.items() for needle in needles if needle in content]
    assert found == []
    # The search itself can find: the rows do lie in the private root, in plain Parquet.
    stored = b"".join(p.read_bytes() for p in private.rglob("table.parquet"))
    assert len(stored) > 0
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "secret").stat().st_mode) == 0o600
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o700 for p in private.rglob("*") if p.is_dir())


def prefect_rows() -> bytes:
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

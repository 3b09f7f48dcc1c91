"""The whole flow with the real Prefect engine, MLflow database, ledger and stores, on a random base model."""

import functools
import json
import logging
import math
import re
import shutil
import stat
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from homes import has_access_lists
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.sorting import ArtifactSort
from tests_support import SMALL

from understudy.artifacts.access import exchange_store, path_of, private_store, read_table
from understudy.errors import InputError, UnderstudyError
from understudy.evaluation.texts.encoder import DEFAULT_ENCODER, encoder_digest
from understudy.flows import paid_run
from understudy.privacy.ledger.ledger import Ledger
from understudy.runs.file_origin import ARTIFACT, named_in
from understudy.runs.folders import artifact_in, read_record
from understudy.runs.further_texts import generate_more
from understudy.runs.request import Budget
from understudy.runs.split import LABELS_DISCLOSED
from understudy.runs.validation import validate
from understudy.settings import prepare_environment, settings
from understudy.tasks.engine.run_record import CHARGE, NOTE
from understudy.tasks.engine.tracking_log import open_log

COMPUTED = {"train", "generate", "prompt-only", "evaluate", "evaluate-loss"}


@pytest.fixture(autouse=True)
def with_server(prefect_server):
    prepare_environment()


@pytest.fixture
def run(run_flow):
    return functools.partial(run_flow, "conditional-generation", tasks=COMPUTED)


def embedded_names(path):
    with path.open("rb") as file:
        return np.load(file, allow_pickle=False).tolist()


@pytest.mark.parametrize("sizes", ['{"good": 6, "bad": 2}', "as_in_data"])
def test_text_without_private_rows_has_as_many_rows_of_each_label(sizes, run, request_of, tmp_path, private_rows):
    """Another share of the labels would be told from the synthetic text's without any private row."""
    places = [row for row, label in enumerate(private_rows["label"].to_pylist()) if label == "good" or row < 20]
    pq.write_table(private_rows.take(places), tmp_path / "mostly-good.parquet")
    given = {"data": str(tmp_path / "mostly-good.parquet"), "budget": Budget(epsilon=3, delta=5e-3)}
    run(request_of(**given, overrides=(*SMALL, f"class_sizes={sizes}"), epsilon=float("inf")))
    stores = (private_store(), exchange_store())
    counts = {
        ref.kind: Counter(read_table(ref)["label"].to_pylist())
        for store in stores
        for ref in store.refs()
        if ref.kind in ("synthetic", "prompt-only")
    }
    assert counts["prompt-only"] == counts["synthetic"]
    assert counts["synthetic"][1] > counts["synthetic"][0] > 0


@pytest.fixture
def page(caplog, monkeypatch):
    """What the page of a flow run in the Prefect UI says: what the run has logged there, once it has ended."""
    log = logging.getLogger("page")  # Prefect's own is set up anew when the first flow of a process begins
    caplog.set_level("DEBUG")
    caplog.set_level("INFO", logger=log.name)
    monkeypatch.setattr(paid_run, "get_run_logger", lambda: log)
    return lambda: [record.getMessage() for record in caplog.records if record.name == log.name]


def statements_on_pages(charge):
    """Artifacts of Prefect that show the statement of a charge."""
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["privacy-statement"])),
            sort=ArtifactSort.CREATED_DESC,
        )
    return [artifact for artifact in found if charge.id in str(artifact.data)]


def tells_what_was_charged(said, paid, at_end, report):
    """The page of the run, and MLflow's: what was charged, and where the results lie. Neither was told."""
    (charge,) = Ledger.open().charges()
    began, ended = said
    assert began.startswith(f"charge {charge.id} of source 'ward' pays for this run: {paid}")
    assert ended.startswith(at_end)
    assert ended.endswith(f"the report, which is internal: {report}")
    (tracked,) = open_log("client").search({CHARGE: charge.id})
    assert re.fullmatch(r"conditional-generation ward [0-9a-f]{7}", tracked.info.run_name)
    assert tracked.data.tags[NOTE] == f"{began}\n\n{ended}", "MLflow's page of the run says the same"
    return statements_on_pages(charge)


def is_closed_to_others(home, out):
    private = settings().private_root
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "secret").stat().st_mode) == 0o600
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o700 for p in private.rglob("*") if p.is_dir())
    assert {"artifacts", "embeddings", "plans", "results"} <= {path.name for path in private.iterdir()}
    made = [path for root in (private, home / "locks", out / "internal") for path in root.rglob("*")]
    made += home.glob("ledger.*")
    assert not has_access_lists(out.parent) or [path for path in made if path.stat().st_mode & 0o077] == []


def test_a_run_ends_with_a_statement_and_a_second_one_charges_nothing(
    run, request_of, tmp_path, private_rows, home, page, find_leaks, caplog, capfd
):
    request = request_of()
    first, states = run(request)
    assert {states[name] for name in COMPUTED} == {"Completed"}
    # Every private row, its digest and its 8-grams, looked for in every byte that is not in the private root.
    printed = capfd.readouterr()
    said = {"log": caplog.text, "printed": printed.out + printed.err}
    assert find_leaks(private_rows, home=home, export=tmp_path / "out/export", said=said) == []
    is_closed_to_others(home, tmp_path / "out")
    (shown,) = tells_what_was_charged(
        page(), "epsilon=3, delta=", f"exported to {tmp_path / 'out/export'}; ", tmp_path / "out/internal/report.html"
    )
    assert shown.description.endswith(" for one example (replace_special, PLD)")
    assert (tmp_path / "out/export/statement.md").read_text() in shown.data

    statement = json.loads((tmp_path / "out/export/statement.json").read_text())
    assert 0 < statement["epsilon"] <= 3
    assert statement["epsilon_rdp"] > statement["epsilon"]
    assert statement["verdict"] == "proven under assumptions"
    base, encoder = statement["pretrained_models"]
    assert (base["name"], encoder["name"]) == ("random", DEFAULT_ENCODER)
    assert encoder["digest"] == encoder_digest(), "texts are chosen in its space"
    table = pq.read_table(tmp_path / "out/export/synthetic.parquet")
    assert table.column_names == ["text", "label"]
    assert table.num_rows == 12
    assert set(table["label"].to_pylist()) == {"good", "bad"}
    report = json.loads((tmp_path / "out/internal/report.json").read_text())
    assert {"utility.synthetic.accuracy", "utility.prompt_only.accuracy"} <= report["metrics"].keys()
    assert 0 < report["metrics"]["cut.train.texts"] < 60, "every row of training is longer than 24 tokens"
    assert report["metrics"]["held_out.rows"] == 6
    assert report["intervals"]["held_out.released_minus_base.loss"]
    assert "Held-out loss of the language model" in (tmp_path / "out/internal/report.html").read_text()
    one, other = map(embedded_names, (settings().private_root / "embeddings").glob("*.entries"))
    assert not set(one) & set(other), "what the class means were made of is not read again"
    before = Ledger.open().spent("ward")
    assert before[0] == 3.0
    told: list[tuple[int, int]] = []
    drawn, _ = generate_more(tmp_path / "out", samples=2, progress=lambda *parts: told.append(parts))
    texts = pq.read_table(drawn)
    assert told[-1][0] == told[-1][1] > 0
    assert artifact_in(drawn) == first.released, "what they were drawn from"

    second, states = run(request)
    assert {states[name] for name in COMPUTED} == {"Cached"}
    assert Ledger.open().spent("ward") == before
    assert (second.released, second.synthetic) == (first.released, first.synthetic)
    of_each = [line.partition(": epsilon=")[2] for line in page() if " pays for this run: " in line]
    assert [line.endswith("; it was made before, and nothing more is charged") for line in of_each] == [False, True]
    assert pq.read_table(drawn).equals(texts), "further draws from the same model are kept"

    more, states = run(request_of(samples=14))
    assert (states["train"], states["evaluate-loss"]) == ("Cached", "Cached"), "more samples are post-processing"
    assert states["generate"] == "Completed"
    assert Ledger.open().spent("ward") == before
    assert more.released == first.released

    changed = private_rows.to_pydict()
    changed["text"][:2] = ["another text altogether", "and one more"]  # of ten slots in a row, one is held out
    path = tmp_path / "changed.parquet"
    pq.write_table(private_rows.from_pydict(changed), path)
    third, states = run(request_of(data=str(path)))
    assert states["train"] == "Completed"
    assert Ledger.open().spent("ward")[0] == 6.0
    assert third.released != first.released
    assert not drawn.exists(), "its model is no longer beside it"


def test_labels_read_from_the_rows_take_the_guarantee_from_the_statement(run, request_of, tmp_path, private_rows):
    """With a null record among the rows and null slots behind them, whose number is public."""
    columns = private_rows.to_pydict()
    columns["text"][7] = columns["label"][7] = None
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in pa.table(columns).to_pylist()))
    run(request_of(data=str(path), label_names=None, labels_from_data=True, units=70))
    statement = json.loads((tmp_path / "out/export/statement.json").read_text())
    assert statement["verdict"] == "heuristic"
    assert LABELS_DISCLOSED in statement["warnings"]
    assert LABELS_DISCLOSED in statement["heuristics"]
    assert statement["declared_public"]["n"] == 70
    assert statement["declared_public"]["label list"] == ["bad", "good"]
    source = Ledger.open().source("ward")
    assert (source.n, source.label_names) == (70, None), "a later run declares labels itself, or discloses them again"
    with pytest.raises(InputError, match="--label-names"):
        validate(request_of(data=str(path), label_names=None), "conditional-generation")


@pytest.mark.slow
def test_a_base_model_that_changes_in_place_is_another_one_for_every_task(
    run, request_of, random_model_folder, tmp_path
):
    folder = shutil.copytree(random_model_folder, tmp_path / "base")
    run(request_of(model=str(folder)))
    before = (folder / "config.json").read_text()
    (folder / "config.json").write_text(json.dumps(json.loads(before) | {"layer_norm_epsilon": 1e-3}))
    _, states = run(request_of(model=str(folder)))
    assert {states[name] for name in COMPUTED} == {"Completed"}
    assert [charge.epsilon for charge in Ledger.open().charges("ward")] == [3.0, 3.0]
    (folder / "config.json").write_text(before)
    _, states = run(request_of(model=str(folder)))
    assert {states[name] for name in COMPUTED} == {"Cached"}


def test_epsilon_infinity_exports_nothing_and_spends_nothing(run, request_of, tmp_path, page):
    result, _ = run(request_of(epsilon=math.inf))
    nothing = "nothing is promised, and nothing of the budget is spent"
    assert tells_what_was_charged(page(), nothing, "nothing was exported", tmp_path / "out/internal/report.html") == []
    assert result.export is None
    assert not (tmp_path / "out/export").exists()
    left, table = read_record(tmp_path / "out"), tmp_path / "out/internal/synthetic.parquet"
    assert named_in(table, ARTIFACT) == left.synthetic.id, "the file says that it is private"
    for given in ({"model": str(path_of(left.released))}, {"data": str(table)}):
        with pytest.raises(InputError, match="what a run without noise"):
            validate(request_of(**given), "conditional-generation")
    assert Ledger.open().spent("ward") == (0.0, 0.0)
    assert result.statement["verdict"] == "none"


def test_a_run_whose_filter_keeps_no_text_ends_with_what_was_paid_for(run, request_of, tmp_path):
    picky = ("variant=naive_filter", "filter.lora_rank=0", "filter.threshold=0.999999", "filter.max_draws=1")
    overrides = (*SMALL, *picky)
    for _ in range(2):  # the second time from what the first left
        with pytest.raises(UnderstudyError, match=r"12 of 12 rows are missing .*no row at all for bad, good"):
            run(request_of(overrides=overrides))
    assert Ledger.open().spent("ward")[0] == 3.0
    assert pq.read_table(tmp_path / "out/export/synthetic.parquet").num_rows == 0
    assert (tmp_path / "out/export/model/config.json").exists()
    report = json.loads((tmp_path / "out/internal/report.json").read_text())
    assert report["facts"]["missing"] == "12"
    assert len(report["missing"]) == 1


def test_where_nothing_is_trained_no_loss_is_taken(run_flow, request_of, tmp_path):
    request = request_of(overrides=(*SMALL, "variant=untrained"))
    _, states = run_flow("conditional-generation", request, tasks=COMPUTED - {"evaluate-loss"})
    assert "evaluate-loss" not in states
    report = json.loads((tmp_path / "out/internal/report.json").read_text())
    assert not [name for name in report["metrics"] if name.startswith("held_out.")]

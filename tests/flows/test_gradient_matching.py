"""Gradient matching from the command line to the export, with the real Prefect engine, on a random base model."""

import functools
import html
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ended_runs import Ended, everything_logged
from safetensors.numpy import load_file

from understudy.privacy.ledger.ledger import Ledger
from understudy.settings import prepare_environment

COMPUTED = {"release-target", "match", "select", "zero-shot", "evaluate"}
LABELS = ("bad", "good")


@pytest.fixture(autouse=True)
def with_server(prefect_server, small_measures):
    prepare_environment()


@pytest.fixture
def run(run_flow):
    return functools.partial(run_flow, "gradient-matching", tasks=COMPUTED)


def test_a_second_run_and_all_post_processing_charge_nothing_and_one_other_row_charges(
    run, request_of, small_matching, tmp_path, private_rows
):
    request = request_of(overrides=small_matching)
    first, states = run(request)
    assert {states[name] for name in COMPUTED} == {"Completed"}
    export = tmp_path / "out/export"
    assert sorted(path.relative_to(export).as_posix() for path in export.rglob("*")) == [
        "statement.json",
        "statement.md",
        "synthetic.parquet",
        "target",
        "target/target.json",
        "target/target.safetensors",
    ]
    statement = json.loads((export / "statement.json").read_text())
    assert 0 < statement["epsilon"] <= 3
    assert statement["epsilon_rdp"] > statement["epsilon"]
    assert statement["verdict"] == "proven under assumptions"
    assert [mechanism["name"] for mechanism in statement["mechanisms"]] == ["target"]
    assert "model" not in statement["against"], "a target leaves, and no model"
    assert statement["warnings"] == [], "60 rows outweigh the noise of epsilon 3"
    table = pq.read_table(export / "synthetic.parquet")
    assert table.column_names == ["text", "label"]
    assert sorted(table["label"].to_pylist()) == ["bad"] * 6 + ["good"] * 6
    report = json.loads((tmp_path / "out/internal/report.json").read_text())
    assert {"utility.synthetic.accuracy", "utility.prompt_only.accuracy"} <= report["metrics"].keys()
    assert 0 < report["metrics"]["cut.train.texts"] < 60, "every row of training is longer than 24 tokens"
    before = Ledger.open().spent("ward")
    assert before[0] == 3.0

    second, states = run(request)
    assert {states[name] for name in COMPUTED} == {"Cached"}
    assert Ledger.open().spent("ward") == before
    assert (second.released, second.synthetic) == (first.released, first.synthetic)

    settings = (*small_matching, "matching.rounds=4", "length=5")
    more, states = run(request_of(samples=14, about="notes of a ward", overrides=settings))
    assert states["release-target"] == "Cached", "matching, its sizes and what prompts say are post-processing"
    assert states["match"] == "Completed"
    assert Ledger.open().spent("ward") == before
    assert more.released == first.released
    assert pq.read_table(export / "synthetic.parquet").num_rows == 14

    changed = private_rows.to_pydict()
    changed["text"][:2] = ["another text altogether", "and one more"]  # of ten slots in a row, one is held out
    path = tmp_path / "changed.parquet"
    pq.write_table(private_rows.from_pydict(changed), path)
    third, states = run(request_of(data=str(path), overrides=small_matching))
    assert states["release-target"] == "Completed"
    assert Ledger.open().spent("ward")[0] == 6.0
    assert third.released != first.released


def with_bad_rows(rows: pa.Table, count: int) -> pa.Table:
    labels = ["bad" if row < count else "good" for row in range(rows.num_rows)]
    return rows.set_column(1, "label", pa.array(labels))


@pytest.fixture(scope="module")
def scarce(
    prefect_server, small_measures, tmp_path_factory, in_home, call, private_rows, random_model_folder, small_matching
):
    """Runs at epsilon 0.05 on rows of which one, or none, has the label `bad`: number of such rows -> what was left."""
    ended = {}
    for count in (1, 0):
        folder = tmp_path_factory.mktemp("scarce")
        pq.write_table(with_bad_rows(private_rows, count), folder / "rows.parquet")
        options = {
            "data": folder / "rows.parquet",
            "source": "ward",
            "out": folder / "out",
            "epsilon": 0.05,
            "delta": 1e-6,
            "budget": "1,0.01",
            "label-names": "bad=bad,good=good",
            "model": random_model_folder,
            "samples": 12,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        words += [word for setting in small_matching for word in ("--set", setting)]
        with in_home(folder / "home") as home, everything_logged() as lines:
            prepare_environment()
            code, said = call("run", "gradient-matching", *words, "--json")
        ended[count] = Ended(home, folder / "out", code, said, "\n".join(lines), words=tuple(words))
    return ended


def test_a_class_of_one_and_a_class_of_none_look_the_same_from_outside(scarce):
    """How many rows have a label is private, so neither is refused, warned of, or told from the other."""
    one, none = scarce[1], scarce[0]
    assert (one.code, none.code) == (0, 0), one.said + none.said
    assert one.without_names(one.said) == none.without_names(none.said)
    assert one.without_names(json.dumps(one.statement())) == none.without_names(json.dumps(none.statement()))
    for name in ("statement.md", "target/target.json"):
        pair = [end.without_names((end.out / "export" / name).read_text()) for end in (one, none)]
        assert pair[0] == pair[1]
    tables = [pq.read_table(end.out / "export/synthetic.parquet") for end in (one, none)]
    assert tables[0]["label"].to_pylist() == tables[1]["label"].to_pylist() == ["bad"] * 6 + ["good"] * 6
    targets = [load_file(end.out / "export/target/target.safetensors") for end in (one, none)]
    noise = one.statement()["mechanisms"][0]["standard_deviation"]
    for target in targets:
        assert {name: values.shape for name, values in target.items()} == {
            "label-0000": (32,),
            "label-0001": (32,),
        }
        # All noise: a row can move it by a hundredth of that. 32 draws of noise beyond these bounds: once in 10^6.
        assert 0.4 * noise < float(target["label-0000"].std()) < 1.7 * noise


def test_rows_that_filters_drop_are_made_up_and_a_class_without_a_row_is_an_error(
    scarce, call, in_home, small_matching
):
    """The prior makes the check say `bad` of every text: `good` gets its waves, up to the bound, and no row."""
    end = scarce[1]
    with in_home(end.home):
        prepare_environment()
        spent = Ledger.open().spent("ward")
        words = [*end.words, "--set", "filter.label_check=true", "--set", "filter.max_draws=3"]
        words += ["--set", 'filter.prior={"bad": 0, "good": 1000}']
        words[words.index("--out") + 1] = end.out.parent / "checked"
        code, said = call("run", "gradient-matching", *words)
        assert Ledger.open().spent("ward") == spent
    report = json.loads((end.out.parent / "checked/internal/report.json").read_text())
    lacking, made = report["completeness"]["lacking"], report["completeness"]["rows"]
    table = pq.read_table(end.out.parent / "checked/export/synthetic.parquet")
    assert lacking == ["good"]
    assert made == table.num_rows == 6
    assert report["completeness"]["shortfall"] == {"good": 6}
    assert (end.out.parent / "checked/export/target/target.safetensors").is_file()
    assert code == 1
    assert "6 of 12 rows are missing (good 6); no row at all for good." in " ".join(said.split())
    page = (end.out.parent / "checked/internal/report.html").read_text()
    assert page.index("6 of 12 rows are missing") < page.index("Privacy guarantee")
    assert report["facts"]["drawn"] == str(6 * 3 + 12), "12 to begin with, and the lacking label's up to 3 per row"


def test_nothing_private_leaves(scarce, find_leaks, private_rows):
    for count, end in scarce.items():
        rows = with_bad_rows(private_rows, count)
        said = {"log": end.log, "printed": end.said}
        assert len(end.log) > 1000
        assert find_leaks(rows, home=end.home, export=end.out / "export", said=said) == []


def test_the_statement_of_epsilon_0_05_says_that_the_output_does_not_depend_on_the_data(scarce):
    end = scarce[1]
    (warning,) = end.statement()["warnings"]
    assert "signal-to-noise ratio" in warning
    assert "larger epsilon" in warning
    assert warning in " ".join(end.said.split()), "the user is told before paying"
    assert warning in (end.out / "export/statement.md").read_text()
    assert warning in html.unescape((end.out / "internal/report.html").read_text())


@pytest.mark.parametrize("place", ["", "export"])
def test_generate_from_a_run_without_a_model_says_what_to_do_instead(scarce, call, place):
    end = scarce[1]
    code, said = call("generate", "--from", end.out / place, "--samples", 5)
    assert code == 2
    (line,) = [line for line in said.splitlines() if line.startswith("understudy:")]
    assert "larger --samples" in line
    assert "charges nothing" in line
    assert not list(end.out.rglob("synthetic-*"))

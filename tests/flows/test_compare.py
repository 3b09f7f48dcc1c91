"""Several methods, epsilons and seeds on the same rows: one total beforehand, one charge each, one internal report."""

import functools
import itertools
import json
import math
import re
import shutil
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kill_and_resume import digests
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings
from prefect_servers import flow_run_names

import understudy
from understudy.errors import BudgetRefused, InputError, UnderstudyError
from understudy.lazy import load
from understudy.methods import registry
from understudy.privacy.ledger.ledger import Ledger
from understudy.runs.comparisons.report import ComparisonIncomplete
from understudy.runs.comparisons.request import compare_request_of

GROUPS = ("bag-of-words-eps8", "letters-eps8")


@pytest.fixture(scope="session")
def second_method(installed):
    """Another method of the installed package: the bag of words, whose seed meets private rows, under another name."""
    package = installed / "letters"
    package.mkdir()
    for path in (installed / "bag_of_words").glob("*.py"):
        text = path.read_text().replace("bag_of_words", "letters").replace("bag-of-words", "letters")
        charged = "profile=config.profile, model=config.model,"
        assert path.name != "method.py" or charged in text
        (package / path.name).write_text(text.replace(charged, f"public_seed=config.public_seed, {charged}"))
    points = installed / "understudy_examples-1.0.dist-info/entry_points.txt"
    points.write_text(points.read_text() + "letters = letters.method:METHOD\n")


@pytest.fixture
def methods(second_method, on_path):
    """Two quick methods are there."""


@pytest.fixture
def words(data, tmp_path):
    """The command of a comparison, with options changed."""

    def make(methods="bag-of-words,letters", *more, out="out", **changed):
        options = {"data": data, "source": "ward", "label-names": "bad,good", "delta": 1e-4, "samples": 12}
        options |= {"epsilon": "1,8", "seeds": "0,1", "out": tmp_path / out} | changed
        return ("compare", methods, *(w for k, v in options.items() if v is not None for w in (f"--{k}", v)), *more)

    return make


def request(data, out, **changed):
    run = {
        "data": str(data),
        "source": "ward",
        "out": str(out),
        "label_names": {"bad": "bad", "good": "good"},
        "delta": 1e-4,
        "samples": 12,
        "overrides": ("length=4",),
    }
    fields = {"methods": ("bag-of-words",), "epsilons": (1.0, 8.0), "seeds": (0,), "run": run | changed.pop("run", {})}
    return compare_request_of(fields | changed)


def test_runs_are_charged_announced_reported_repeated_and_purged(
    methods, words, call, home, tmp_path, prefect_server, data, find_leaks
):
    out, words = tmp_path / "out", functools.partial(words, epsilon=8)
    code, planned = call(*words(), "--dry-run", "--json")
    assert code == 0, planned
    plan = json.loads(planned[planned.index("{\n") :])
    # The seed of the bag of words meets no private row.
    assert (plan["charges"], plan["epsilon_sum"], plan["delta_sum"]) == (3, 8 + 2 * 8, 3e-4)
    assert 8 < plan["epsilon_pld_of_all"] < 24
    assert Ledger.open().sources() == ()
    code, said = call(*words())
    assert code == 0, said
    cost = "epsilon=24, delta=0.0003 for one example (replace_special, PLD) in all"
    for told in (cost, "3 charges", "becomes its budget", "no epsilon covers", "4 runs"):
        assert told in said, said
    ledger = Ledger.open()
    assert ledger.spent("ward") == (24.0, 3e-4)
    assert (ledger.source("ward").epsilon, ledger.source("ward").delta) == (24.0, 3e-4)
    charges = ledger.charges("ward")
    assert len(charges) == 3
    assert {charge.status for charge in charges} == {"released"}
    _is_whole(out)
    _is_closed(out)
    _are_children_of_one_run(out, {charge.id for charge in charges})
    assert _runs() <= flow_run_names(), "in Prefect's UI they are told apart"

    before = digests(out)
    code, said = call(*words())
    assert code == 0, said
    assert "charges source ward nothing more" in said
    assert "nothing was computed" in said
    assert ledger.charges("ward") == charges
    after = digests(out)
    assert {name for name in before if before[name] != after[name]} <= {"report.json", "report.html"}, "but the time"
    code, said = call("report", out, "--json")
    assert code == 0, said
    table = pq.read_table(data)
    for run in ("bag-of-words-eps8-seed0", "letters-eps8-seed1"):
        assert find_leaks(table, home=home, export=out / run / "export", said={"said": said}) == []

    # What may be charged anew has to fit, too.
    code, said = call(*words(), "--accept-new-charge")
    assert code == 3, said
    assert "3 charges" in said
    assert "--accept-new-charge" in said
    # One seed more costs the new runs alone, and is refused: the budget is spent.
    code, said = call(*words(seeds="0,1,2"))
    assert code == 3, said
    assert "left epsilon=0" in said
    assert ledger.charges("ward") == charges

    code, said = call("purge", "--source", "ward", "--json")
    assert code == 0, said
    purged = json.loads(said)
    assert purged["not_removed"] == []
    assert purged["evaluation_reports"] == [str(out)]
    assert sorted(path.name for path in out.glob("*")) == sorted(_runs())
    assert {path.name for path in out.glob("*/*")} == {"export"}, "what was released stands for itself"


def _runs() -> set[str]:
    return {f"{group}-seed{seed}" for group in GROUPS for seed in (0, 1)}


def _is_whole(out: Path) -> None:
    report = json.loads((out / "report.json").read_text())
    assert report["format"] == "understudy.comparison/1"
    assert [group["name"] for group in report["groups"]] == list(GROUPS)
    metrics = report["metrics"]
    for group in GROUPS:
        assert metrics[f"comparison.{group}.seeds"] == 2
        figure = "utility.synthetic.accuracy"
        own = [json.loads((out / f"{group}-seed{s}/internal/report.json").read_text())["metrics"] for s in (0, 1)]
        assert metrics[f"comparison.{group}.{figure}"] == pytest.approx(sum(m[figure] for m in own) / 2)
        spread = abs(own[0][figure] - own[1][figure]) / math.sqrt(2)
        assert metrics[f"comparison.{group}.{figure}.spread"] == pytest.approx(spread)
    for one, other in itertools.combinations(report["groups"], 2):
        name = f"comparison.{one['name']}.minus.{other['name']}.utility.synthetic.accuracy"
        assert (name in metrics) is ((one["method"] == other["method"]) != (one["epsilon"] == other["epsilon"])), name
        if name in metrics:
            sides = (f"comparison.{side['name']}.utility.synthetic.accuracy" for side in (one, other))
            assert metrics[name] == pytest.approx(metrics[next(sides)] - metrics[next(sides)])
    page = (out / "report.html").read_text()
    assert "that no epsilon covers" in page
    assert "given away the sum" in page
    assert "epsilon=24" in page
    for run in _runs():
        assert pq.read_table(out / run / "export/synthetic.parquet").num_rows == 12
    assert json.loads((out / "sources.json").read_text()) == {"sources": ["ward"]}


def _is_closed(out: Path) -> None:
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    for path in out.iterdir():
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def _are_children_of_one_run(out: Path, charges: set[str]) -> None:
    from understudy.tasks.engine import tracking_log

    log = tracking_log.open_log("client")
    (parent,) = log.search({"understudy.out": str(out)})
    assert re.fullmatch("compare ward [0-9a-f]{7}", parent.info.run_name)
    assert parent.data.tags["mlflow.note.content"].endswith(f"internal: {out / 'report.html'}")
    assert set(json.loads(parent.data.tags["understudy.sources"])) == {f"source:ward@{charge}" for charge in charges}
    children = log.search({"mlflow.parentRunId": parent.info.run_id})
    *runs, report = sorted(child.info.run_name for child in children)
    assert report == "report-comparison"
    assert len(set(runs)) == 4, "runs of one method are told apart"
    assert [name.rpartition(" ")[0] for name in runs] == [*["bag-of-words ward"] * 2, *["letters ward"] * 2]
    assert {child.info.status for child in (parent, *children)} == {"FINISHED"}
    assert not any("accuracy" in name for child in (parent, *children) for name in child.data.metrics)


REFUSED = {
    "METHOD bag-of-words,voted-texts: .*each client": ("bag-of-words,voted-texts", {}),
    "method='bag-of-wards'": ("bag-of-wards", {}),
    "METHOD ,: ": (",", {}),
    "--epsilon 1,x: ": ("bag-of-words", {"epsilon": "1,x"}),
    "--epsilon 0.00001: |--epsilon 1e-05: ": ("bag-of-words", {"epsilon": "0.00001"}),
    "--seeds 0,,1: ": ("bag-of-words", {"seeds": "0,,1"}),
    "--source is missing": ("bag-of-words", {"source": None}),
    "--set width: no such setting.*in bag-of-words": ("bag-of-words,letters", {"set": "width=3"}),
    "--set letters.public_seed=3: .*--seeds": ("bag-of-words,letters", {"set": "letters.public_seed=3"}),
    "--delta: .*add up to less than 1/n.*--delta 0.0027": ("bag-of-words,letters", {"delta": 0.01}),
    "--delta 0.5: .*in bag-of-words-eps1-seed0": ("bag-of-words", {"delta": 0.5}),
    "--budget 8,0.5: .*1/n": ("bag-of-words", {"budget": "8,0.5"}),
    "--epsilon inf on a new source": ("bag-of-words", {"epsilon": "inf"}),
}


@pytest.mark.slow
def test_a_statement_under_the_charge_of_a_comparison_says_so_once_wherever_the_run_is_repeated(
    methods, words, call, tmp_path, prefect_server, data
):
    """Whoever repeats the best of several runs has chosen it by real rows."""
    compared = words("bag-of-words", out="compared", budget="20,1e-3")
    alone = ("run", "bag-of-words", "--data", data, "--source", "ward")
    alone += ("--label-names", "bad,good", "--delta", 1e-4, "--samples", 20, "--set", "public_seed=1")

    def choices(export: Path) -> str:
        return json.loads((export / "statement.json").read_text())["choices"]

    assert call(*compared)[0] == 0
    charges = Ledger.open().charges("ward")
    assert call(*alone, "--epsilon", 8, "--out", tmp_path / "best")[0] == 0
    assert Ledger.open().charges("ward") == charges
    shutil.rmtree(tmp_path / "compared")
    assert call(*compared)[0] == 0
    for export in (tmp_path / "best/export", *tmp_path.glob("compared/*/export")):
        assert choices(export).count("one of 4 runs") == 1, choices(export)
    assert call(*alone, "--epsilon", 2, "--out", tmp_path / "another")[0] == 0
    assert "runs that were fixed" not in choices(tmp_path / "another/export")


@pytest.mark.parametrize("message", REFUSED)
def test_bad_input_is_refused_in_one_line_before_anything_is_registered(message, methods, words, call, tmp_path):
    import re

    method, changed = REFUSED[message]
    code, said = call(*words(method, **changed))
    assert code == 2, said
    assert re.search(message, said), said
    assert said.count("\n") == 1, said
    assert Ledger.open().sources() == ()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["export", "report.json"])
def test_a_folder_of_something_else_is_refused(name, methods, words, call, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text('{"format": "understudy.report/1"}')
    code, said = call(*words())
    assert code == 2, said
    assert f"earlier comparison, found ['{name}']" in said


def test_a_total_above_the_budget_is_refused_before_a_model_is_looked_at(methods, words, call, monkeypatch):
    """With a large model that takes minutes for each run."""
    monkeypatch.setattr("understudy.runs.validation._asked", lambda *_: pytest.fail("a model was looked at"))
    registered = ("--budget", "8.5,1e-2", "--rows", 60, "--label-names", "bad,good")
    code, said = call("ledger", "register", "ward", *registered)
    assert code == 0, said
    code, said = call(*words(seeds="0,1,2"))
    assert (code, "8 charges" in said, "(in " in said) == (3, True, False), said
    code, said = call(*words(seeds="0,1,2", source="other", delta="9e-3"))
    assert (code, "add up to less than 1/n" in said, "(in " in said) == (2, True, False), said


@pytest.mark.parametrize("composition", ["sum", "renyi"])
def test_a_total_above_the_budget_is_refused_before_the_first_charge(methods, words, call, tmp_path, composition):
    """Each run alone would fit."""
    registered = ("--budget", "8.5,1e-2", "--rows", 60, "--label-names", "bad,good", "--composition", composition)
    code, said = call("ledger", "register", "ward", *registered)
    assert code == 0, said
    code, said = call(*words(seeds="0,1,2"))
    assert code == 3, said
    assert "8 charges" in said
    assert "Nothing was charged" in said
    assert Ledger.open().charges("ward") == ()
    assert not list((tmp_path / "out").glob("*"))


def broken(function, *, seed):
    """The task's function, which fails for one public seed."""

    @functools.wraps(function)
    def fails(counts, config, names):
        if config.public_seed == seed:
            raise UnderstudyError("no texts came")
        return function(counts, config, names)

    return fails


@pytest.mark.slow
def test_a_failed_run_hides_no_other_and_the_same_command_goes_on(
    methods, words, call, tmp_path, prefect_server, monkeypatch
):
    import bag_of_words.flow as plugin

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(plugin, "draw_texts", broken(plugin.draw_texts, seed=0))
        code, said = call(*words("bag-of-words", epsilon="1,inf", budget="8,1e-2"))
    assert code == 1, said
    assert "2 of 4 runs are missing" in said
    assert "no texts came" in said
    report = json.loads((out / "report.json").read_text())
    assert len(report["missing"]) == 2
    assert report["metrics"]["comparison.bag-of-words-eps1.seeds"] == 1
    assert [group["missing"] for group in report["groups"]] == [[0], [0]]
    charged = Ledger.open().charges("ward")
    assert [charge.epsilon for charge in charged] == [1.0, math.inf]
    code, said = call(*words("bag-of-words", epsilon="1,inf"))
    assert code == 0, said
    assert Ledger.open().charges("ward") == charged
    assert Ledger.open().source("ward").epsilon == 8
    assert json.loads((out / "report.json").read_text())["metrics"]["comparison.bag-of-words-eps1.seeds"] == 2
    assert not (out / "bag-of-words-epsinf-seed0/export").exists()


@pytest.mark.slow
def test_a_run_of_it_that_is_deleted_on_the_server_is_told_and_found_again(
    methods, words, call, tmp_path, prefect_server, monkeypatch
):
    import bag_of_words.flow as plugin
    from prefect import get_client
    from prefect.context import FlowRunContext

    drawn, plain = [], plugin.draw_texts

    def deleting(*given, **named):
        if not drawn:
            with get_client(sync_client=True) as client:
                client.delete_flow_run(FlowRunContext.get().flow_run.id)
        drawn.append(plain(*given, **named))
        return drawn[-1]

    with monkeypatch.context() as patch:
        patch.setattr(plugin, "draw_texts", deleting)
        code, said = call(*words("bag-of-words", epsilon="1,inf", seeds="0", budget="8,1e-2"))
    assert code == 1, said
    assert "bag-of-words-eps1-seed0: expected to run to its end, found it deleted on the Prefect server" in said
    code, said = call(*words("bag-of-words", epsilon="1,inf", seeds="0"))
    assert code == 0, said
    assert len(drawn) == 2, "its results were there"


def test_a_retry_by_prefect_computes_what_is_missing_and_nothing_else(
    methods, data, tmp_path, prefect_server, monkeypatch
):
    """Prefect counts the flows that a flow calls: at a retry it would hand out what it has kept of another run.

    It would fail on another machine, where the file of that is not.
    """
    import bag_of_words.flow as plugin

    from understudy.flows.compare import compare

    works, calls = plugin.draw_texts, []

    def fails_once(counts, config, names):
        calls.append(config.public_seed)
        if calls == [0, 1]:
            shutil.rmtree(tmp_path / "kept-by-prefect", ignore_errors=True)
            raise UnderstudyError("no texts came")
        return works(counts, config, names)

    monkeypatch.setattr(plugin, "draw_texts", fails_once)
    asked = request(data, tmp_path / "out", epsilons=(8.0,), seeds=(0, 1))
    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: tmp_path / "kept-by-prefect"}):
        ended = compare.with_options(retries=1)(asked)
    assert ended.missing == {}
    assert calls == [0, 1, 1]
    tables = [pq.read_table(tmp_path / f"out/bag-of-words-eps8-seed{s}/export/synthetic.parquet") for s in (0, 1)]
    assert not tables[0].equals(tables[1])
    assert len(Ledger.open().charges("ward")) == 1


def test_two_methods_that_are_asked_the_same_are_two_runs_in_mlflow(methods, data, tmp_path, prefect_server):
    """The second took over the run of the first, with its name and its settings."""
    from understudy.tasks.engine import tracking_log

    asked = request(data, tmp_path / "out", run={"epsilon": 1.0, "budget": {"epsilon": 8, "delta": 1e-2}}).run
    for method in ("bag-of-words", "letters"):
        load(registry.get(method).flow)(asked)
    runs = tracking_log.open_log("client").search({"understudy.out": asked.out})
    named = {run.info.run_name.partition(" ")[0]: run.data.params["config.method"] for run in runs}
    assert named == {"bag-of-words": "bag-of-words", "letters": "letters"}
    charged = {charge.id for charge in Ledger.open().charges("ward")}
    assert {run.data.tags["understudy.charge"] for run in runs} == charged
    assert len(charged) == 2


def test_a_flow_that_prefect_starts_says_nothing_of_a_row(methods, tmp_path, prefect_server):
    from understudy.flows.compare import compare

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["fine", None, "fine"] * 9, "label": ["good", "bad", "ugly"] * 9}), path)
    state = compare(request(path, tmp_path / "out"), return_state=True)
    assert state.is_failed()
    with pytest.raises(UnderstudyError) as failed:
        state.result()
    assert "ugly" not in str(failed.value)
    assert "private, is in" in str(failed.value)
    assert Ledger.open().sources() == ()


def test_a_budget_that_another_spends_meanwhile_ends_the_comparison(
    methods, data, tmp_path, prefect_server, monkeypatch
):
    from understudy.flows import compare as module

    def refused(method, request, *, name):
        raise BudgetRefused("spent by another")

    monkeypatch.setattr(module, "inner_run", refused)
    with pytest.raises(BudgetRefused, match="spent by another"):
        module.compare(request(data, tmp_path / "out"))


def test_figures_of_another_run_that_took_a_folder_over_are_not_told_as_those_of_a_run_that_was_compared(
    methods, words, call, data, tmp_path, prefect_server, monkeypatch
):
    from understudy.flows import compare as module

    track, folder = module._track, tmp_path / "out/bag-of-words-eps8-seed0"

    def take_over(*given):
        named = ("--source", "ward", "--label-names", "bad,good", "--delta", "2e-4", "--samples", 12)
        code, said = call("run", "bag-of-words", "--data", data, *named, "--epsilon", 8, "--out", folder)
        assert code == 0, said
        return track(*given)

    asked = words("bag-of-words", epsilon="8", seeds="0", budget="30,1e-3")
    with monkeypatch.context() as patch:
        patch.setattr(module, "_track", take_over)
        code, said = call(*asked)
    assert code != 0, said
    assert "expected the results of bag-of-words-eps8-seed0, found those of charge" in " ".join(said.split())
    assert not (tmp_path / "out/report.json").exists()
    charged = Ledger.open().spent("ward")
    code, said = call(*asked)
    assert code == 0, said
    assert Ledger.open().spent("ward") == charged


def test_no_other_comparison_works_in_the_folder_until_the_report_is_written(
    methods, words, call, tmp_path, prefect_server, monkeypatch, home
):
    """Another one would put its own runs there, with other settings, and their figures into this report."""
    from understudy.flows import compare as module
    from understudy.locks import try_lock

    seen = []

    def entered_by_another(made):
        def call_it(*given, **named):
            (lock,) = (home / "locks/folders").iterdir()
            seen.append(try_lock(lock))
            return made(*given, **named)

        return call_it

    for name in ("inner_run", "report_comparison"):
        monkeypatch.setattr(module, name, entered_by_another(getattr(module, name)))
    code, said = call(*words("bag-of-words", epsilon="8", seeds="0"))
    assert code == 0, said
    assert seen == [None] * 2


def test_an_interrupt_ends_the_command_and_the_same_command_goes_on(
    methods, words, call, tmp_path, prefect_server, monkeypatch
):
    import signal

    import bag_of_words.flow as plugin

    def interrupted(*_):
        signal.raise_signal(signal.SIGTERM)

    command = words("bag-of-words", epsilon="8", seeds="0")
    with monkeypatch.context() as patch:
        patch.setattr(plugin, "evaluate", interrupted)
        code, said = call(*command)
    assert code == 128 + signal.SIGTERM, said
    assert "goes on from here" in said
    assert not (tmp_path / "out/report.json").exists()
    charged = Ledger.open().charges("ward")
    code, said = call(*command)
    assert code == 0, said
    assert Ledger.open().charges("ward") == charged


def test_the_python_api_gives_the_figures_as_a_table(methods, private_rows, tmp_path, prefect_server):
    asked = {"source": "ward", "methods": ["bag-of-words"], "epsilons": [1, 8], "out": tmp_path / "out"}
    options = {"label_names": {"bad": "bad", "good": "good"}, "delta": 1e-4, "samples": 12}
    found = understudy.compare(private_rows, **asked, **options)
    rows = found.figures.to_pylist()
    (row,) = (r for r in rows if (r["epsilon"], r["figure"]) == (8.0, "utility.synthetic.accuracy"))
    assert row["method"] == "bag-of-words"
    assert row["low"] <= row["mean"] <= row["high"]
    assert row["mean"] == found.metrics.values["comparison.bag-of-words-eps8.utility.synthetic.accuracy"]
    assert (row["spread"], row["seeds"]) == (None, 1)
    assert (found.missing, found.folder) == ((), tmp_path / "out")
    assert Ledger.open().spent("ward") == (9.0, 2e-4)
    assert understudy.load_comparison(tmp_path / "out").figures.equals(found.figures)
    with pytest.raises(InputError, match="earlier comparison"):
        understudy.compare(private_rows, **asked | {"out": tmp_path}, **options)


def test_what_is_missing_is_named_with_the_reason():
    from understudy.runs.comparisons.report import Compared, complete_comparison

    result = Compared(report="r", runs=3, missing={"a": "one", "b": "two"})
    with pytest.raises(ComparisonIncomplete, match=r"2 of 3 runs .* a: one; and 1 more"):
        complete_comparison(result)
    with pytest.raises(UnderstudyError, match=r"no run has results.* a: one"):
        complete_comparison(result.model_copy(update={"runs": 2}))

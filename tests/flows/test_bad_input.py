"""Every line of the design's list of bad input, through the command line: message, exit code, nothing changed."""

import errno
import json
import math
import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from stored_state import state_of

from understudy.data import tables
from understudy.errors import BudgetRefused, InputError, UnderstudyError
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.runs.overrides import apply_overrides
from understudy.runs.split import LABELS_DISCLOSED

pytestmark = pytest.mark.usefixtures("one_encoder", "one_load_of_a_model")


@pytest.fixture
def options(tmp_path, data, random_model_folder):
    """The options of a run that is right, as words; tests replace some of them."""

    def make(given: dict[str, object]) -> list[object]:
        options: dict[str, object] = {
            "data": data,
            "source": "ward",
            "epsilon": 3,
            "budget": "8,0.015",
            "model": random_model_folder,
            "label-names": "bad=bad,good=good",
            "out": tmp_path / "out",
        }
        options |= {name.replace("_", "-"): value for name, value in given.items()}
        return [word for name, value in options.items() if value is not None for word in (f"--{name}", value)]

    return make


@pytest.fixture
def words(options):
    """A run of conditional generation."""

    def make(**given: object) -> list[object]:
        return [
            "run",
            "conditional-generation",
            *options(given),
            "--set",
            "train.max_length=24",
            "--set",
            "generate.sampling.max_new_tokens=12",
        ]

    return make


def write(tmp_path, table: dict) -> object:
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table(table), path)
    return path


GOOD = {"text": ["a fine text"] * 60, "label": ["good", "bad"] * 30}


def bad_rows(**columns):
    return {**GOOD, **columns}


CASES = {
    "missing file": ({"data": "nowhere.parquet"}, None, "nowhere.parquet"),
    "missing text column": ({"text_column": "review"}, None, "review"),
    "missing label column": ({"label_column": "stars"}, None, "stars"),
    "empty table": ({}, {"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}, "row"),
    "null text": ({}, bad_rows(text=["a fine text"] * 7 + [None] + ["a fine text"] * 52), "row 7"),
    "text that is not a string": ({}, bad_rows(text=list(range(60))), "text"),
    "one declared label": ({"label_names": "good=good"}, None, "two"),
    "label outside the declared list": ({"label_names": "good=good,sad=sad"}, None, "row 1"),
    "label name that comes twice": ({"label_names": "good,good,bad"}, None, "--label-names: expected each value once"),
    "labels with the same tokens": ({"label_names": "good=good,bad=good "}, None, "two distinct names"),
    "label name that no figure can hold": (
        {"label_names": "good=good,bad=b\x01d"},
        None,
        "control character in name 2",
    ),
    "no samples": ({"samples": 0}, None, "--samples 0: "),
    "model that is called a number": ({"model": 2024}, None, "2024"),
    "epsilon 0": ({"epsilon": 0}, None, "--epsilon 0"),
    "epsilon below 0": ({"epsilon": -1}, None, "--epsilon -1"),
    "epsilon nan": ({"epsilon": "nan"}, None, "--epsilon nan"),
    "delta 1/n": ({"delta": 0.05}, None, "1/n"),
    "epsilon that no accountant bears": ({"epsilon": "1e5"}, None, "--epsilon 100000: expected at most 100"),
    "epsilon near the largest float": ({"epsilon": "1e308"}, None, "--epsilon 1e+308: expected at most 100"),
    "epsilon near the least float": ({"epsilon": "1e-300"}, None, "--epsilon 1e-300: expected at least 0.0001"),
    "no label names": ({"label_names": None}, None, "--label-names VALUE=NAME,..."),
    "fewer units than rows": ({"units": 59}, None, "--units 59: found 60 rows"),
    "no units": ({"units": 0}, None, "--units 0: "),
    "units beyond any table": ({"units": 10**12}, None, "--units 1000000000000: "),
    "empty path": ({"data": ""}, None, "--data: expected a path"),
    "empty path to measure on": ({"test": ""}, None, "--test: expected a path"),
    "empty folder": ({"out": ""}, None, "--out: expected a path"),
    "path of 5,000 characters": ({"data": "x" * 5000}, None, "--data: expected"),
    "path of 5,000 characters to measure on": ({"test": "x/" * 2500}, None, "--test: expected"),
    "folder of 5,000 characters": ({"out": "/tmp/" + "x" * 5000}, None, "--out: expected"),
    "folder with a long name": ({"out": "/tmp/" + "x" * 300}, None, "--out: expected names of at most 255 bytes"),
    "path of several lines": ({"data": "a\nb"}, None, "--data: expected"),
    "home of nobody": ({"out": "~no-such-user-here/out"}, None, "--out: expected the home folder"),
    "no source": ({"source": None}, None, "--source"),
    "malformed budget": ({"budget": "8"}, None, "--budget 8"),
    "budget with a delta of 1/n": ({"budget": "8,0.02"}, None, "--budget: expected a delta below 1/n"),
    "unknown model": ({"model": "no-such/model-at-all"}, None, "understudy models get no-such/model-at-all"),
    "model of the profile": ({"profile": "paper", "model": None}, None, "--profile paper chose the model: unknown"),
    "digest of another model": ({"set": "model_digest=abc"}, None, "--set model_digest='abc': expected that of model="),
    "named model that was not fetched": (
        {"model": "smollm2-135m-instruct"},
        None,
        "understudy models get smollm2-135m-instruct",
    ),
    "unknown setting": ({"set": "train.speed=9"}, None, "train.speed"),
    "setting out of bounds": ({"set": "train.epochs=-1"}, None, "train.epochs"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_in_one_line_and_changes_nothing(name, call, words, tmp_path, home):
    given, rows, expected = CASES[name]
    options = dict(given)
    if rows is not None:
        options["data"] = write(tmp_path, rows)
    code, said = call(*words(**options))
    assert code == 2, said
    lines = [line for line in said.splitlines() if line.startswith("understudy:")]
    assert len(lines) == 1, said
    assert expected in lines[0]
    assert "fine text" not in said, "a private text was shown"
    assert state_of(home)[0] == []
    assert state_of(home)[1] == []
    assert not (tmp_path / "out").exists()


def damaged(folder, damage: str):
    """A copy of the base model that a charge must not meet."""
    weights = folder / "model.safetensors"
    config = json.loads((folder / "config.json").read_text())
    if damage == "truncated weights":
        weights.write_bytes(weights.read_bytes()[:-500])
    elif damage == "empty weights":
        weights.write_bytes(b"")
    elif damage == "weights with nan":
        tensors = load_file(weights)
        tensors["transformer.ln_f.bias"] = torch.full_like(tensors["transformer.ln_f.bias"], torch.nan)
        save_file(tensors, weights, metadata={"format": "pt"})
    else:
        config |= {"another width": {"n_embd": 32}, "further layers": {"n_layer": 3}, "odd heads": {"n_head": 3}}[
            damage
        ]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


DAMAGES = ["truncated weights", "empty weights", "weights with nan", "another width", "further layers", "odd heads"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_base_model_is_refused_before_anything_is_charged(
    damage, call, words, home, tmp_path, random_model_folder
):
    folder = damaged(Path(shutil.copytree(random_model_folder, tmp_path / "base")), damage)
    code, said = call(*words(model=folder))
    assert code == 2, said
    (line,) = [line for line in said.splitlines() if line.startswith("understudy:")]
    assert "model='base'" in line
    assert state_of(home) == ([], [])
    assert not (tmp_path / "out").exists()


SURROUNDINGS = {
    "out that cannot be made": ({}, {"out": "/proc/understudy/out"}, "--out /proc/understudy/out"),
    "tracking file that is none": ({"UNDERSTUDY_MLFLOW_URI": "sqlite:////proc/self/status"}, {}, "MLFLOW_URI"),
    "tracking server that is away": ({"UNDERSTUDY_MLFLOW_URI": "http://127.0.0.1:9"}, {}, "MLFLOW_URI"),
    "Prefect server that is away": ({"PREFECT_API_URL": "http://127.0.0.1:9/api"}, {}, "PREFECT_API_URL"),
    "exchange store without a driver": ({"UNDERSTUDY_EXCHANGE": "nosuch://bucket"}, {}, "UNDERSTUDY_EXCHANGE"),
    "CUDA that is not there": ({"UNDERSTUDY_DEVICE": "cuda", "UNDERSTUDY_DEVICES": "99"}, {}, "CUDA device 99"),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_surroundings_that_fail_are_refused_before_anything_is_charged(name, call, words, home, tmp_path, monkeypatch):
    environment, options, expected = SURROUNDINGS[name]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    code, said = call(*words(**options))
    assert code == 2, said
    (line,) = [line for line in said.splitlines() if line.startswith("understudy:")]
    assert expected in line
    assert state_of(home)[0] == []
    assert not (tmp_path / "out").exists()


def test_the_doctor_finds_what_a_run_would_be_refused_for(call, home, monkeypatch):
    code, said = call("doctor", "--json")
    assert code == 0, said
    for name in SURROUNDINGS.keys() - {"out that cannot be made"}:
        with monkeypatch.context() as patch:
            for variable, value in SURROUNDINGS[name][0].items():
                patch.setenv(variable, value)
            code, said = call("doctor", "--json")
        assert code == 1, name
        assert [check["ok"] for check in json.loads(said[: said.rindex("]") + 1])].count(False) == 1, name


MATCHING_CASES = {
    "verbalisers with one first token": ('verbalizer.words={"bad":"lovely","good":"lovely ward"}', "same token"),
    "word for an unknown label": ('verbalizer.words={"bad":"bad","good":"good","sad":"sad"}', "unknown labels ['sad']"),
    "label without a word": ('verbalizer.words={"bad":"bad"}', "none for ['good']"),
    "word without a token": ('verbalizer.words={"bad":" ","good":"good"}', "has no token"),
    "template without a token": ("verbalizer.template=", "verbalizer.template"),
    "text beyond the context": ("max_length=64", "max_length=64: the model has 64 positions"),
    "instruction beyond the context": ("max_length=56", "projection.instruction"),
    "k above the allowed tokens": ("projection.k=1000000", "projection.k=1000000"),
    "k of 0": ("projection.k=0", "projection.k=0"),
    "length 0": ("length=0", "length=0"),
    "length above the tokens that are read": ("length=25", "length=25"),
    "length neither number nor word": ("length=long", "length"),
    "clip norm nan": ("target.l2_clip_norm=NaN", "target.l2_clip_norm"),
    "example of an unknown label": ('filter.examples={"sad":["a grey day"]}', "filter.examples names ['sad']"),
    "examples beyond the context": (
        'filter.examples={"bad":["rain and rain again"],"good":["%s"]}' % ("sun " * 30),
        "filter.examples: 2 examples",
    ),
    "setting of another method": ("train.epochs=2", "train.epochs"),
}


@pytest.mark.parametrize("name", MATCHING_CASES)
def test_bad_settings_of_gradient_matching_are_refused_in_one_line_and_change_nothing(name, refuse_matching):
    setting, expected = MATCHING_CASES[name]
    assert expected in refuse_matching({}, setting)


@pytest.mark.parametrize("epsilon", ["0", "nan", "-1"])
def test_gradient_matching_refuses_an_epsilon_that_is_none(epsilon, refuse_matching):
    assert f"--epsilon {epsilon}" in refuse_matching({"epsilon": epsilon})


@pytest.fixture
def refuse_matching(call, options, data, tmp_path, home, private_rows):
    """Run gradient matching on what it must refuse; gives the one line that it says."""

    def run(given: dict[str, object], *settings: str) -> str:
        sets = [word for setting in ("max_length=24", "length=6", *settings) for word in ("--set", setting)]
        code, said = call("run", "gradient-matching", *options(given), *sets)
        assert code == 2, said
        (line,) = [line for line in said.splitlines() if line.startswith("understudy:")]
        assert not any(text in said for text in private_rows["text"].to_pylist())
        assert state_of(home) == ([], [])
        assert not (tmp_path / "out").exists()
        return line

    return run


@pytest.mark.parametrize("depth", [900, 2_000, 100_000])
def test_deeply_nested_rows_are_refused_in_one_line(depth, call, words, tmp_path, home):
    path = tmp_path / "deep.jsonl"
    rows = ['{"text": "fine text", "label": "good"}'] * 20
    path.write_text("\n".join([*rows, '{"text": ' + "[" * depth + "]" * depth + ', "label": "good"}']))
    code, said = call(*words(data=path))
    assert code == 2, said
    (line,) = said.splitlines()
    assert "row 20" in line
    assert "fine text" not in line
    assert state_of(home) == ([], [])


def test_rows_to_measure_on_are_not_those_of_the_training(call, words, tmp_path, home, data, private_rows):
    pq.write_table(private_rows.take(list(range(59, -1, -1))), tmp_path / "reversed.parquet")
    (tmp_path / "link.parquet").symlink_to(data)
    pq.write_table(private_rows.slice(7, 20), tmp_path / "part.parquet")
    for test in (data, *(tmp_path / f"{name}.parquet" for name in ("link", "reversed", "part"))):
        code, said = call(*words(test=test))
        assert code == 2, said
        assert said.count("\n") == 1
        assert "--test: " in said
        assert "the rows of --data" in said
    assert state_of(home) == ([], [])


def test_evaluate_refuses_the_same_rows_as_seen_and_never_seen(call, tmp_path, data, private_rows):
    pq.write_table(private_rows.take(list(range(59, -1, -1))), tmp_path / "reversed.parquet")
    pq.write_table(private_rows.slice(7, 20), tmp_path / "part.parquet")
    for test in (data, tmp_path / "reversed.parquet", tmp_path / "part.parquet"):
        given = {"synthetic": data, "real": data, "test": test}
        code, said = call("evaluate", "--out", tmp_path / "out", *(w for n, v in given.items() for w in (f"--{n}", v)))
        assert (code, said.count("\n")) == (2, 1), said
        assert "--test: " in said
        assert "the rows of --real" in said


def test_evaluate_refuses_a_place_for_its_report_before_it_reads_a_table(call, tmp_path):
    (tmp_path / "taken").write_text("a file")
    for out, found in ((tmp_path / "taken", "Not a directory"), (tmp_path / ("x" * 300), "at most 255 bytes")):
        code, said = call(
            "evaluate", "--out", out, "--synthetic", "none.csv", "--real", "none.csv", "--test", "none.csv"
        )
        assert (code, said.count("\n")) == (2, 1), said
        assert said.startswith("understudy: --out")
        assert found in said
    assert (tmp_path / "taken").read_text() == "a file"


@pytest.mark.parametrize("option", ["out", "synthetic", "text-column", "label-column"])
def test_evaluate_takes_no_empty_text_for_the_working_folder_or_for_a_default(option, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"out": "out", "synthetic": "none.csv", "real": "none.csv", "test": "none.csv"} | {option: ""}
    code, said = call("evaluate", *(word for name, value in given.items() for word in (f"--{name}", value)))
    assert (code, said.count("\n")) == (2, 1), said
    assert f"--{option}: expected a path or a name" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["a" * 300, "a/" * 3000])
def test_lineage_refuses_what_can_be_neither_a_path_nor_an_id(what, call):
    code, said = call("lineage", what)
    assert (code, said.count("\n")) == (2, 1), said
    assert f"a text of {len(what)} characters" in said
    assert "give the id" in said


@pytest.mark.parametrize("option", ["synthetic", "real", "test"])
def test_evaluate_refuses_a_path_that_no_file_can_have(option, call, tmp_path, data):
    given = {"synthetic": data, "real": data, "test": data} | {option: "x" * 5000}
    code, said = call("evaluate", "--out", tmp_path / "out", *(w for n, v in given.items() for w in (f"--{n}", v)))
    assert code == 2, said
    assert said.count("\n") == 1
    assert f"--{option}: expected a path" in said


@pytest.mark.parametrize("option", ["synthetic", "real", "test"])
def test_evaluate_says_which_table_has_no_labels_and_that_it_needs_them(option, call, tmp_path, data):
    pairs = write(tmp_path, {"instruction": ["a fine text"], "response": ["zibby"]})
    test = shutil.copy(data, tmp_path / "test.parquet")
    given = {"synthetic": data, "real": data, "test": test} | {option: pairs}
    code, said = call("evaluate", "--out", tmp_path / "out", *(w for n, v in given.items() for w in (f"--{n}", v)))
    assert (code, said.count("\n")) == (2, 1), said
    assert f"--{option} {pairs}: " in said
    assert "labelled texts" in said
    assert "zibby" not in said


def test_a_rare_label_is_neither_read_nor_shown(call, words, tmp_path, home):
    labels = [*(["good", "bad"] * 29), "good", "zibby disease"]
    code, said = call(*words(data=write(tmp_path, bad_rows(label=labels)), label_names=None))
    assert code == 2
    assert "--label-names VALUE=NAME" in said
    assert "zibby" not in said
    assert state_of(home) == ([], [])


def test_labels_from_the_data_are_published_only_when_asked_for_and_that_is_said(call, words, tmp_path, data):
    from understudy.privacy.ledger.ledger import Ledger

    code, said = call(*words(label_names=None), "--labels-from-data", "--dry-run")
    assert code == 0, said
    assert LABELS_DISCLOSED in " ".join(said.split())
    code, said = call(*words(), "--dry-run")
    assert code == 0, said
    assert LABELS_DISCLOSED not in " ".join(said.split())
    assert Ledger.open().sources() == ()


def test_a_run_says_that_a_misspelt_variable_changes_nothing(words, call, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_HOMEE", "/elsewhere")
    code, said = call(*words(), "--dry-run")
    assert code == 0, said
    assert "note: UNDERSTUDY_HOMEE: " in said
    assert "the nearest is UNDERSTUDY_HOME;" in said


@pytest.mark.slow
def test_what_is_chosen_on_own_texts_is_said_once_because_it_can_take_minutes(words, call):
    asked = [*words(), "--set", "train.learning_rate=auto", "--set", "train.l2_clip_norm=auto", "--dry-run"]
    code, said = call(*asked)
    assert code == 0, said
    assert said.count("choosing clip norm and learning rate on texts that the model itself writes") == 1, said
    code, said = call(*asked)
    assert (code, "note: choosing" in said) == (0, False), said


def test_bad_encoding_names_the_place_and_not_the_text(call, words, tmp_path, home):
    path = tmp_path / "latin.csv"
    path.write_bytes("text,label\nfine text,good\ncaf\xe9,bad\n".encode("latin-1"))
    code, said = call(*words(data=path))
    assert code == 2
    assert "latin.csv" in said
    assert "UTF-8" in said
    assert "caf" not in said
    assert state_of(home)[1] == []


def test_the_first_row_of_a_file_without_a_header_is_not_shown(call, words, tmp_path, home):
    for name, content in {
        "one": "Zibby was diagnosed on Monday,1\na fine text,0\n",
        "twice": "Zibby was diagnosed on Monday,1,1\na fine text,0,1\n",
    }.items():
        path = tmp_path / f"{name}.csv"
        path.write_text(content)
        code, said = call(*words(data=path))
        assert (code, said.count("\n")) == (2, 1), said
        assert "header line" in said or "first line of a CSV file" in said
        assert "Zibby" not in said
    assert state_of(home) == ([], [])


@pytest.mark.parametrize(("suffix", "hint"), [("csv", "CSV"), ("jsonl", "JSONL"), ("parquet", None)])
def test_a_wrong_column_name_is_answered_for_the_format_of_the_file(suffix, hint, call, words, tmp_path, home):
    path = tmp_path / f"rows.{suffix}"
    if suffix == "csv":
        path.write_text("text,label\nfine,good\n")
    elif suffix == "jsonl":
        path.write_text('{"text": "fine", "label": "good"}\n')
    else:
        pq.write_table(pa.table({"text": ["fine"], "label": ["good"]}), path)
    code, said = call(*words(data=path, text_column="words"))
    assert (code, said.count("\n")) == (2, 1), said
    assert "--text-column" in said
    assert re.findall("CSV|JSONL", said) == ([hint] if hint else []), said
    assert state_of(home) == ([], [])


@pytest.mark.parametrize(("epsilon", "wanted"), [(3, True), (9, False)])
def test_a_default_delta_that_does_not_fit_is_named_with_the_way_out(epsilon, wanted, call, words, home):
    code, said = call(*words(epsilon=epsilon, budget="8,1e-5" if wanted else "8,0.015"))
    assert code == 3, said
    assert ("the default 1/(n ln n)" in said, "--delta D, of at most 1e-05" in said) == (wanted, wanted)
    code, said = call(*words(epsilon=epsilon, budget="8,1e-5", delta="1e-4"))
    assert (code, "the default" in said) == (3, False), said
    assert state_of(home)[0] == []


def test_a_budget_that_is_exceeded_is_refused_with_exit_code_3(call, words, home):
    code, said = call(*words(epsilon=9))
    assert code == 3
    assert "9" in said
    assert state_of(home)[0] == []


def test_a_budget_that_is_exceeded_is_refused_before_anything_is_chosen_for_the_model(call, words, home):
    code, said = call(*words(epsilon=9), "--set", "train.learning_rate=auto", "--set", "train.l2_clip_norm=auto")
    assert (code, "note: choosing" in said) == (3, False), said
    assert list((home / "private/results").iterdir()) == []


def test_a_charge_that_just_fits_does_not_look_larger_than_its_budget(request_of, home):
    """delta=0.00175 was announced as charged of a budget of 0.00174065, which was the very same number."""
    from understudy.flows.commands.run import price
    from understudy.runs.registration import registered

    plan = registered(request_of(delta=0.00174065, epsilon=3.0, budget=None), "conditional-generation")
    assert plan.budget.delta == plan.delta
    said = price(plan, is_charged=False, accepts_new=False)
    assert "delta=0.00175 for one example" in said
    assert "of a budget of 3, 0.00175;" in said


def test_a_charged_run_is_not_refused_for_the_budget_that_it_used_up(request_of, home):
    """With --accept-new-charge it was, though a run that pays for itself goes on under its own charge."""
    from understudy.flows.commands.run import price
    from understudy.runs.registration import registered
    from understudy.runs.request import Budget
    from understudy.runs.validation import validate
    from understudy.tasks.charging import charge

    request, method = request_of(budget=Budget(epsilon=3, delta=0.01)), "conditional-generation"
    plan = registered(request, method)
    receipt = charge.fn(plan, environment={"code": "0" * 64}, accept_new=False)
    again = validate(request.model_copy(update={"accept_new_charge": True}), method)
    assert again.is_charged
    # Before the flow begins nobody knows whether the charge can still be used: it may be refused under this line.
    with pytest.raises(UnderstudyError, match="--accept-new-charge"):
        charge.fn(plan, environment={"code": "1" * 64}, accept_new=False)
    said = price(again.plan, is_charged=True, accepts_new=False)
    assert "nothing more is charged" in said
    assert "if code or machine changed" in said
    assert "--accept-new-charge" in said
    assert "only if code or machine changed" in price(again.plan, is_charged=True, accepts_new=True)
    assert charge.fn(plan, environment={"code": "0" * 64}, accept_new=True) == receipt
    with pytest.raises(BudgetRefused, match="left epsilon=0"):
        charge.fn(plan, environment={"code": "1" * 64}, accept_new=True)
    with pytest.raises(BudgetRefused, match="left epsilon=0"):
        validate(request.model_copy(update={"accept_new_charge": True, "epsilon": 2.0}), method)


@pytest.mark.parametrize(("theirs", "charges"), [("1" * 64, 2), ("2" * 64, 3)], ids=["same code", "other code"])
def test_who_pays_again_while_another_process_does_shares_a_charge_for_the_same_code_only(
    request_of, home, monkeypatch, theirs, charges
):
    """Each paid; and one that was handed the charge of other code ended in an error."""
    from understudy.privacy.ledger.ledger import Ledger
    from understudy.runs.registration import registered
    from understudy.runs.request import Budget
    from understudy.tasks.charging import charge

    request, method = request_of(delta=0.002, budget=Budget(epsilon=12, delta=0.01)), "conditional-generation"
    plan = registered(request, method)
    first = charge.fn(plan, environment={"code": "0" * 64}, accept_new=False)
    # Of another home: in this one the two would take turns.
    elsewhere, reserve, other = charge.fn.__wrapped__, Ledger.reserve, []

    def overtaken(ledger, *, instead_of=None, **fields):
        if instead_of == first.charge_id and not other:
            other.append(None)
            other[0] = elsewhere(plan, environment={"code": theirs}, accept_new=True)
        return reserve(ledger, instead_of=instead_of, **fields)

    monkeypatch.setattr(Ledger, "reserve", overtaken)
    ours = charge.fn(plan, environment={"code": "1" * 64}, accept_new=True)
    assert (ours == other[0]) == (charges == 2)
    assert len({each.charge_id for each in (first, other[0], ours)}) == charges
    assert len(Ledger.open().charges()) == charges


@pytest.mark.parametrize("is_registered", [False, True])
@pytest.mark.parametrize("moment", ["source_record", "check_budget", "before_charge"])
def test_a_run_that_another_process_charges_meanwhile_is_not_refused_for_its_own_charge(
    request_of, home, monkeypatch, moment, is_registered
):
    """Two deployment runs of one request: the second was refused the budget that the first had just taken for both."""
    from understudy.privacy.ledger.ledger import Ledger
    from understudy.runs import validation
    from understudy.runs.registration import registered
    from understudy.runs.request import Budget
    from understudy.tasks.charging import charge

    request, method = request_of(budget=Budget(epsilon=3, delta=0.01)), "conditional-generation"
    if is_registered:
        registered(request, method)
    plain = getattr(validation, moment)

    def meanwhile(*given, **named):
        monkeypatch.setattr(validation, moment, plain)
        charge.fn(registered(request, method), environment={"code": "0" * 64}, accept_new=False)
        return plain(*given, **named)

    monkeypatch.setattr(validation, moment, meanwhile)
    other = request.model_copy(update={"out": f"{request.out}-other"})
    receipt = charge.fn(registered(other, method), environment={"code": "0" * 64}, accept_new=False)
    (only,) = Ledger.open().charges(request.source)
    assert only.id == receipt.charge_id


def test_rows_of_another_source_are_refused(call, words, home, data, tmp_path):
    from understudy.runs.registration import registered
    from understudy.runs.request import Budget, RunRequest

    given = {str(w).removeprefix("--"): v for w, v in zip(words()[2:-4:2], words()[3:-4:2], strict=True)}
    registered(
        RunRequest(
            data=str(data),
            source="first",
            epsilon=3,
            out=str(tmp_path / "out"),
            model=str(given["model"]),
            label_names={"bad": "bad", "good": "good"},
            budget=Budget(epsilon=8, delta=0.015),
            overrides=("train.max_length=24", "generate.sampling.max_new_tokens=12"),
        ),
        "conditional-generation",
    )
    before = state_of(home)
    code, said = call(*words(source="second"))
    assert code == 2
    assert "'first'" in said
    assert "row 0" in said
    assert state_of(home) == before


def test_rows_to_measure_on_of_another_source_are_refused(call, words, home, data, tmp_path):
    """They would be stored and measured as this source's, and a purge of their own would leave them there."""
    texts = [f"visitor {i} asked the way to pier {i % 7} and the {'red' if i % 2 else 'blue'} boat" for i in range(60)]
    own = tmp_path / "own.parquet"
    pq.write_table(pa.table({"text": texts, "label": ["bad", "good"] * 30}), own)
    rows = tables.check_labelled(
        tables.read_source(str(data)), tables.LabelledColumns(label_names=("bad", "good")), null_records=True
    ).table
    record = SourceRecord(name="first", unit="example", relation="replace_special", epsilon=8, delta=0.01, n=60)
    Ledger.open().register(record, tables.row_digests(rows))
    before = state_of(home)
    code, said = call(*words(source="second", data=own, test=data))
    assert code == 2
    assert re.search(r"--test: row 0 .* registered under 'first' already.*understudy evaluate", said)
    assert state_of(home) == before


def test_what_is_wrong_with_rows_is_not_told_to_prefect(request_of, data, tmp_path, home, prefect_server):
    """A worker validates inside of the flow, whose error text the server keeps."""
    from understudy.flows.conditional_generation import conditional_generation
    from understudy.runs.registration import registered
    from understudy.settings import prepare_environment

    prepare_environment()
    rows = pq.read_table(data)
    labels = rows["label"].to_pylist()
    path = tmp_path / "bad.parquet"
    wrong = {
        "row 37: ": (rows.set_column(1, "label", [[*labels[:37], "zibby", *labels[38:]]]), {}),
        "found 53 rows": (rows.slice(0, 53), {"units": 52}),
        "found an empty table": (rows.slice(0, 0), {}),
        "row 0 of source='other' is registered": (rows, {"source": "other"}),
    }
    registered(request_of(), "conditional-generation")
    for told, (table, given) in wrong.items():
        pq.write_table(table, path)
        state = conditional_generation(request_of(**{"data": str(path), "source": "new"} | given), return_state=True)
        assert state.is_failed()
        assert "validate" in state.message
        assert "RowError" in state.message
        assert not re.search(r"\b(37|53|row 0|empty)\b|zibby", re.sub(r"/\S+|\w+\.py:\d+", "", state.message)), (
            state.message
        )
        (kept,) = (home / "private/failures").iterdir()
        assert told in kept.read_text()
        kept.unlink()


def test_a_store_that_cannot_be_written_is_refused(call, words, home, tmp_path, monkeypatch):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the store should be")
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", str(blocked / "exchange"))
    code, said = call(*words())
    assert code == 2
    assert "UNDERSTUDY_EXCHANGE" in said


def test_a_ledger_that_cannot_be_written_is_refused(call, words, home, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_LEDGER_URL", f"sqlite:///{tmp_path}/no/such/folder/ledger.db")
    code, said = call(*words())
    assert code in (1, 2)
    assert "ledger" in said


def test_a_lost_secret_is_refused_with_the_id_of_its_key(call, words, home):
    from understudy.privacy.ledger.ledger import Ledger

    Ledger.open()
    (home / "secret").unlink()
    code, said = call(*words())
    assert code == 1
    assert "secret" in said
    assert "key" in said


def test_a_layer_without_per_example_gradients_is_named(call, words, tmp_path, monkeypatch):
    from understudy.privacy.dpsgd import layers

    monkeypatch.setattr(layers, "_CONV1D", "a class that is not there")
    code, said = call(*words(), "--set", "lora.rank=0")
    assert code == 2
    assert "c_attn" in said
    assert "LoRA" in said


@pytest.mark.slow
def test_a_tokenizer_without_pad_token_is_handled_and_said(call, words, random_model_folder, tmp_path):
    folder = tmp_path / "no-pad"
    shutil.copytree(random_model_folder, folder)
    for name in ("tokenizer_config.json",):
        settings = json.loads((folder / name).read_text())
        settings.pop("pad_token", None)
        (folder / name).write_text(json.dumps(settings))
    code, said = call(*words(model=folder), "--dry-run")
    assert code == 0, said
    assert "pad" in said


def test_an_out_folder_with_other_files_is_refused(call, words, tmp_path, home):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    code, said = call(*words())
    assert code == 2
    assert "thesis.txt" in said
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("there", "epsilon", "expected"),
    [("thesis.txt", 3.0, "an empty folder"), ("export", math.inf, "exports nothing")],
)
def test_a_worker_refuses_an_unfit_folder_before_anything_is_charged(
    there, epsilon, expected, request_of, tmp_path, home, prefect_server
):
    from understudy.flows.conditional_generation import conditional_generation

    (tmp_path / "out" / there).mkdir(parents=True)
    with pytest.raises(InputError, match=expected):
        conditional_generation(request_of(epsilon=epsilon))
    assert state_of(home) == ([], [])
    assert [path.name for path in (tmp_path / "out").iterdir()] == [there]


def test_a_worker_refuses_a_folder_that_goes_with_the_run(request_of, home, prefect_server, monkeypatch):
    """A worker starts each run in a temporary folder; a relative --out was charged for, written there and lost."""
    from understudy.flows.conditional_generation import conditional_generation

    # How Prefect lets a test stand for a deployment's run.
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a-deployment")
    with pytest.raises(InputError, match="out=out/mine: expected an absolute path"):
        conditional_generation(request_of(out="out/mine"))
    assert state_of(home) == ([], [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UNDERSTUDY_HOME", "whome"),
        ("UNDERSTUDY_EXCHANGE", "exchange"),
        ("UNDERSTUDY_MLFLOW_URI", "sqlite:///mlflow.db"),
    ],
)
def test_a_worker_refuses_a_place_that_goes_with_the_run(name, value, request_of, home, prefect_server, monkeypatch):
    """Each run had a ledger of its own, in which the budget was unspent."""
    from understudy.flows.conditional_generation import conditional_generation

    request = request_of()
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a-deployment")
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"{name}={value.removeprefix('sqlite:///')}: expected an absolute path"):
        conditional_generation(request)
    assert not list(Path.cwd().glob("**/ledger*"))
    assert state_of(home) == ([], [])


def test_a_worker_that_was_told_of_no_home_begins_no_ledger(request_of, tmp_path, prefect_server, monkeypatch):
    """It did, in the user's home folder, and what the source had spent elsewhere was not known there."""
    from understudy.flows.conditional_generation import conditional_generation

    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a-deployment")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("UNDERSTUDY_HOME")
    request = request_of(out=str(tmp_path / "out"))
    with pytest.raises(InputError, match=r"\.understudy, and a worker does not begin one.*UNDERSTUDY_HOME"):
        conditional_generation(request)
    assert not list((tmp_path / ".understudy").glob("ledger*"))
    assert not list((tmp_path / ".understudy").glob("secret*"))

    monkeypatch.setenv("UNDERSTUDY_LEDGER_URL", f"sqlite:///{tmp_path / 'mine.db'}")
    with pytest.raises(InputError, match="no-such"):
        conditional_generation(request.model_copy(update={"data": str(tmp_path / "no-such.parquet")}))


@pytest.mark.parametrize(
    ("words", "handler", "goes_on"),
    [
        (("run", "conditional-generation", "--data", "rows.csv", "--out", "out"), "run.run", True),
        (("purge", "--source", "ward"), "housekeeping.purge", True),
        (("doctor",), "housekeeping.doctor", False),
        (("report", "run"), "finished.report", False),
        (("ledger", "show", "run"), "ledger.ledger_show", False),
    ],
)
def test_a_full_disk_is_told_in_one_line_with_what_to_do(words, handler, goes_on, call, monkeypatch):
    def full(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/out/export")

    monkeypatch.setattr(f"understudy.flows.commands.{handler}", full)
    code, said = call(*words)
    assert code == 1
    assert said.count("\n") == 1
    assert "No space left on device" in said
    assert "/out/export: expected" in said
    assert "run the same command again" in said
    assert ("goes on from here" in said) is goes_on


def test_a_long_text_is_cut_and_the_count_stays_inside(call, words, tmp_path):
    path = write(tmp_path, bad_rows(text=["a fine text " * 100] * 60))
    code, said = call(*words(data=path), "--dry-run")
    assert code == 0, said


REGISTER = ["ledger", "register", "ward", "--budget", "8,0.01"]


@pytest.mark.parametrize("option", ["data", "model", "out"])
def test_what_may_not_be_read_is_told_as_wrong_input(option, words, call, home, tmp_path, monkeypatch):
    place = tmp_path / "closed" / "inner.csv"
    stat = os.stat

    def denied(path, *given, **options):
        if str(path).startswith(str(place)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *given, **options)

    monkeypatch.setattr(os, "stat", denied)
    code, said = call(*words(**{option: place}), "--dry-run")
    assert (code, said.count("\n")) == (2, 1), said
    assert f"{place}: " in said
    assert "Permission denied; fix" in said
    assert state_of(home) == ([], [])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rows", 60, "--label-names", "bad"], "two distinct names"),
        (["--rows", 60, "--label-names", ","], "two distinct names"),
        (["--rows", 60, "--label-names", "bad,bad"], "two distinct names"),
        (["--rows", 60, "--label-names", "good,good,bad"], "found 2 different among 3"),
        (["--rows", 60, "--label-names", "0=bad,good"], "VALUE=NAME for every label"),
        (["--rows", 60, "--label-names", "good,b\x01d"], "control character in name 2"),
        (["--rows", 0], "--rows 0: "),
        (["--rows", 60, "--composition", "max"], "--composition max: "),
        (["--rows", 60, "--budget", "8,1e-12"], "--budget 8,1e-12: expected at least 0.0001,1e-09"),
        (["--rows", 60, "--budget", "1e-9,0.01"], "--budget 1e-9,0.01: expected at least 0.0001,1e-09"),
    ],
)
def test_a_source_that_no_run_could_use_is_not_registered_for_ever(words, expected, call, home):
    code, said = call(*REGISTER, *words)
    assert (code, said.count("\n")) == (2, 1), said
    assert expected in said
    assert state_of(home) == ([], [])


@pytest.mark.parametrize("given", ["bad,good", "0=bad,1=good"])
def test_a_source_is_registered_with_names_and_not_with_pairs(given, call):
    from understudy.privacy.ledger.ledger import Ledger

    code, said = call(*REGISTER, "--rows", 60, "--label-names", given)
    assert code == 0, said
    assert Ledger.open().source("ward").label_names == ("bad", "good")


def test_further_texts_are_not_drawn_for_a_folder_that_is_not_there(call, tmp_path):
    (tmp_path / "export").mkdir()
    statement = {"method": "conditional-generation", "ledger_entries": []}
    (tmp_path / "export/statement.json").write_text(json.dumps(statement))
    code, said = call("generate", "--from", tmp_path, "--samples", 2, "--out", tmp_path / "nowhere/more.parquet")
    assert (code, said.count("\n")) == (2, 1), said
    assert f"found none at {tmp_path / 'nowhere'}" in said


@pytest.mark.parametrize(("source", "found"), [("w" * 200, "found 200 characters"), ("ward/7", "found 'ward/7'")])
def test_a_name_that_no_source_may_have_is_refused_with_what_it_may_be(source, found, call, words, home):
    for refused in (
        call("ledger", "register", source, "--budget", "8,1e-2", "--rows", 60),
        call(*words(source=source), "--dry-run"),
    ):
        assert (refused[0], refused[1].count("\n")) == (2, 1), refused
        assert "--source" in refused[1]
        assert "at most 100" in refused[1]
        assert found in refused[1]
        assert "w" * 101 not in refused[1]


@pytest.mark.parametrize("name", ["", " "])
def test_no_model_is_got_without_its_name(name, call, tmp_path, monkeypatch):
    """As a path it would be the working folder."""
    monkeypatch.chdir(tmp_path)
    code, said = call("models", "get", name)
    assert (code, said.count("\n")) == (2, 1), said
    assert "an empty text" in said


def test_what_has_no_package_is_not_fetched_from_one(call):
    code, said = call("models", "get", "owner/name", "--from", "package")
    assert (code, said.count("\n")) == (2, 1), said
    assert "--from package: " in said


def test_a_path_is_shown_as_it_is_and_whole(capsys):
    from understudy.flows.commands import terminal

    path = f"/tmp/o [draft]/a[/b]/{'long/' * 60}end"
    terminal.show({"export": path, "paths": [path]}, as_json=False, title="done [/b]")
    said = capsys.readouterr().out
    assert "done [/b]" in said
    assert said.count(path) == 2, said
    assert not [line for line in said.splitlines() if line != line.rstrip()], "a log has no spaces at the ends of lines"


def test_each_of_several_values_is_shown_on_a_line_of_its_own(capsys):
    from understudy.flows.commands import terminal

    record = {"mechanisms": ["class-means: gaussian", "fine-tuning: gaussian"], "statement": {"epsilon_rdp": 3.5}}
    terminal.show(record, as_json=False)
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    wanted = [["mechanisms", "class-means:", "gaussian"], ["fine-tuning:", "gaussian"]]
    assert said == [*wanted, ["statement", "epsilon", "rdp", "3.5"]]


def test_a_value_for_a_whole_section_is_told_its_parts():
    with pytest.raises(InputError, match=r"--set train=3: expected one of its parts, .*batch_size, .*epochs"):
        apply_overrides(ConditionalGenerationConfig(), ["train=3"])


COMMANDS = [[], ["ledger"], ["secret"], ["models"], ["keys"]]


@pytest.mark.parametrize("group", COMMANDS)
def test_the_list_of_commands_is_whole_in_a_narrow_terminal(group, call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, said = call(*group, "-h")
    assert code == 0
    assert "Commands:" in said
    assert "..." not in said.partition("Commands:")[2], said


def test_a_wide_terminal_gets_wide_lines_and_a_flag_that_is_off_has_no_opposite(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, said = call("run", "--help")
    assert code == 0
    assert max(map(len, said.splitlines())) > 100
    assert "--no-" not in said


def test_the_version_is_told(call):
    from importlib.metadata import version

    assert call("--version") == (0, f"understudy {version('understudy')}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run conditional-generation --data d --out o --epsilon three", "--epsilon three: expected a number, "),
        ("audit conditional-generation --data d --out o --canaries 2.5", "--canaries 2.5: expected a whole number, "),
        ("ledger register s --budget 1,0.1 --rows ten", "--rows ten: expected a whole number, "),
        ("generate --from o --samples many", "--samples many: expected a whole number, "),
        ("models get x --from there", "--from there: expected one of any, package, hub; "),
        ("run conditional-generation --data d", "--out is missing (Folder of the results"),
        ("ledger register --budget 1,0.1 --rows 9", "SOURCE is missing (Name of the source)"),
        ("runn conditional-generation", "No such command 'runn'. Did you mean 'run'?; "),
        ("ledger registr s", "No such command 'registr'. Did you mean 'register'?; "),
        ("run conditional-generation --dat d", "No such option: --dat (Possible options: --about, --data, --delta); "),
        ("report out out", "Got unexpected extra argument(s) (out); "),
        ("run conditional-generation --epsilon", "Option '--epsilon' requires an argument; "),
        ("--jsn doctor", "No such option: --jsn; "),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(words, said, call):
    code, found = call(*words.split())
    assert code == 2
    assert found.startswith(f"understudy: {said}"), found
    assert "--help" in found
    assert found.count("\n") == 1

"""Tasks of lm-evaluation-harness: one of one's own from a file, and what is refused or noted where one is missing."""

import ast
import json
import os
import subprocess
import sys

import pytest

from understudy.errors import InputError
from understudy.evaluation.answers import harness
from understudy.evaluation.answers.config import AnswersConfig
from understudy.evaluation.answers.harness import check_tasks, harness_digest, measured_by_harness


@pytest.fixture
def task(tmp_path):
    """A multiple-choice task of six questions in a file."""
    rows = [{"q": f"film {n}", "choices": ["bad", "good"], "gold": n % 2} for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = {
        "task": "own.choice",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}],
    }
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps(told))
    return path


def in_its_own_process(code, folder):
    """The last line that some code prints: the harness reads where its caches are when it is imported."""
    offline = {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | offline, capture_output=True, text=True, check=True, cwd=folder
    )
    return ast.literal_eval(ended.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_task_of_ones_own_is_checked_and_measured(task, tmp_path):
    """With the mean right answer of a model that always says the same: 3 of 6, and of the first question alone 1 or 0.

    A second task whose data are not there costs the figures, and nothing else; the global generators are not seeded.
    """
    pytest.importorskip("lm_eval")
    absent = tmp_path / "absent.yaml"
    absent.write_text(task.read_text().replace("rows.jsonl", "nowhere.jsonl").replace("own.choice", "absent"))
    code = f"""
import torch
from understudy.errors import InputError
from understudy.evaluation.answers.config import AnswersConfig
from understudy.evaluation.answers.harness import check_tasks, measured_by_harness
from understudy.models.loading import load_model
base = load_model("tiny-llama")
own = AnswersConfig(harness_tasks=({str(task)!r},))
check_tasks(own)
before = torch.random.get_rng_state()
whole = measured_by_harness(base.model, base.tokenizer, own)
kept = bool(torch.equal(before, torch.random.get_rng_state()))
one = measured_by_harness(base.model, base.tokenizer, own.model_copy(update={{"harness_questions": 1}}))
absent = AnswersConfig(harness_tasks=({str(absent)!r},))
failed = measured_by_harness(base.model, base.tokenizer, absent)
try:
    check_tasks(absent)
    refused = ""
except InputError as error:
    refused = str(error)
print((whole, one, failed, refused, kept))
"""
    whole, one, failed, refused, kept = in_its_own_process(code, tmp_path)
    assert whole[0].keys() == {"own-choice"}
    assert 0 <= whole[0]["own-choice"] <= 1
    assert one[0]["own-choice"] in (0.0, 1.0)
    assert whole[1] is one[1] is None
    assert failed[0] == {}
    assert failed[1]
    assert "evaluation.harness_tasks" in refused
    assert "absent.yaml" in refused
    assert kept


@pytest.mark.slow
def test_a_metric_that_is_a_program_on_the_hub_is_not_run(task, tmp_path):
    """It would be fetched and imported by a process that reads private rows."""
    pytest.importorskip("lm_eval")
    foreign = tmp_path / "foreign.yaml"
    foreign.write_text(task.read_text().replace('"metric": "acc"', '"metric": "somebodys/metric"'))
    (tmp_path / "words.py").write_text(
        "import evaluate\nevaluate.load('bleu')\ndef gold(doc):\n    return doc['gold']\n"
    )
    by_code = tmp_path / "by_code.yaml"
    told = task.read_text().replace('"doc_to_target": "gold"', '"doc_to_target": !function words.gold')
    by_code.write_text(told.replace("own.choice", "by_code"))
    code = f"""
import evaluate
from understudy.errors import InputError
from understudy.evaluation.answers.config import AnswersConfig
from understudy.evaluation.answers.harness import check_tasks
def never(*_, **__):
    raise SystemExit("it was loaded")
evaluate.load = never
said = []
for place in ({str(foreign)!r}, {str(by_code)!r}):
    try:
        check_tasks(AnswersConfig(harness_tasks=(place,)))
    except InputError as error:
        said.append(str(error))
print((said, evaluate.load is never))
"""
    said, is_as_before = in_its_own_process(code, tmp_path)
    assert len(said) == 2
    assert all("a program on the hub, which is not run" in one for one in said), said
    assert is_as_before


def test_without_the_extra_the_line_that_installs_it_is_named(monkeypatch):
    settings = AnswersConfig(harness_tasks=("arc_easy",))

    def absent(name):
        raise harness.PackageNotFoundError(name)

    monkeypatch.setattr(harness, "version", absent)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    for refused in (harness_digest, check_tasks):
        with pytest.raises(InputError, match=r"pip install 'understudy\[harness\]'"):
            refused(settings)
    assert (harness_digest(AnswersConfig()), check_tasks(AnswersConfig())) == ("", None), "nobody asks for it"


def test_another_content_of_a_task_file_or_another_version_is_another_digest(tmp_path, monkeypatch):
    path = tmp_path / "own.yaml"
    settings, found = AnswersConfig(harness_tasks=(str(path),)), set()
    for content, version in (("a", "1"), ("b", "1"), ("b", "2")):
        path.write_text(content)
        monkeypatch.setattr(harness, "version", lambda _, version=version: version)
        found.add(harness_digest(settings))
    assert len(found - {""}) == 3


def test_a_measurement_that_fails_is_noted_and_ends_nothing(monkeypatch):
    def broken(*_, **__):
        raise ConnectionError("the hub\nis away")

    monkeypatch.setattr(harness, "by_harness", broken)
    settings = AnswersConfig(harness_tasks=("arc_easy",))
    assert measured_by_harness(None, None, settings) == ({}, "ConnectionError: the hub is away")
    monkeypatch.setattr(harness, "by_harness", lambda *_, **__: {})
    assert measured_by_harness(None, None, settings) == ({}, "none of the tasks has an accuracy")
    assert measured_by_harness(None, None, AnswersConfig()) == ({}, None)

"""Record and replay of a method that is not in the package: the same contract, asked of an installed one."""

import sys
from pathlib import Path

import pytest
from contract.flow_under_replay import FlowRun, smaller
from contract.private_files import NAMES, ROWS, row_of, without_row

from understudy.methods import registry
from understudy.privacy.testing.replay import replay_check
from understudy.runs.request import Budget


@pytest.fixture
def bag_of_words(monkeypatch):
    """The example of docs/adding-a-method.md, as an installed package names it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "plugin"))
    places = {**registry.BUILT_IN, "bag-of-words": "bag_of_words.method:METHOD"}
    monkeypatch.setattr(registry, "_places", lambda: places)
    yield "bag-of-words"
    for module in ("bag_of_words.flow", "bag_of_words.method", "bag_of_words"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("kind", ["plain", "extreme", "rare class"])
def test_three_neighbours(kind, bag_of_words, random_model_folder, tmp_path, places, monkeypatch):
    smaller(monkeypatch)
    options = {
        "source": "replayed",
        "epsilon": 8.0,
        "delta": 1e-3,
        "budget": Budget(epsilon=8, delta=1e-3),
        "label_names": NAMES,
        "units": ROWS,
        "model": str(random_model_folder),
        "samples": 3,
    }
    run = FlowRun(bag_of_words, options, tmp_path, places, monkeypatch)
    slot = run.trained_slot(3)
    report = replay_check(run, data=row_of(kind, slot), neighbour=without_row(slot), forced="every")
    assert (*report.faults, *dict.fromkeys(run.seen)) == ()
    assert 0.01 < report.distance_forced <= 1 + report.tolerance

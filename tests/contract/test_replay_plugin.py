"""Record and replay of a method that is not in the package: the same contract, asked of an installed one."""

import sys
from pathlib import Path

import pytest
from contract.flow_under_replay import FlowRun, nothing_found, smaller
from contract.labelled_flow import OPTIONS
from contract.private_files import CLIENTS, NAMES, ROWS, client_of, clients, row_of, without_row

from understudy.methods import registry
from understudy.privacy.testing.replay import replay_check


@pytest.fixture
def installed(monkeypatch):
    """The examples of tests/plugin, as installed packages name them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "plugin"))
    own = {"bag-of-words": "bag_of_words.method:METHOD", "voted-texts": "voted_texts.method:METHOD"}
    monkeypatch.setattr(registry, "_places", lambda: {**registry.BUILT_IN, **own})
    yield
    for module in [name for name in sys.modules if name.partition(".")[0] in ("bag_of_words", "voted_texts")]:
        sys.modules.pop(module)


def in_turn(kind, *others):
    """One kind in every run of the tests, the others in `make prove`; neither method samples, so nothing is forced."""
    return [kind, *(pytest.param(other, marks=pytest.mark.slow) for other in others)]


def request_fields(model, **more):
    return {
        **OPTIONS,
        "model": str(model),
        "samples": 3,
        **more,
    }


@pytest.mark.parametrize("kind", in_turn("rare class", "plain", "extreme"))
def test_neighbours(kind, installed, random_model_folder, tmp_path, places, monkeypatch):
    smaller(monkeypatch)
    fields = request_fields(random_model_folder, label_names=NAMES, units=ROWS)
    run = FlowRun("bag-of-words", fields, tmp_path, places, monkeypatch)
    slot = run.trained_slot(3)
    report = replay_check(run, data=row_of(kind, slot), neighbour=without_row(slot))
    nothing_found(run, report)
    assert 0.01 < report.distance_real <= 1 + report.tolerance


@pytest.mark.parametrize("kind", in_turn("extreme", "plain"))
def test_neighbours_of_a_baseline_used_as_a_method(kind, installed, random_model_folder, tmp_path, places, monkeypatch):
    smaller(monkeypatch)
    run = FlowRun("voted-texts", request_fields(random_model_folder, units=CLIENTS), tmp_path, places, monkeypatch)
    client = run.trained_client(3)
    report = replay_check(run, data=client_of(kind, client), neighbour=clients(client))
    nothing_found(run, report)
    assert 0.01 < report.distance_real <= 1 + report.tolerance

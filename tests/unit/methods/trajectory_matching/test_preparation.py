"""The expected time: what selection and evaluation add, by a clock of which every step takes a second."""

import itertools
import math

import pytest
from quick_models import take_shallow

from understudy.methods.method import Promise
from understudy.methods.trajectory_matching import preparation
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig, promised

ROWS = 100


@pytest.fixture(autouse=True)
def one_layer(monkeypatch, shallow_models):
    """Steps are counted, not timed: models of one layer take the same ones."""
    take_shallow(monkeypatch, shallow_models)


def seconds(**more):
    config = TrajectoryMatchingConfig(max_length=48, distil={"inner_steps": 1, "tokens": 1}, **more)
    promise = Promise((), ROWS, math.inf, 1e-3)
    clock = itertools.count().__next__
    return preparation.expected_seconds(promised(config, has_epsilon=False), promise, clock=lambda: float(clock()))


def test_less_takes_a_gradient_of_every_row_at_every_state_by_its_own_model(monkeypatch):
    timed, plain = [], preparation.load_selector

    def loaded(config, compute):
        timed.append(plain(config, compute))
        return timed[-1]

    monkeypatch.setattr(preparation, "load_selector", loaded)
    assert seconds()["selection"] == 0
    assert timed == []
    found = seconds(selection={"strategy": "less", "model": "tiny-gpt2", "warmup_epochs": 3})
    assert found["selection"] == 3 * ROWS
    assert [one.name for one in timed] == ["tiny-gpt2"]


def test_questions_behind_examples_and_harness_tasks_take_their_time():
    """Six models read each question with four candidates, at a third of a step's time a batch of eight."""
    plain = seconds()["tuning"]
    shots = {"shots": 2, "shots_from": "sample:instructions"}
    assert seconds(evaluation=shots)["tuning"] - plain == pytest.approx(6 * 100 * 4 * 3 / 3 / 8)
    tasks = {"harness_tasks": ("arc_easy", "mmlu"), "harness_questions": 50}
    assert seconds(evaluation=tasks)["tuning"] - plain == pytest.approx(6 * 2 * 50 * 4 / 3 / 8)

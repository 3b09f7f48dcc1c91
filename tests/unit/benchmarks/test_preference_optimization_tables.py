"""Intervals of the preference-optimisation benchmark are over clients and seeds."""

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
CLIENTS, TOKENS = 200, 50


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("preference_optimization_tables")


def cell(accuracy: float, tokens: int = TOKENS) -> dict:
    """A cell that is right about the same share of every client's tokens."""
    return {"tokens": [tokens] * CLIENTS, "correct": [round(accuracy * tokens)] * CLIENTS, "loss": [1.0] * CLIENTS}


def numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"[-+]?\d+\.\d+", text)]


def test_seeds_are_drawn_for_each_side_on_its_own(tables):
    apart = [cell(0.2), cell(0.4)]
    value, low, high = numbers(tables.gain(apart, apart))
    # The same cells on both sides: paired seeds would give an interval of no width.
    assert (value, low, high) == pytest.approx((0.0, -0.2, 0.2))


def test_an_interval_spans_the_seeds(tables):
    drawn = tables.drawn_accuracies([cell(0.2), cell(0.3), cell(0.4)])[0]
    assert tables.ends_of_95(drawn) == pytest.approx((0.2, 0.4), abs=0.04)


def test_one_seed_is_drawn_every_time(tables):
    assert numbers(tables.gain([cell(0.4)], [cell(0.2)])) == pytest.approx([0.2, 0.2, 0.2])


def test_clients_are_drawn_in_common(tables):
    correct = np.random.default_rng(0).integers(0, TOKENS, CLIENTS)
    one = cell(0.0) | {"correct": correct.tolist()}
    low, high = tables.ends_of_95(tables.drawn_accuracies([one])[0])
    standard_error = correct.std() / TOKENS / np.sqrt(CLIENTS)
    assert high - low == pytest.approx(2 * 1.96 * standard_error, rel=0.1)
    assert numbers(tables.gain([one], [one])) == [0, 0, 0]


def test_cells_of_other_clients_are_refused(tables):
    with pytest.raises(ValueError, match="clients"):
        tables.gain([cell(0.4)], [cell(0.4, tokens=10)])

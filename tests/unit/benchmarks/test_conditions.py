"""What benchmarks do where a condition is out of the ordinary: another scorer, no pair, a folder that is not there."""

from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.pool import ClientPool
from understudy.methods.preference_optimization.stored import Candidates

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def benchmark_module(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@pytest.mark.parametrize(("scorer", "recovered"), [("histogram", 1.0), ("cosine", 0.0)])
def test_preferences_are_compared_with_those_of_the_cell_s_own_scorer(scorer, recovered, benchmark_module, monkeypatch):
    """Two of three clients vote for the first text, by a hair; the cosines of all three together are for the second."""
    conditions = benchmark_module("preference_optimization_conditions")
    angles = np.radians([44, 44, 90])
    clients = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    pool = ClientPool(clients, clients.astype(np.float32), np.arange(3), None)
    table = pa.table({"prompt": ["p", "p"], "text": ["a", "b"], "label": pa.array([None, None], pa.int64())})
    candidates = Candidates(table, np.eye(2, dtype=np.float32))
    config = PreferenceOptimizationConfig.model_validate(
        {
            "scoring": {"scorer": scorer},
            "candidates": {"prompts": 1, "per_prompt": 2},
            "preferences": {"rejected_rank": 2},
        }
    )
    monkeypatch.setattr(conditions, "configure", lambda *_: config)
    monkeypatch.setattr(conditions, "distance", lambda *_: {})
    assert conditions.round_facts(None, None, pool, candidates, torch.tensor([1.0, 0.0]))["recovery"] == recovered


def test_a_condition_without_a_pair_has_no_mauve_and_does_not_end_the_others(benchmark_module, monkeypatch):
    distillation = benchmark_module("knowledge_distillation")
    monkeypatch.setattr(distillation, "unread", lambda *_: [])
    assert distillation.nearness(None, None, []) == {"texts": []}


def test_figures_are_drawn_into_a_folder_that_is_made(benchmark_module, monkeypatch, tmp_path):
    figures = benchmark_module("results_figures")
    monkeypatch.setattr(figures, "FIGURES", {"empty": ((1, 1), lambda figure: None)})
    monkeypatch.setattr("sys.argv", ["results_figures.py", "--out", str(tmp_path / "a" / "b")])
    figures.main()
    assert (tmp_path / "a" / "b" / "empty.svg").is_file()


def test_an_intercepted_adapter_is_compared_on_both_bases_and_cells_of_one_adapter_share_a_process(benchmark_module):
    """On the public base it is worth as much as that base alone; on its own it lowers every loss by a half."""
    ablations = benchmark_module("knowledge_distillation_ablations")
    cell = partial(ablations.Cell, "medical_dialogue", epsilon=8.0, pairs=300)
    alone = {"public_alone": [3.0, 4.0], "transmitted_alone": [2.0, 3.0]}
    sent = {"public_sent": [3.0, 4.0], "transmitted_sent": [1.5, 2.5]}
    value = alone | sent | {"public_returned": [3.5, 4.5], "transmitted_returned": [1.0, 2.0]}
    found = {cell(condition="eavesdropper", seed=seed): value for seed in (0, 1)}
    first, second = ablations.eavesdropper_rows(found, "medical_dialogue")
    assert (first["adapter"], first["seeds"]) == (ablations.PLACES["sent"], "2")
    assert first["minus transmitted base"].startswith("-0.500 ")
    assert first["minus public base"] == "0.000 [0.000, 0.000]"
    assert second["minus public base"].startswith("0.500 ")
    names = ("distilled", "ranked", "dp_only", "public_only", "eavesdropper")
    waiting = [cell(condition=condition, seed=0) for condition in names]
    assert sorted(len(chain) for chain in ablations.chains(waiting)) == [1, 1, 3]

"""Pairs read by the mean of the released experts, and by the model that they began as."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests_support import write_random_model
from transformers.pytorch_utils import Conv1D

from understudy.auditing.pair_losses import pair_losses
from understudy.auditing.weights import shares
from understudy.compute import ON_CPU
from understudy.errors import UnderstudyError
from understudy.generation.instructions import PairEncoder
from understudy.methods.reading import RowsToRead
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.experts import expert_student, save_trajectory
from understudy.methods.trajectory_matching.row_losses import row_losses
from understudy.models.loading import load_base

TEXTS = ["the film was good and long", "a short one", "the plot of this film is as dull as the last film"]
PAIRS = pa.table({"instruction": TEXTS, "response": TEXTS[::-1]})
RANK, ALPHA = 2, 6.0


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = write_random_model(tmp_path_factory.mktemp("model") / "random", positions=128)
    experts = {"count": 2, "lora_rank": RANK, "lora_alpha": ALPHA}
    return TrajectoryMatchingConfig.model_validate({"model": str(folder), "max_length": 60, "experts": experts})


def reading(config, folder=None, rows=PAIRS):
    return row_losses(RowsToRead(rows, (), config, folder, ON_CPU))


@pytest.fixture
def released(config, tmp_path):
    """Trajectories as a run releases them: `ended` says what becomes of an expert's adapters in its one epoch."""

    def released(ended):
        for number in range(2):
            start = expert_student(load_base(config).model, config, number).start
            generator = torch.Generator().manual_seed(number)
            last = {name: ended(name, value, generator) for name, value in start.items()}
            save_trajectory(tmp_path / f"expert-{number}.safetensors", [start, last])
        return tmp_path

    return released


def moved(_name, value, generator):
    return value + 0.1 * torch.randn(value.shape, generator=generator)


def test_experts_that_did_not_move_read_like_the_base_model(config, released):
    folder = released(lambda _name, value, _generator: value)
    assert reading(config, folder).values() == pytest.approx(reading(config).values(), abs=1e-5)


def test_the_mean_of_what_the_experts_add_is_added(config, released):
    """By a loop over the layers, from the adapters as they were written."""
    folder = released(moved)
    base = load_base(config)
    with torch.no_grad():
        added = {}
        for number in range(2):
            last = {}
            start = expert_student(load_base(config).model, config, number).start
            generator = torch.Generator().manual_seed(number)
            for name, value in start.items():
                last[name] = moved(name, value, generator)
            for name, a in last.items():
                if "lora_A" in name:
                    layer = name.removeprefix("base_model.model.").partition(".lora_A")[0]
                    b = last[name.replace("lora_A", "lora_B")]
                    added[layer] = added.get(layer, 0) + ALPHA / RANK * (b @ a) / 2
        for layer, change in added.items():
            module = base.model.get_submodule(layer)
            module.weight += change.T if isinstance(module, Conv1D) else change
    expected = pair_losses(base.model, PairEncoder(base.tokenizer, config.template), PAIRS, max_length=60).values()
    found = reading(config, folder).values()
    assert found == pytest.approx(expected, abs=1e-5)
    assert np.abs(found - reading(config).values()).max() > 1e-3


def test_the_change_of_the_weights_is_read(config, released):
    found = shares(reading(config), reading(config, released(moved)), canaries=2)
    assert [one.shape for one in found] == [(2,), (2,)]
    assert np.abs(found).min() > 0


def test_null_pairs_are_refused(config):
    with pytest.raises(UnderstudyError, match="null records"):
        reading(config, rows=pa.table({"instruction": ["a", None], "response": ["b", None]}))

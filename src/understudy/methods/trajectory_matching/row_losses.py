"""How likely the experts, or the model that they began as, find the responses of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from understudy.auditing.pair_losses import pair_losses
from understudy.auditing.row_losses import RowLosses
from understudy.generation.instructions import PairEncoder
from understudy.methods.reading import RowsToRead
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.experts import expert_student, gathered
from understudy.models.loading import load_base


def row_losses(asked: RowsToRead) -> RowLosses:
    """Mean negative log-likelihood of each pair's response, by the mean of the experts' last weights.

    An expert begins as the base model itself, for its adapters add nothing then. What all of them met moves their mean,
    and the noise of each moves it less.

    Raises:
        UnderstudyError: there is a null record among the pairs.
    """
    config = asked.settings(TrajectoryMatchingConfig)
    base = load_base(config, asked.compute)
    model = base.model if asked.model is None else _mean_expert(base.model, config, asked.model)
    encoder = PairEncoder(base.tokenizer, config.template)
    return pair_losses(model, encoder, asked.rows, max_length=config.max_length)


def _mean_expert(model: Any, config: TrajectoryMatchingConfig, folder: Path) -> Any:
    """The base model with the mean of what the experts' adapters add to its weights; `model` is changed."""
    began = {name: value.detach().clone() for name, value in model.state_dict().items()}
    trajectories = gathered(folder)
    added: dict[str, torch.Tensor] = {}
    for number, trajectory in enumerate(trajectories):
        student = expert_student(model, config, number)
        with torch.no_grad():
            for name, parameter in student.adapted.named_parameters():
                if name in trajectory[-1]:
                    parameter.copy_(trajectory[-1][name])
        model = student.adapted.merge_and_unload()
        for name, value in model.state_dict().items():
            added[name] = added.get(name, torch.zeros_like(value)) + (value - began[name]) / len(trajectories)
        model.load_state_dict(began)
    model.load_state_dict({name: value + added[name] for name, value in began.items()})
    return model

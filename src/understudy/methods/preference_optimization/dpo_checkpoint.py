"""Checkpoints of a round of DPO: adapter, AdamW's moments and the step, as tensors and never pickled.

transformers' own checkpoints are pickled and written file by file. Here it is only told at which step it goes on, for
the order of the pairs; what it would load is put in place by `Keeper`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from understudy.models.adapters import put_adapter, take_adapter
from understudy.progress import CheckpointSink

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Keeper(TrainerCallback):  # type: ignore[misc]
    """Keeps the state after each step that the sink calls due, and puts an earlier one in place before the first."""

    def __init__(self, sink: CheckpointSink) -> None:
        self._sink = sink
        self._found = sink.load()

    def resumed(self, trainer: Any, folder: Path) -> str | None:
        """Put the kept adapter in place.

        Args:
            trainer: at the start of its round.
            folder: temporary; the step is written there, where transformers reads it.

        Returns:
            `folder` for `trainer.train`; None where no step was kept.
        """
        if self._found is None:
            return None
        step, tensors = self._found
        put_adapter(trainer.model, _named("adapter/", tensors))
        folder.mkdir(parents=True, exist_ok=True)
        # What is compared with the trainer's own.
        compared = ("logging_steps", "eval_steps", "save_steps", "train_batch_size")
        state = TrainerState(global_step=step, **{name: getattr(trainer.args, name) for name in compared})
        state.save_to_json(str(folder / TRAINER_STATE_NAME))
        return str(folder)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **given: Any
    ) -> None:
        """The optimizer and its schedule as they were after the kept step."""
        if self._found is None:
            return
        step, tensors = self._found
        for name, parameter in _trained(model).items():
            kept = {key: tensors[f"adam/{name}/{key}"] for key in _MOMENTS}
            # AdamW counts its steps on the CPU.
            optimizer.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in kept.items()
            }
        schedule = given["lr_scheduler"]
        schedule.last_epoch = step
        for group, rate, factor in zip(optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True):
            group["lr"] = rate * factor(step)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        """Keep the state, if it is due."""
        if not self._sink.due(state.global_step):
            return
        tensors = {f"adapter/{name}": tensor for name, tensor in take_adapter(model).items()}
        for name, parameter in _trained(model).items():
            tensors |= {f"adam/{name}/{key}": optimizer.state[parameter][key] for key in _MOMENTS}
        self._sink.save(state.global_step, tensors)


def _trained(model: Any) -> dict[str, Any]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

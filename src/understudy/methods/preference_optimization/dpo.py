"""One round of Direct Preference Optimization on LoRA adapters, by trl.

Papers: Rafailov et al. 2023, equation 7; conservative DPO: Mitchell 2023. POPri, algorithm 1 (line 17) and
appendix B.1: LoRA on all projections, AdamW, cosine schedule, the adapter goes on from round to round.

The reference is the *public base model in every round*, as the paper wants. trl takes a wrapped model's own adapter as
reference, which would be the round before; so the trainer gets the plain base model and a fresh adapter, into which
the last round's tensors are put. Reference log-probabilities are computed once, before the first step.
*Deviations*: a text ends with a line break, which is what ends it when it is generated, and not with the end token; no
checkpoint is chosen by FID, which would need private text or a charged release.
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.generation.prompts import row_seeds
from understudy.methods.preference_optimization.config import PreferenceConfig
from understudy.methods.preference_optimization.dpo_pairs import NothingLearnt, pairs_in_a_pass
from understudy.models.adapters import Adapter, put_adapter, same_weights, take_adapter, wrap
from understudy.models.loading import LoadedModel
from understudy.progress import CheckpointSink

Progress = Callable[[int, int, float], None]


class NotFinite(NothingLearnt):
    """A round's adapter ended in numbers that are not finite."""


def train_round(  # noqa: PLR0913 - what is trained on, how, and where its state may be kept
    base: LoadedModel,
    previous: Mapping[str, Tensor] | None,
    *,
    rows: Mapping[str, list[list[int]]],
    config: PreferenceConfig,
    public_seed: int,
    round: int,
    folder: Path,
    checkpoint: CheckpointSink | None = None,
    progress: Progress | None = None,
) -> Adapter:
    """Train the adapter on one round's pairs; nothing private comes in.

    Args:
        base: public base model, the fixed reference; its weights are shared, not copied, and not changed.
        previous: the last round's adapter; None in the first.
        rows: the round's pairs, of `encode_pairs`.
        config: loss, beta, LoRA, learning rate, epochs and batch.
        public_seed: start values (the same in every round) and, with the round, the order of the pairs.
        round: number of the round.
        folder: temporary folder, the only place where trl may write.
        checkpoint: state is saved after each step that it calls due; a resumed round ends in the same bytes.
        progress: called after each step with (steps done, steps, loss).

    Returns:
        The adapter's float32 tensors on the CPU; the same bytes for the same arguments, machine and threads.

    Raises:
        InputError: an adapter of another model.
        NotFinite: the adapter ended in numbers that are not finite.
        NothingLearnt: the adapter ended where it began.
    """
    with _as_found(base.model):
        trainer = build_trainer(
            base, previous, rows, config=config, seeds=_seeds(public_seed, round), folder=folder, progress=progress
        )
        start = take_adapter(trainer.model)
        trainer.train(resume_from_checkpoint=_resumed(trainer, checkpoint, folder))
        adapter = take_adapter(trainer.model)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in adapter.values()):
        raise NotFinite(f"DPO round {round}: the adapter is not finite; lower preferences.learning_rate={config.rate}")
    if all(torch.equal(start[name], adapter[name]) for name in adapter):
        raise NothingLearnt(
            f"DPO round {round}: expected the adapter to move, found it unchanged; raise "
            f"preferences.learning_rate={config.rate}"
        )
    return adapter


def untrained(
    base: LoadedModel, previous: Mapping[str, Tensor] | None, *, config: PreferenceConfig, public_seed: int
) -> Adapter:
    """The adapter that `train_round` begins with: the last round's, or start values that change no text."""
    if previous is not None:
        return dict(previous)
    with _as_found(base.model):
        return take_adapter(_started(base, config, _seeds(public_seed, 0)[0]))


def _started(base: LoadedModel, config: PreferenceConfig, seed: int) -> Any:
    return wrap(same_weights(base.model), rank=config.lora_rank, alpha=config.lora_alpha, seed=seed)


def _seeds(public_seed: int, round: int) -> tuple[int, int]:
    """Seeds of the adapter's start values, which no round changes, and of the order of the pairs."""
    start = row_seeds(public_seed, [0], purpose="dpo/start")[0]
    order = row_seeds(public_seed, [round], purpose="dpo/order")[0]
    return start, order % 2**32  # numpy takes no more


def build_trainer(
    base: LoadedModel,
    previous: Mapping[str, Tensor] | None,
    rows: Mapping[str, list[list[int]]],
    *,
    config: PreferenceConfig,
    seeds: tuple[int, int],
    folder: Path,
    progress: Progress | None,
) -> Any:
    """A trl trainer at the start of a round: adapter in place, reference log-probabilities computed.

    Args:
        base: public base model.
        previous: the last round's adapter, or None.
        rows: `encode_pairs`.
        config: how to train.
        seeds: of start values and of the order of pairs.
        folder: where trl may write.
        progress: as `train_round`.

    Returns:
        A `trl.DPOTrainer`; `train()` not yet called.
    """
    from datasets import Dataset
    from transformers import PrinterCallback

    wrapped = _started(base, config, seeds[0])
    start = dict(previous) if previous is not None else take_adapter(wrapped)
    trainer = trainer_class()(
        model=same_weights(base.model),
        args=_arguments(
            config, at_once=pairs_in_a_pass(base, rows, config), seed=seeds[1], folder=folder, device=base.model.device
        ),
        train_dataset=Dataset.from_dict(dict(rows)),
        processing_class=base.tokenizer,
        peft_config=wrapped.peft_config["default"],
        callbacks=[_reporter(progress)] if progress is not None else [],
    )
    trainer.remove_callback(PrinterCallback)
    put_adapter(trainer.model, start)
    _add_reference(trainer)
    return trainer


def _resumed(trainer: Any, checkpoint: CheckpointSink | None, folder: Path) -> str | None:
    """What transformers is told of an earlier attempt at the round; from now on, steps are kept."""
    if checkpoint is None:
        return None
    from understudy.methods.preference_optimization.dpo_checkpoint import Keeper

    keeper = Keeper(checkpoint)
    trainer.add_callback(keeper)
    return keeper.resumed(trainer, folder / "resumed")


def trainer_class() -> Any:
    """The trainer of trl on token ids, without its message to the makers; imported late, for trl is slow to load."""
    from trl.trainer.dpo_trainer import DPOTrainer

    class PairTrainer(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

        def _send_telemetry(self) -> None:
            return None

        def _load_from_checkpoint(self, *_: Any, **__: Any) -> None:
            # Only a step is stored where it would look; the adapter is in place already.
            return None

    return PairTrainer


def _arguments(config: PreferenceConfig, *, at_once: int, seed: int, folder: Path, device: torch.device) -> Any:
    from trl.trainer.dpo_config import DPOConfig

    # transformers would take the first CUDA device, or all of them; a task holds one.
    kind = DPOConfig if device.type == "cpu" else _config_class(device)
    return kind(
        output_dir=str(folder),
        use_cpu=device.type == "cpu",
        # No autocast: frozen weights come in the run's precision, and adapters are trained in float32.
        bf16=False,
        gradient_checkpointing=False,
        seed=seed,
        max_length=None,
        beta=config.beta,
        learning_rate=config.rate,
        optim="adamw_torch",
        lr_scheduler_type="cosine",
        num_train_epochs=config.epochs,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=config.batch_size // at_once,
        dataloader_pin_memory=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        disable_tqdm=True,
        **_loss(config),
    )


def _config_class(device: torch.device) -> Any:
    """The settings of trl for a trainer that computes on one given device."""
    from accelerate.state import AcceleratorState, PartialState  # type: ignore[import-untyped]
    from trl.trainer.dpo_config import DPOConfig

    class OnDevice(DPOConfig):  # type: ignore[misc]
        @cached_property
        def _setup_devices(self) -> torch.device:
            AcceleratorState._reset_state(reset_partial_state=True)
            self.distributed_state = PartialState()
            self.distributed_state.device = device
            self._n_gpu = 1
            return device

    return OnDevice


def _loss(config: PreferenceConfig) -> dict[str, Any]:
    """What trl calls the loss; a preference is wrong with probability e = `label_smoothing`.

    Conservative DPO is (1 - e) * -log sigmoid(h) + e * -log sigmoid(-h). trl ignores label_smoothing in its own
    sigmoid loss; its robust loss ((1 - s) * -log sigmoid(h) - s * -log sigmoid(-h)) / (1 - 2 s) is that at
    s = -e / (1 - 2 e).
    """
    if config.loss == "dpo":
        return {"loss_type": "sigmoid"}
    return {"loss_type": "robust", "label_smoothing": -config.label_smoothing / (1 - 2 * config.label_smoothing)}


def _reporter(progress: Progress) -> Any:
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs is not None and "loss" in logs:
                progress(state.global_step, state.max_steps, float(logs["loss"]))

    return Reporter()


def _add_reference(trainer: Any) -> None:
    """Add the base model's log-probabilities of each text; trl's own way would write them to a global folder."""
    dataset, size = trainer.train_dataset, trainer.args.per_device_train_batch_size
    found: tuple[list[float], list[float]] = ([], [])
    for first in range(0, len(dataset), size):
        batch = trainer.data_collator([dataset[row] for row in range(first, min(first + size, len(dataset)))])
        batch = {name: value.to(trainer.args.device) for name, value in batch.items()}
        for column, values in zip(found, trainer.compute_ref_log_probs(trainer.model, batch), strict=True):
            column += values.tolist()
    for name, column in zip(("ref_chosen_logps", "ref_rejected_logps"), found, strict=True):
        dataset = dataset.add_column(name, column)
    trainer.train_dataset, trainer.precompute_ref_logps = dataset, True


@contextmanager
def _as_found(model: Any) -> Iterator[None]:
    """Put back what training changes beside the adapter: global randomness, trainability, loggers' levels."""
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - trl seeds it
    logger = logging.getLogger("trl.trainer.dpo_trainer")  # it warns of the robust loss's negative smoothing
    level = logger.level
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        logger.setLevel(logging.ERROR)
        with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
            # peft 0.21 asks transformers 5.23 for a property under its old name.
            warnings.filterwarnings("ignore", message=".is_gradient_checkpointing. is deprecated")
            # trl 1.16 turns it on by default, under a name that transformers 5.23 wants changed.
            warnings.filterwarnings("ignore", message=".gradient_checkpointing. is deprecated")
            yield
    finally:
        logger.setLevel(level)
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)

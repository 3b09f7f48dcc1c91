"""DP multitask fine-tuning (paper, Algorithm 1) and its baselines.

One Poisson batch per step. `alternating` clips and noises the gradients of both losses separately and applies
both in turn; `joint` clips the gradient of their weighted sum once. Deviations: each stream has an Adam of its own,
and naive_filter's classifier learns on prefixes, as the discriminator does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from understudy.errors import InputError
from understudy.generation.prompts import PromptTable
from understudy.generation.sampling import backbone
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import EncodedRows
from understudy.methods.conditional_generation.losses import Reading, discriminator_loss, joint_loss, lm_loss
from understudy.methods.conditional_generation.memory import recomputes, rows_per_pass
from understudy.methods.conditional_generation.model import (
    Classifier,
    MultitaskModel,
    TrainedModel,
    build_model,
    merge_adapters,
    transformer_layers,
)
from understudy.methods.conditional_generation.queries import (
    DISCRIMINATOR,
    FILTER,
    HEAD,
    JOINT,
    LM,
    Asked,
)
from understudy.models.loading import LoadedModel
from understudy.models.lora import trainable_parameters
from understudy.privacy.dpsgd.layers import check_layers
from understudy.privacy.dpsgd.per_example import Batch
from understudy.privacy.dpsgd.training import Objective, Schedule, train
from understudy.progress import CheckpointSink, Course, Progress

Checkpoints = Callable[[str], CheckpointSink]


def fit(
    base: LoadedModel, rows: EncodedRows, asked: Asked, *, checkpoints: Checkpoints | None, progress: Progress | None
) -> TrainedModel:
    """Fine-tune a base model and train its heads as charged.

    *Guarantee*: the result is a function of the mechanisms' outputs alone, whose queries are part of the schedule's
    (unit example, relation replace_special).

    Args:
        base: Public base model; changed in place.
        rows: Encoded private rows.
        asked: What was charged.
        checkpoints: Training name -> sink of its state; None keeps none.
        progress: Called with (steps done, steps in all).

    Returns:
        The model with its adapters merged, in evaluation mode.

    Raises:
        InputError: The rows are not as many as the schedule says.
    """
    config, schedule = asked.config, asked.schedule
    if len(rows.valid) != schedule.n:
        raise InputError(f"expected n={schedule.n} rows, as charged, found {len(rows.valid)}; null rows count")
    shape = base.shape
    micro_batch = rows_per_pass(config, len(rows.valid), shape, device=base.model.device.type)
    model = build_model(base.model, label_names=rows.label_names, config=config)
    data = {name: getattr(rows, name) for name in ("input_ids", "attention_mask", "loss_mask", "label", "valid")}
    done = 0
    for training in schedule.trainings:
        if training.name == HEAD:
            merge_adapters(model)  # the head's features are frozen from here on
        objectives = objectives_of(model, rows, config)
        with _recomputed(model, active=shape is not None and recomputes(config, shape, micro_batch)):
            train(
                model,
                plan=training,
                objectives={stream.name: objectives[stream.name] for stream in training.streams},
                data=data,
                mechanisms=asked.mechanisms,
                micro_batch=micro_batch,
                averaging=config.train.averaging,
                course=Course(
                    None if checkpoints is None else checkpoints(training.name),
                    None if progress is None else partial(_report, progress, done, schedule.steps),
                ),
            )
        done += training.steps
    return TrainedModel(merge_adapters(model), base.tokenizer, rows.label_names, rows.prompts)


def check_trainable(
    model: MultitaskModel, *, config: ConditionalGenerationConfig, prompts: PromptTable | None = None
) -> None:
    """Refuse before anything is charged what could not be trained or generated.

    Raises:
        InputError: A trainable layer cannot give per-example gradients (it is named), or texts do not fit the
            model's context.
    """
    check_layers(model)
    context = getattr(backbone(model.lm).config, "max_position_embeddings", None)
    width = 0 if prompts is None else prompts.width
    wanted = {
        "train.max_length": width + config.train.max_length,
        "generate.sampling.max_new_tokens": width + config.generate.sampling.max_new_tokens,
    }
    for setting, tokens in wanted.items():
        if context is not None and tokens > context:
            raise InputError(
                f"{setting}: prompt ({width} tokens) and text take {tokens}, the model's context holds {context}: "
                "lower it"
            )


@contextmanager
def _recomputed(model: MultitaskModel, *, active: bool) -> Iterator[None]:
    """Activation checkpointing (Chen et al. 2016, arXiv 1604.06174): each block keeps its input and runs twice."""
    parts = (model, model.filter) if active else ()
    blocks = [block for part in parts if part is not None for block in transformer_layers(part.lm)]
    try:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def _report(progress: Progress, before: int, total: int, step: int, _steps: int) -> None:
    progress(before + step, total)


def objectives_of(
    model: MultitaskModel, rows: EncodedRows, config: ConditionalGenerationConfig
) -> dict[str, Objective]:
    """Every stream that the variant could have; each trains what its loss reaches, so no noise goes elsewhere."""
    settings = config.train
    reading = Reading(
        prompts=rows.prompts,
        prefix_step=config.discriminator.prefix_step,
        representation=config.discriminator.representation,
        seed=config.public_seed,
    )
    schedule: Schedule = "linear" if settings.learning_rate_decay else "constant"
    trained = trainable_parameters(model)
    lm = {name: parameter for name, parameter in trained.items() if name.startswith("lm.")}
    filtering = {name: parameter for name, parameter in trained.items() if name.startswith("filter.")}
    both = {**lm, **({} if model.discriminator is None else _named("discriminator.", model.discriminator))}
    weight = config.discriminator.loss_weight

    def lm_stream(model: nn.Module, batch: Batch) -> Tensor:
        return lm_loss(cast(MultitaskModel, model), batch, prompts=rows.prompts)

    def discriminator_stream(model: nn.Module, batch: Batch) -> Tensor:
        return discriminator_loss(cast(MultitaskModel, model), batch, reading=reading)

    def joint_stream(model: nn.Module, batch: Batch) -> Tensor:
        return joint_loss(cast(MultitaskModel, model), batch, reading=reading, weight=weight)

    def filter_stream(model: nn.Module, batch: Batch) -> Tensor:
        return discriminator_loss(cast(Classifier, model.filter), batch, reading=reading)

    rate, second_rate = settings.rates
    return {
        LM: Objective(lm_stream, lm, rate, schedule),
        DISCRIMINATOR: Objective(discriminator_stream, both, second_rate, schedule),
        JOINT: Objective(joint_stream, both, rate, schedule),
        FILTER: Objective(filter_stream, filtering, second_rate, schedule),
    }


def _named(prefix: str, module: nn.Module) -> dict[str, nn.Parameter]:
    return {prefix + name: parameter for name, parameter in module.named_parameters()}

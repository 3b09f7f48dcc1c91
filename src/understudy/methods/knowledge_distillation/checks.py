"""Checks before the charge that every step will find what it needs, and an estimate of the run's time."""

from __future__ import annotations

import math
import time
from typing import Any

from understudy.artifacts.zone_keys import public_key
from understudy.compute import ON_CPU
from understudy.evaluation.answers.harness import check_tasks
from understudy.evaluation.answers.shots import check_shots
from understudy.generation.endpoints import check_address
from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.scoring import response_losses
from understudy.hardware import chosen
from understudy.methods.knowledge_distillation.base import attach_adapter, seed_pairs, shared_base
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.filters import check_question
from understudy.methods.knowledge_distillation.instructions import (
    draw_instructions,
    few_shot_prompts,
    first_wave,
)
from understudy.methods.knowledge_distillation.memory import pairs_per_pass
from understudy.methods.knowledge_distillation.peaks import check_fits, phases
from understudy.methods.knowledge_distillation.public_texts import compared_with
from understudy.methods.knowledge_distillation.responses import check_context, load_professional
from understudy.methods.knowledge_distillation.train import check_trainable
from understudy.methods.method import Promise
from understudy.models.loading import LoadedModel, load_base
from understudy.models.lora import trainable_parameters
from understudy.models.room import expected_mib
from understudy.models.shape import ModelShape
from understudy.privacy.dpsgd.per_example import clipped_gradient_sum
from understudy.settings import settings

_TIMED_TOKENS = 4


def check(config: KnowledgeDistillationConfig) -> LoadedModel:
    """The base model, if everything that the run needs is there.

    Raises:
        InputError: something is missing or does not fit; the message names it.
    """
    check_fits(config)  # before a model is loaded, which may be too large itself
    loaded = load_base(config)
    public_key("server")
    if config.seed.pairs:
        seed_pairs(config)
    few_shot_prompts(loaded, config, count=1)
    compared_with(config.filters)
    check_tasks(config.evaluation)
    width, seed = config.tune.max_length, config.public_seed
    check_shots(loaded.model, loaded.tokenizer, config.evaluation, max_length=width, seed=seed)
    if config.professional.url is not None:
        check_address(config.professional.url, setting="professional.url")
        if config.filters.judge != "none":
            check_question(loaded, config)  # a served model does not judge
    elif settings().zone == "both":
        _check_professional(config)
    check_trainable(load_base(config), config)  # an adapter stays on the model that it was attached to
    return loaded


def _check_professional(config: KnowledgeDistillationConfig) -> None:
    """Its model goes before another one is loaded."""
    professional = load_professional(config.professional)
    check_context(professional, config)
    if config.filters.judge != "none":
        check_question(professional, config)


def expected_cost(config: KnowledgeDistillationConfig, promise: Promise) -> dict[str, Any]:
    """Minutes of the training and of the instructions, from one micro-batch and a few tokens of made-up pairs."""
    (query,) = promise.queries
    token, shape = _seconds_of_a_token(config)
    expected = query.units * query.sampling_probability
    pairs = pairs_per_pass(config, expected=expected, shape=shape, device=settings().device_type)
    training, passes = _seconds_of_a_pass(config, pairs), math.ceil(expected / pairs)
    drawn = first_wave(config) * config.instructions.sampling.max_new_tokens
    return {
        "expected_training_minutes": round(training * passes * query.steps / 60, 1),
        "expected_instruction_minutes": round(token * drawn / 60, 1),
    }


def expected_peak(config: KnowledgeDistillationConfig) -> dict[str, int]:
    """The peak of memory in MiB, in this process's zones; nothing where the model's files do not say its shape."""
    base = load_base(config, chosen())
    return (
        {} if base.shape is None else {"expected_peak_memory_mib": expected_mib(base.model, phases(config, base.shape))}
    )


def _seconds_of_a_token(config: KnowledgeDistillationConfig) -> tuple[float, ModelShape | None]:
    """Of an instruction, with the shape of the model that draws it."""
    base, count = shared_base(config, chosen()), min(8, config.samples)
    sampling = config.instructions.sampling.model_copy(update={"max_new_tokens": _TIMED_TOKENS})
    few = config.instructions.model_copy(update={"sampling": sampling})
    began = time.perf_counter()
    draw_instructions(base, config.model_copy(update={"instructions": few}), count=count)
    return (time.perf_counter() - began) / (_TIMED_TOKENS * count), base.shape


def _seconds_of_a_pass(config: KnowledgeDistillationConfig, count: int) -> float:
    base = load_base(config, chosen() if settings().device_type != "cpu" else ON_CPU)
    model = attach_adapter(base, config)
    pairs: list[Pair | None] = [Pair("a " * config.train.max_length, "b " * config.train.max_length)]
    rows = PairEncoder(base.tokenizer, config.template).encode(pairs * count, max_length=config.train.max_length)
    device = next(model.parameters()).device
    batch = {
        "input_ids": rows.input_ids.to(device),
        "attention_mask": rows.attention_mask.to(device),
        "loss_mask": rows.loss_mask.to(device),
    }
    seconds = []
    for _ in range(2):  # the first one warms up
        began = time.perf_counter()
        clipped_gradient_sum(
            model,
            trainable_parameters(model),
            response_losses,
            batch,
            l2_clip_norm=config.train.l2_clip_norm,
            valid=rows.valid.to(device),
        )
        seconds.append(time.perf_counter() - began)
    return min(seconds)

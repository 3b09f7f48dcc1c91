"""Checks of a run's models and public files before it starts, and an estimate of its time and memory.

Single steps are run at their full size on made-up rows. The time is the number of steps times that of a measured one.
The peak of memory is predicted (`peaks`), for a run has phases that nothing is timed of.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from understudy.data.public_tables import read_pairs
from understudy.errors import InputError
from understudy.evaluation.answers.harness import check_tasks
from understudy.evaluation.answers.shots import check_shots
from understudy.generation.instructions import LEAST_ROOM, EncodedPairs, Pair, PairEncoder, pairs_of
from understudy.generation.step import backbone
from understudy.hardware import chosen
from understudy.methods.method import Promise
from understudy.methods.trajectory_matching.carriers import answered, load_selector
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.distil import distil
from understudy.methods.trajectory_matching.experts import (
    adapters_of,
    expert_student,
    response_losses,
    train_private_expert,
)
from understudy.methods.trajectory_matching.peaks import check_fits, phases
from understudy.methods.trajectory_matching.queries import plan_of_expert, steps_per_epoch
from understudy.methods.trajectory_matching.selection import free_rows, rows_wanted
from understudy.methods.trajectory_matching.student import Rows, Student
from understudy.methods.trajectory_matching.training import Schedule, fine_tune, gradient_of
from understudy.models.loading import LoadedModel, load_base, load_model
from understudy.models.room import expected_mib
from understudy.privacy.dpsgd.layers import check_layers
from understudy.privacy.dpsgd.trial import check_gradients, told_of_model
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.progress import Course, Progress

Clock = Callable[[], float]

# Steps that are taken to time one; the first also sets things up.
_STEPS = 2
# Tuned: selected, mean tokens, embeddings, text; measured besides: the untuned model, an expert. A transfer tunes two
# and measures three, taken at the pace of the base model.
_TUNED, _TUNED_BY_TRANSFER = 4, 2
_MEASURED, _MEASURED_BY_TRANSFER = 6, 3
# A question is read with its response and with each candidate, of which a guess is four; reading takes about a third
# of a gradient's time.
_READ_PER_QUESTION, _READING = 5, 1 / 3
_ANSWERED = 8
_ADVICE = "choose another model, or leave --epsilon out"


def check_model(config: TrajectoryMatchingConfig) -> LoadedModel:
    """Load the base model and the public files of a run.

    Raises:
        InputError: see `method.check_model`.
    """
    check_fits(config)  # before a model is loaded, which may be too large itself
    base = load_base(config)
    # A written answer needs room behind the longest question.
    room = LEAST_ROOM if config.carrier == "written" else 0
    PairEncoder(base.tokenizer, config.template).check_width(config.max_length, reserved=room)
    context = getattr(backbone(base.model).config, "max_position_embeddings", None)
    wanted = config.max_length + config.distil.tokens
    if context is not None and wanted > context:
        raise InputError(
            f"max_length={config.max_length} and distil.tokens={config.distil.tokens} ask for {wanted} tokens, the "
            f"model's context holds {context}: lower max_length"
        )
    if config.carrier != "selected":
        available = read_pairs(config.carriers, setting="carriers", digest=config.carriers_digest).num_rows
        rows_wanted(config.selecting, free_rows(config.selecting, available))
    if config.selection.target is not None:
        read_pairs(config.selection.target, setting="selection.target", digest=config.selection.target_digest)
    check_tasks(config.evaluation)
    check_shots(base.model, base.tokenizer, config.evaluation, max_length=config.max_length, seed=config.public_seed)
    if config.tuning.transfer is not None:
        _check_transfer(config.tuning.transfer, config)
    if config.selection.model:
        _check_selector(config)
    if config.experts.private:
        student = expert_student(load_base(config).model, config, 0)
        check_layers(student.adapted, {name.rpartition(".")[0] for name in student.start})
        _check_gradients(student, base, config)
    return base


def _check_gradients(student: Student, base: LoadedModel, config: TrajectoryMatchingConfig) -> None:
    """Take the clipped gradients of two made-up rows, and match them for a step: what layers do only a pass shows.

    Raises:
        InputError: a layer mixes rows, as in models whose experts read tokens of all rows, or the loss does not reach
            one, as that between BERT's states and its head.
    """
    rows = _encoded(base, config, 2)
    batch = {name: getattr(rows, name) for name in ("input_ids", "attention_mask", "loss_mask")}
    check_gradients(
        student,
        adapters_of(student),
        response_losses,
        batch,
        valid=rows.valid,
        l2_clip_norm=config.experts.l2_clip_norm,
        name=config.model,
        advice=_ADVICE,
    )
    with told_of_model(config.model, _ADVICE):
        _match(student, _made_up(base, config, 2), config, steps=1, inner_steps=1)


def _check_transfer(name: str, config: TrajectoryMatchingConfig) -> None:
    """Refuse another model that could not be tuned on the text in the end.

    Raises:
        InputError: it is unknown, or its template or context has no room for a row.
    """
    try:
        other = load_model(name)
        PairEncoder(other.tokenizer, config.template).check_width(config.max_length)
        check_shots(
            other.model, other.tokenizer, config.evaluation, max_length=config.max_length, seed=config.public_seed
        )
    except InputError as error:
        raise InputError(f"tuning.transfer={name}: {error}") from None
    _check_context(other, f"tuning.transfer={name}", config.max_length)


def _check_context(named: LoadedModel, setting: str, max_length: int) -> None:
    """Refuse a model that cannot read a row whole."""
    context = getattr(backbone(named.model).config, "max_position_embeddings", None)
    if context is not None and max_length > context:
        raise InputError(
            f"{setting}: expected a context of at least max_length={max_length} tokens, found {context}; lower "
            "max_length, or name another model"
        )


def _check_selector(config: TrajectoryMatchingConfig) -> None:
    """Refuse another model that could not choose rows: a gradient of a made-up row is taken, as of every row later.

    Raises:
        InputError: it is unknown, its template or context has no room for a row, or it gives no gradient.
    """
    name = config.selection.model
    try:
        selector = load_selector(config)
        PairEncoder(selector.tokenizer, config.template).check_width(config.max_length)
    except InputError as error:
        raise InputError(f"selection.model={name}: {error}") from None
    _check_context(selector, f"selection.model={name}", config.max_length)
    rows = _made_up(selector, config, 1)
    with told_of_model(name, "name another selection.model, or leave it out"):
        student = expert_student(selector.model, config, 0)
        gradient_of(student, rows, student.start)


def expected_cost(config: TrajectoryMatchingConfig, promise: Promise) -> dict[str, Any]:
    """Minutes of experts, carriers, selection, distillation and tuning, and the peak of memory in MiB."""
    peak, seconds = _peak(config), expected_seconds(config, promise)
    return {f"expected_{name}_minutes": round(value / 60, 1) for name, value in seconds.items()} | peak


def _peak(config: TrajectoryMatchingConfig) -> dict[str, Any]:
    """The expected peak of memory; nothing where the model's files do not say its shape."""
    base = load_base(config, chosen())
    if base.shape is None:
        return {}
    return {"expected_peak_memory_mib": expected_mib(base.model, phases(config, base.shape))}


def expected_seconds(
    config: TrajectoryMatchingConfig, promise: Promise, *, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """Seconds of each stage.

    Args:
        config: sizes.
        promise: how many rows there are, and what they are asked.
        clock: by which steps are timed.
    """
    base = load_base(config, chosen())
    public = None if config.carrier == "selected" else read_pairs(config.carriers, setting="carriers")
    answering = (
        0.0 if public is None or config.carrier != "written" else _seconds_of_answers(base, public, config, clock)
    )
    student = expert_student(base.model, config, 0)
    of_carriers = promise.n if public is None else public.num_rows
    rows = rows_wanted(config.selecting, free_rows(config.selecting, of_carriers))
    experts, distilling = config.experts, config.distil

    def tuned(batch_size: int) -> float:
        return _seconds_of_tuning(student, _made_up(base, config, batch_size), clock)

    step = _private_step(student, base, config, promise, clock) if experts.private else tuned(experts.batch_size)
    few = _made_up(base, config, min(distilling.batch_size, rows))
    matching = _seconds_of_matching(student, few, config, clock)
    return {
        "experts": experts.count * experts.epochs * steps_per_epoch(config, promise.n) * step,
        "carriers": answering,
        "selection": _selection_seconds(config, of_carriers, clock) if config.selection.strategy == "less" else 0.0,
        "distillation": distilling.steps * matching,
        "tuning": _tuning_seconds(config, rows, tuned(config.tuning.batch_size)),
    }


def _tuning_seconds(config: TrajectoryMatchingConfig, rows: int, step: float) -> float:
    """Every condition is tuned on the chosen rows and measured on the held-out ones."""
    tuning = config.tuning
    tuned = _TUNED + (_TUNED_BY_TRANSFER if tuning.transfer else 0)
    measured = _MEASURED + (_MEASURED_BY_TRANSFER if tuning.transfer else 0)
    asked, candidates = config.evaluation, _READ_PER_QUESTION - 1
    # Behind examples a question is about as many times as long.
    behind = (asked.shots + 1) * candidates if asked.shots else 0
    rows_read = tuning.questions * (_READ_PER_QUESTION + behind)
    rows_read += len(asked.harness_tasks) * asked.harness_questions * (asked.shots + 1) * candidates
    read = rows_read * _READING * step / tuning.batch_size
    return tuned * tuning.epochs * rows / tuning.batch_size * step + measured * read


def _seconds_of_answers(base: LoadedModel, public: pa.Table, config: TrajectoryMatchingConfig, clock: Clock) -> float:
    """The public model answers a few of the public instructions, which stand for all."""
    pairs = [pair for pair in pairs_of(public.slice(0, _ANSWERED)) if pair is not None]
    began = clock()
    answered(base, pairs, config)
    rounds: float = public.num_rows / max(1, len(pairs))
    return (clock() - began) * rounds


def _selection_seconds(config: TrajectoryMatchingConfig, rows: int, clock: Clock) -> float:
    """LESS takes a gradient of every row at every state, by its own model; the others take next to nothing."""
    selector = load_selector(config, chosen())
    student = expert_student(selector.model, config, 0)
    return config.selection.warmup_epochs * rows * _seconds_of_tuning(student, _made_up(selector, config, 1), clock)


def _made_up(base: LoadedModel, config: TrajectoryMatchingConfig, rows: int) -> Rows:
    found = _encoded(base, config, rows)
    return Rows(found.input_ids, found.attention_mask, found.loss_mask)


def _encoded(base: LoadedModel, config: TrajectoryMatchingConfig, rows: int) -> EncodedPairs:
    """Rows that fill the width: an instruction of half of it, a short answer."""
    pair = Pair("a question " * config.max_length, "an answer of some words")
    return PairEncoder(base.tokenizer, config.template).encode([pair] * rows, max_length=config.max_length)


def _seconds_of_tuning(student: Student, rows: Rows, clock: Clock) -> float:
    """One step on all of the rows."""
    schedule = Schedule(_STEPS, len(rows), 1e-4, 0)
    return _last(lambda mark: fine_tune(student, rows, schedule, course=Course(progress=mark)), clock)


def _seconds_of_matching(student: Student, rows: Rows, config: TrajectoryMatchingConfig, clock: Clock) -> float:
    return _last(lambda mark: _match(student, rows, config, progress=mark, steps=_STEPS), clock)


def _match(
    student: Student, rows: Rows, config: TrajectoryMatchingConfig, *, progress: Progress | None = None, **sizes: int
) -> None:
    settings = config.distil.model_copy(update={"max_start": 1, "span": 1, **sizes})
    few = config.model_copy(update={"distil": settings})
    moved = {name: value + 1e-3 for name, value in student.start.items()}
    distil(student, rows, [[student.start, moved]], few, Course(progress=progress))


def _private_step(
    student: Student, base: LoadedModel, config: TrajectoryMatchingConfig, promise: Promise, clock: Clock
) -> float:
    """One step of DP-SGD on as many made-up rows as are expected."""
    rows = _encoded(base, config, config.experts.batch_size)
    plan = plan_of_expert(config, promise.queries, 0)
    few = plan.model_copy(update={"n": len(rows.valid), "sampling_probability": 1.0, "steps": _STEPS})
    # Keys of no charge: what this trains on is made up, and the result is thrown away.
    mechanisms = Mechanisms.live(KeyMaterial(b"estimate" * 4, "estimate", b"estimate" * 4, few.queries))
    short = config.model_copy(update={"experts": config.experts.model_copy(update={"epochs": 1})})
    with TemporaryDirectory() as folder:
        return _last(
            lambda mark: train_private_expert(
                student, rows, short, plan=few, mechanisms=mechanisms, folder=Path(folder), progress=mark
            ),
            clock,
        )


def _last(work: Callable[[Callable[[int, int], None]], object], clock: Clock) -> float:
    """Seconds of the last step of some work that calls back after each."""
    marks: list[float] = []
    work(lambda _step, _total: marks.append(clock()))
    return marks[-1] - marks[-2]

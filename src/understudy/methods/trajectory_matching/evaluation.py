"""Instruction tuning on the result, and its measure on held-out rows (NACD, section 3.3); internal figures.

At most `tuning.questions` of the held-out rows are measured on, drawn by the public seed. Those whose responses repeat,
such as labels, are multiple-choice questions, with the responses of all held-out rows as candidates. Of all of them the
mean loss of the response is measured. The last weights are measured, never the best. What is tuned is the base model
with new adapters. Where they are asked for, the questions are asked again behind public examples, and each model is
measured on tasks of lm-evaluation-harness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from understudy.evaluation.answers.harness import measured_by_harness
from understudy.evaluation.answers.multiple_choice import Question, likelihoods, questions_of, rightly_answered
from understudy.evaluation.answers.shots import draw_shots, few_shot
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics, merge
from understudy.evaluation.statistics.intervals import accuracy_interval, paired_bootstrap
from understudy.evaluation.statistics.paired import mean_difference, mean_interval
from understudy.generation.instructions import Pair, PairEncoder
from understudy.methods.trajectory_matching.carriers import encoded
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.distil import Distilled, mean_prompts
from understudy.methods.trajectory_matching.emission import with_pseudo_text
from understudy.methods.trajectory_matching.experts import adapters_of, expert_student
from understudy.methods.trajectory_matching.metric_names import (
    CONDITIONS,
    CONTROLS,
    METRIC_NAMES,
    PARTS,
)
from understudy.methods.trajectory_matching.selection import random_rows
from understudy.methods.trajectory_matching.student import Student
from understudy.methods.trajectory_matching.training import Schedule, fine_tune
from understudy.methods.trajectory_matching.unroll import Weights
from understudy.models.loading import LoadedModel

_BATCH = 16


@dataclass(frozen=True)
class Emitted:
    """What is tuned on.

    Attributes:
        carriers: the chosen rows.
        distilled: their pseudo tokens.
        text: of the pseudo tokens of each row.
    """

    carriers: Sequence[Pair] = field(repr=False)
    distilled: Distilled
    text: Sequence[str] = field(repr=False)

    @property
    def as_text(self) -> list[Pair]:
        """The rows behind the text of their pseudo tokens."""
        texts = with_pseudo_text([pair.instruction for pair in self.carriers], self.text)
        return [replace(pair, instruction=text) for pair, text in zip(self.carriers, texts, strict=True)]


@dataclass(frozen=True)
class Measuring:
    """What is measured on; private.

    Attributes:
        rows: held-out rows.
        questions: of those rows; none where held-out responses do not repeat.
    """

    rows: Sequence[Pair] = field(repr=False)
    questions: Sequence[Question] = field(repr=False)


@dataclass(frozen=True)
class Answers:
    """What a model makes of the held-out rows; private.

    Attributes:
        losses: `(rows,)` mean loss of each response.
        correct: `(questions,)` whether each question is answered rightly.
        few_shot: the same behind the public examples, of the questions that fit whole; empty without examples.
        harness: accuracy by task of lm-evaluation-harness.
        failed: why there is none, though tasks were named.
    """

    losses: npt.NDArray[np.float64] = field(repr=False)
    correct: npt.NDArray[np.bool_] = field(repr=False)
    few_shot: npt.NDArray[np.bool_] = field(repr=False, default_factory=lambda: np.zeros(0, dtype=bool))
    harness: Mapping[str, float] = field(default_factory=dict)
    failed: str | None = None


def measuring(held_out: Sequence[Pair], config: TrajectoryMatchingConfig) -> Measuring:
    """At most `tuning.questions` held-out rows, drawn by the public seed: a file may be sorted by its responses."""
    rows, most = list(held_out), config.tuning.questions
    answers = next((question.candidates for question in questions_of(rows)), ())
    if len(rows) > most:
        rows = [rows[row] for row in random_rows(len(rows), most, generator=np.random.default_rng(config.public_seed))]
    return Measuring(rows, questions_of(rows, candidates=answers))


def evaluate_tuning(
    base: LoadedModel,
    emitted: Emitted,
    expert: Weights,
    held_out: Sequence[Pair],
    config: TrajectoryMatchingConfig,
    *,
    train: Sequence[Pair] = (),
    other: LoadedModel | None = None,
) -> Metrics:
    """Tune on the result and on what it is compared with, and measure each.

    Args:
        base: the distiller; changed.
        emitted: what is tuned on.
        expert: last weights of an expert.
        held_out: real rows, private; the figures are internal.
        config: sizes.
        train: real rows that the experts read; private.
        other: a model of another family, tuned on the text; changed. None leaves it out.
    """
    test = measuring(held_out, config)
    student = expert_student(base.model, config, 0)
    measured = _Measured(student, base, test, config)
    rows, text = (encoded(pairs, base.tokenizer, config) for pairs in (emitted.carriers, emitted.as_text))
    prompts = emitted.distilled.prompts.to(student.vocabulary.device)
    plain = mean_prompts(student.vocabulary, len(rows), prompts.shape[1])
    schedule = _schedule(config)
    found = {
        "untuned": measured(student.start),
        "expert": measured(expert),
        "selected": measured(fine_tune(student, rows, schedule).weights),
        "mean_tokens": measured(fine_tune(student, rows, schedule, prompts=plain).weights),
        "distilled": measured(fine_tune(student, rows, schedule, prompts=prompts).weights),
        "distilled_text": measured(fine_tune(student, text, schedule).weights),
    }
    if other is not None:
        found |= _transfer(other, emitted, test, config)
    values = _of_distillation(emitted.distilled) | _cut(train, base, config)
    missing = [f"{CONDITIONS[name]}, harness tasks: {one.failed}" for name, one in found.items() if one.failed]
    if not test.questions:
        missing.append("accuracy among candidates: held-out responses do not repeat")
    return merge(
        Metrics(values=values, missing=tuple(missing), declared=METRIC_NAMES),
        compared(found, EvaluationConfig(profile=config.profile)),
    )


def compared(found: Mapping[str, Answers], settings: EvaluationConfig) -> Metrics:
    """Accuracy and loss by condition, and those of the distilled rows beside their controls, row by row.

    Args:
        found: condition -> what a model so tuned makes of the held-out rows.
        settings: of the bootstrap.
    """
    ours, each = found["distilled"], {}
    for condition, one in found.items():
        if len(one.losses):
            each[f"{condition}.loss"] = mean_interval(one.losses, **settings.bootstrap)
        if len(one.correct):
            each[f"{condition}.accuracy"] = accuracy_interval(one.correct, **settings.bootstrap)
        if len(one.few_shot):
            each[f"{condition}.few_shot_accuracy"] = accuracy_interval(one.few_shot, **settings.bootstrap)
    for control in CONTROLS:
        name, other = f"distilled_minus_{control}", found[control]
        if len(ours.losses):
            each[f"{name}.loss"] = mean_difference(ours.losses, other.losses, **settings.bootstrap)
        if len(ours.correct):
            each[f"{name}.accuracy"] = paired_bootstrap(ours.correct, other.correct, **settings.bootstrap)
        if len(ours.few_shot):
            each[f"{name}.few_shot_accuracy"] = paired_bootstrap(ours.few_shot, other.few_shot, **settings.bootstrap)
    harness = {
        f"tuning.{condition}.harness.{task}": value
        for condition, one in found.items()
        for task, value in one.harness.items()
    }
    counted = {"tuning.few_shot_questions": float(len(ours.few_shot))} if len(ours.few_shot) else {}
    return Metrics(
        values={f"tuning.{name}": one.value for name, one in each.items()} | harness | counted,
        intervals={f"tuning.{name}": (one.low, one.high) for name, one in each.items()},
        declared=METRIC_NAMES,
    )


def _cut(train: Sequence[Pair], base: LoadedModel, config: TrajectoryMatchingConfig) -> dict[str, float]:
    """How many private rows are longer than what an expert reads."""
    instructions, responses = PairEncoder(base.tokenizer, config.template).count_cut(
        train, max_length=config.max_length
    )
    return {"cut.train.instructions": float(instructions), "cut.train.responses": float(responses)}


def _transfer(
    other: LoadedModel, emitted: Emitted, test: Measuring, config: TrajectoryMatchingConfig
) -> dict[str, Answers]:
    """The same for a model that knows the pseudo tokens as text only."""
    student = expert_student(other.model, config, 0)
    measured = _Measured(student, other, test, config)
    found = {"transfer.untuned": measured(student.start)}
    for condition, pairs in (("selected", emitted.carriers), ("distilled_text", emitted.as_text)):
        tuned = fine_tune(student, encoded(pairs, other.tokenizer, config), _schedule(config))
        found[f"transfer.{condition}"] = measured(tuned.weights)
    return found


def _schedule(config: TrajectoryMatchingConfig) -> Schedule:
    tuning = config.tuning
    return Schedule(tuning.epochs, tuning.batch_size, tuning.learning_rate, config.public_seed)


@dataclass(frozen=True)
class _Measured:
    """What one model makes of the held-out rows, at some adapters' weights."""

    student: Student
    base: LoadedModel
    test: Measuring
    config: TrajectoryMatchingConfig

    def __call__(self, weights: Weights) -> Answers:
        config, tokenizer = self.config, self.base.tokenizer
        rows, questions = self.test.rows, self.test.questions
        encoder = PairEncoder(tokenizer, config.template)
        with _holding(self.student, weights):
            model = self.student.lm
            losses = [
                -likelihoods(model, encoder, rows[start : start + _BATCH], max_length=config.max_length)
                for start in range(0, len(rows), _BATCH)
            ]
            right = (
                rightly_answered(model, tokenizer, questions, template=config.template, max_length=config.max_length)
                if questions
                else []
            )
            led = few_shot(
                model, tokenizer, questions, self.shots, template=config.template, max_length=config.max_length
            )
            harness, failed = measured_by_harness(model, tokenizer, config.evaluation)
        whole = torch.cat(losses).double().cpu().numpy() if losses else np.zeros(0)
        return Answers(whole, np.array(right, dtype=bool), np.array(led, dtype=bool), harness, failed)

    @property
    def shots(self) -> Sequence[Pair]:
        """The public examples; of every condition the same."""
        return draw_shots(self.config.evaluation, seed=self.config.public_seed)


@contextmanager
def _holding(student: Student, weights: Weights) -> Iterator[None]:
    """The student's own adapters with these weights; its start afterwards."""
    _fill(student, weights)
    try:
        yield
    finally:
        _fill(student, student.start)


@torch.no_grad()
def _fill(student: Student, weights: Weights) -> None:
    for name, parameter in adapters_of(student).items():
        parameter.copy_(weights[name])


def _of_distillation(distilled: Distilled) -> dict[str, float]:
    parts = distilled.losses.tensor_split(min(PARTS, len(distilled.losses)))
    tail = len(parts[-1])
    return {
        **{f"distillation.matching_loss.part_{n}": float(part.mean()) for n, part in enumerate(parts)},
        "distillation.matching_loss.last": float(parts[-1].mean()),
        "distillation.distance.first": float(distilled.distances[0]),
        "distillation.distance.last": float(distilled.distances[-tail:].mean()),
        "distillation.step_size": distilled.step_size,
    }

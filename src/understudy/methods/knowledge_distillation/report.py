"""What the report says of knowledge distillation; a section whose figures were not measured is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from understudy.evaluation.metrics import Metrics
from understudy.evaluation.names import harness_tasks
from understudy.methods.knowledge_distillation.metric_names import MODELS, SETS
from understudy.reporting.text_formatting import capitalised, number, percent, signed
from understudy.reporting.view import Beside, Headline, MethodSections, Section, Table, range_of

HEADLINE = Headline(
    "responses.target.loss",
    "the mean loss of held-out responses under the distilled model is {}",
    (
        Beside(
            "responses.public_only.loss",
            "responses.target_minus_public_only.loss",
            "the model distilled without private pairs",
        ),
    ),
    rival="the same steps without private pairs",
)


def sections(metrics: Metrics, _statement: Mapping[str, Any]) -> MethodSections:
    """The sections of a run, in the place of the accuracy of a classifier."""
    parts = (response_section, answer_section, chosen_section, difficulty_section)
    found = tuple(part(metrics) for part in parts)
    return MethodSections(first=tuple(section for section in found if section is not None), headlines=(HEADLINE,))


def response_section(metrics: Metrics) -> Section | None:
    """How likely held-out responses are to each model, and whose answers the judge prefers."""
    values = metrics.values
    if "responses.target.loss" not in values:
        return None
    lead = [
        f"The mean loss of held-out responses is {values['responses.target.loss']:.3f} nats per token under the "
        f"distilled model and {values['responses.dp_only.loss']:.3f} under the DP model.",
        f"The difference is {_difference(metrics, 'dp_only')}; below 0 the distilled model is better.",
    ]
    if "responses.public_only.loss" in values:
        lead.append(
            "The same steps without a private pair, with the base model in the place of the DP model, end at "
            f"{values['responses.public_only.loss']:.3f}. The difference, {_difference(metrics, 'public_only')}, is "
            "what the private pairs add."
        )
    if "responses.public_only.loss" in values and "responses.base.loss" in values:
        alone = values["responses.public_only.loss"] - values["responses.base.loss"]
        lead.append(
            f"From the base model's {values['responses.base.loss']:.3f} to that, {signed(alone)}, is what the "
            "professional model adds without them."
        )
    if "wins.target_over_dp_only" in values:
        lead.append(
            "The professional model prefers the distilled model's answer in "
            f"{percent(values['wins.target_over_dp_only'])} of {number(values['wins.pairs'])} comparisons; in "
            f"{percent(values['wins.undecided'])} its choice changed with the order of the two answers."
        )
    rows = tuple(
        (capitalised(words), f"{values[f'responses.{name}.loss']:.3f}")
        for name, words in MODELS.items()
        if f"responses.{name}.loss" in values
    )
    return Section(
        "responses",
        "Held-out responses",
        tuple(lead),
        table=Table(("model", "nats per token"), rows),
        note="The responses were written by people or systems that took no part in training. Intervals are over pairs.",
    )


def answer_section(metrics: Metrics) -> Section | None:
    """How often each model gives the right one of a fixed set of answers."""
    values = metrics.values
    if "answers.target.accuracy" not in values:
        return None
    lead = (
        f"The held-out responses are of a fixed set. The distilled model answers "
        f"{percent(values['answers.target.accuracy'])} of {number(values['answers.questions'])} questions rightly, the "
        f"DP model {percent(values['answers.dp_only.accuracy'])}.",
        "An answer that names none of the set, or several, counts as wrong.",
    )
    rows = tuple(
        (
            capitalised(words),
            *(percent(values[f"answers.{name}.{part}"]) for part in ("accuracy", "macro_f1", "unread")),
        )
        for name, words in MODELS.items()
        if f"answers.{name}.accuracy" in values
    )
    return Section(
        "answers",
        "Answers of a fixed set",
        lead,
        table=Table(("model", "right", "macro F1", "unread"), rows),
        note="Answers are the likeliest tokens of each model, read from free text.",
    )


def chosen_section(metrics: Metrics) -> Section | None:
    """Multiple choice behind public examples, and tasks of lm-evaluation-harness, by model."""
    values = metrics.values
    columns = {task: f"harness.{{}}.{task}" for task in harness_tasks(values, "harness.target.")}
    lead = ["Tasks are those of lm-evaluation-harness; no private text is in them."] if columns else []
    if "few_shot.target.accuracy" in values:
        columns = {"behind examples": "few_shot.{}.accuracy"} | columns
        lead.insert(
            0,
            f"Behind public examples the distilled model chooses the right one of the fixed answers to "
            f"{percent(values['few_shot.target.accuracy'])} of {number(values['few_shot.questions'])} questions that "
            "fit whole, by the mean log-likelihood of each.",
        )
    if not columns:
        return None
    rows = tuple(
        (capitalised(words), *(_shown(values.get(pattern.format(name))) for pattern in columns.values()))
        for name, words in MODELS.items()
    )
    return Section("choices", "Multiple choice", tuple(lead), table=Table(("model", *columns), rows))


def _shown(value: float | None) -> str:
    return "not measured" if value is None else percent(value)


def _difference(metrics: Metrics, other: str) -> str:
    """The distilled model's loss minus another's, with its interval."""
    name = f"responses.target_minus_{other}.loss"
    between = range_of(metrics, name, signed)
    return f"{signed(metrics.values[name])}{between and f' ({between})'}"


def difficulty_section(metrics: Metrics) -> Section | None:
    """The distribution of IFD scores."""
    values = metrics.values
    rows = tuple(
        (capitalised(words), *(f"{values[f'ifd.{name}.{part}']:.2f}" for part in ("q10", "q50", "q90")))
        for name, words in SETS.items()
        if f"ifd.{name}.q50" in values
    )
    if not rows:
        return None
    return Section(
        "ifd",
        "Instruction-following difficulty",
        ("A score below 1 says that the instruction makes its response more likely; the lower, the more.",),
        table=Table(("pairs", "10 %", "median", "90 %"), rows),
        note="Perplexity of the response behind its instruction over that of the response alone, by the DP model.",
    )

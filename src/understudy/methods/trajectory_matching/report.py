"""What the report says of trajectory matching; a section whose figures were not measured is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from understudy.evaluation.metrics import Metrics
from understudy.evaluation.names import harness_tasks
from understudy.methods.trajectory_matching.config import PUBLIC_CARRIERS
from understudy.methods.trajectory_matching.metric_names import CONDITIONS, CONTROLS
from understudy.reporting.text_formatting import percent
from understudy.reporting.view import Beside, Headline, MethodSections, Section, Table

_SAID = {
    "accuracy": "the base model tuned on the distilled rows chooses the right answer to {} of held-out questions",
    "loss": "the mean loss of held-out responses under the base model tuned on the distilled rows is {}",
}


def sections(metrics: Metrics, statement: Mapping[str, Any]) -> MethodSections:
    """How the distillation went, and what tuning on its result gives.

    Args:
        metrics: what was measured.
        statement: the privacy statement, which names the rows that carry pseudo tokens where they are public.
    """
    # Where others' rows carry the tokens, whatever moves them may help a little: the matching loss says how far it was
    # the private rows.
    public = PUBLIC_CARRIERS in (statement.get("declared_public") or {})
    control, gain = ("mean_tokens", "The learned tokens helped") if public else ("untuned", "The private rows helped")
    headlines = tuple(
        Headline(
            f"tuning.distilled.{figure}",
            said,
            (Beside(f"tuning.{control}.{figure}", f"tuning.distilled_minus_{control}.{figure}", CONTROLS[control]),),
            rival=CONTROLS[control],
            gain=gain,
        )
        for figure, said in _SAID.items()
    )
    found = (tuning_section(metrics), distillation_section(metrics))
    return MethodSections(first=tuple(section for section in found if section is not None), headlines=headlines)


def tuning_section(metrics: Metrics) -> Section | None:
    """Accuracy and loss on held-out rows, by what the model was tuned on."""
    values = metrics.values
    conditions = {name: said for name, said in CONDITIONS.items() if f"tuning.{name}.loss" in values}
    if not conditions:
        return None
    columns: dict[str, tuple[str, Any]] = {"Right choices": ("accuracy", percent)}
    if any(f"tuning.{name}.few_shot_accuracy" in values for name in conditions):
        columns["Behind examples"] = ("few_shot_accuracy", percent)
    columns["Loss of a response"] = ("loss", _three)
    columns |= {task: (f"harness.{task}", percent) for task in harness_tasks(values, "tuning.distilled.harness.")}
    rows = [
        (said, *(_shown(values.get(f"tuning.{name}.{figure}"), form) for figure, form in columns.values()))
        for name, said in conditions.items()
    ]
    table = Table(("Model", *columns), tuple(rows))
    lead = "Every model is measured on real rows that nothing was trained on, at its last weights."
    return Section("tuning", "What tuning on the distilled rows gives", (lead,), table=table)


def distillation_section(metrics: Metrics) -> Section | None:
    """How close the student came to the experts, and pseudo tokens to tokens."""
    values = metrics.values
    if "distillation.matching_loss.last" not in values:
        return None
    lead = (
        f"The matching loss of the last steps is {values['distillation.matching_loss.last']:.3f}: 1 means that the "
        "student came no nearer to the expert, 0 that it arrived.",
        "The mean distance of pseudo tokens to their nearest tokens is "
        f"{values['distillation.distance.last']:.3g}; at the start it was "
        f"{values['distillation.distance.first']:.3g}.",
    )
    return Section("distillation", "How the distillation went", lead)


def _three(value: float) -> str:
    return f"{value:.3f}"


def _shown(value: float | None, form: Any) -> str:
    return "not measured" if value is None else str(form(value))

"""What the report says of conditional generation; a section whose figures were not measured is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from understudy.evaluation.metrics import Metrics
from understudy.methods.conditional_generation.metric_names import MODELS
from understudy.reporting.text_formatting import capitalised, number, signed
from understudy.reporting.view import MethodSections, Section, Table, range_of

_DIFFERENCE = "held_out.released_minus_base.loss"


def sections(metrics: Metrics, _statement: Mapping[str, Any]) -> MethodSections:
    """The sections of a run, after the common ones."""
    found = held_out_section(metrics)
    return MethodSections(last=() if found is None else (found,))


def held_out_section(metrics: Metrics) -> Section | None:
    """How likely held-out texts are to the language model, before and after the training."""
    values = metrics.values
    if _DIFFERENCE not in values:
        return None
    between = range_of(metrics, _DIFFERENCE, signed)
    lead = (
        f"The mean loss of held-out texts is {values['held_out.released.loss']:.3f} nats per token under the released "
        f"model and {values['held_out.base.loss']:.3f} under the untrained base model with the same prompts.",
        f"The difference is {signed(values[_DIFFERENCE])}{between and f' ({between})'}; {_found(metrics)}.",
    )
    rows = tuple(
        (capitalised(words), f"{values[name]:.3f}", range_of(metrics, name, "{:.3f}".format))
        for model, words in MODELS.items()
        if (name := f"held_out.{model}.loss") in values
    )
    return Section(
        "held-out",
        "Held-out loss of the language model",
        lead,
        table=Table(("Model", "Nats per token", "Interval"), rows),
        note=f"Of {number(values['held_out.rows'])} held-out texts, each behind the prompt of its own label and cut as "
        "in training. A text’s loss is the mean over its tokens. Intervals are over texts.",
    )


def _found(metrics: Metrics) -> str:
    """What the interval of the difference says."""
    low, high = metrics.intervals.get(_DIFFERENCE, (0.0, 0.0))
    if high < 0:
        return "training made such texts likelier"
    if low > 0:
        return "training made such texts less likely, as noise does where it drowns what the rows teach"
    return "no effect of the training on such texts could be measured"

"""What the report says of gradient matching; a section whose figures were not measured is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from understudy.evaluation import common_metrics
from understudy.evaluation.metrics import Metrics
from understudy.evaluation.statistics.intervals import is_told_apart
from understudy.methods.gradient_matching import figures
from understudy.methods.gradient_matching.metric_names import DROP_REASONS
from understudy.reporting.text_formatting import number, percent
from understudy.reporting.view import CONDITION_TITLES, MethodSections, Section, Table, both, range_of

_SIGNAL = "signal-to-noise"


def sections(metrics: Metrics, statement: Mapping[str, Any]) -> MethodSections:
    """The sections of a run, after the common ones.

    Args:
        metrics: what was measured.
        statement: the privacy statement, of which the warnings are read.
    """
    found = (
        matching_section(metrics, statement.get("warnings") or ()),
        transfer_section(metrics),
        nearest_section(metrics),
        error_section(metrics),
        membership_section(metrics),
    )
    return MethodSections(last=tuple(section for section in found if section is not None))


def matching_section(metrics: Metrics, warnings: Sequence[str] = ()) -> Section | None:
    """Losses of the matching, its signal-to-noise ratio, and what the filters dropped."""
    values = metrics.values
    drawing = figures.loss_figure(metrics)
    if drawing is None:
        return None
    lead = []
    kept, other = values.get("matching.loss.median"), values.get("matching.loss.prompt_only_median")
    if kept is None:
        lead.append("No matched text was kept.")
    else:
        beside = "" if other is None else f"; that of prompt-only text is {other:.3f}"
        lead.append(f"The median matching loss of the kept texts is {kept:.3f}{beside}.")
    bound = values.get("matching.signal_to_noise_bound")
    if bound is None:
        lead.append("The target carries no noise.")
    else:
        lead.append(f"The target’s signal-to-noise ratio is at most {number(bound, 2)}, whatever the rows hold.")
    lead += [f"{text[:1].upper()}{text[1:]}." for text in warnings if text.startswith(_SIGNAL)]
    lead += _label_check(metrics)
    return Section(
        "matching",
        "Matching",
        tuple(lead),
        drawing,
        _counts_table(values),
        "The loss is 1 minus the cosine between a text’s gradient and the noised target of its label, of the emitted "
        "string, tokenised again. Under much noise a low loss means that the noise was matched.",
    )


def transfer_section(metrics: Metrics) -> Section | None:
    """Accuracy of fine-tuned target models, log-perplexity."""
    values = metrics.values
    drawing = figures.transfer_figure(metrics)
    if drawing is None:
        return None
    lead = []
    for model in figures.transfer_models(metrics):
        shares = {
            condition: values.get(f"utility.transfer.{model}.{condition}.accuracy")
            for condition in common_metrics.CONDITIONS
        }
        others = [
            f"{words} {percent(share)}"
            for condition, words in (("prompt_only", "on prompt-only text"), ("real", "on a few real rows"))
            if (share := shares[condition]) is not None
        ]
        beside = f"; {', '.join(others)}" if others else ""
        lead.append(
            f"{model}, fine-tuned on the synthetic text, is right on {percent(shares['synthetic'] or 0.0)}{beside}."
        )
    lead += [f"Not measured: {reason}." for reason in metrics.missing if "target model" in reason]
    rows = values.get("utility.transfer.real_rows")
    table = tuple(
        (CONDITION_TITLES[condition], number(values[name]))
        for condition in common_metrics.CONDITIONS
        if (name := f"language_model.log_perplexity.{condition}") in values
    )
    return Section(
        "transfer",
        "Transfer to target models",
        tuple(lead),
        drawing,
        Table(("Text", "Log-perplexity"), table) if table else None,
        f"Of real rows, {'a few' if rows is None else number(rows)} are tuned on, with the same steps; the last "
        "checkpoint is tested. Log-perplexity: nats per token under the public base model.",
    )


def nearest_section(metrics: Metrics) -> Section | None:
    """Distances to private rows, one by one and as sets."""
    values = metrics.values
    drawing = figures.nearest_figure(metrics)
    if drawing is None:
        return None
    lead = []
    if pair := both(values, "memorization.nearest_median.synthetic", "memorization.nearest_median.holdout"):
        lead.append(
            f"The median synthetic text is {pair[0]:.3f} from its nearest private row; the median real row never seen "
            f"is {pair[1]:.3f} from its own."
        )
    share = values.get("memorization.nearest_share")
    if share is not None:
        some = percent(share) if share else "None"
        lead.append(f"{some} of the synthetic texts are nearer than {percent(0.95, 0)} of the rows never seen are.")
    rows = tuple(
        (title, number(values[name], 3))
        for name, title in (
            ("fidelity.train_frechet", "Synthetic"),
            ("fidelity.prompt_only.train_frechet", "Prompt-only"),
            ("fidelity.few_real.train_frechet", "As many real rows"),
        )
        if name in values
    )
    size = values.get("fidelity.train_frechet_rows")
    compared = [values.get(f"memorization.nearest_rows.{side}") for side in ("synthetic", "holdout")]
    if compared[0] is not None and compared[1] is not None:
        lead.append(
            f"Distances are those of {number(compared[0])} synthetic texts and {number(compared[1])} rows never seen, "
            "each to all private rows."
        )
    return Section(
        "nearest",
        "Distance to the private rows",
        tuple(lead),
        drawing,
        Table(("Set", "Fréchet distance to training rows"), rows) if rows else None,
        "A distance says whether texts repeat private rows, not whether privacy is kept: a text far away may still "
        f"hold a secret word.{'' if size is None else f' Fréchet distances: {number(size)} rows per set.'}",
    )


def error_section(metrics: Metrics) -> Section | None:
    """Gradient error along fine-tuning."""
    drawing = figures.error_figure(metrics)
    if drawing is None:
        return None
    last = {side: line[-1] for side in ("", "prompt_only.", "real.") if (line := figures.error_line(metrics, side))}
    step, value = last[""]
    size = metrics.values.get("matching.gradient_error.real_rows")
    other = f"of {'' if size is None else f'{number(size)} '}other real rows"
    others = [
        f"{words} {last[side][1]:.2f}"
        for side, words in (("prompt_only.", "of prompt-only text"), ("real.", other))
        if side in last
    ]
    beside = f"; {', '.join(others)}" if others else ""
    return Section(
        "gradient-error",
        "Gradient error",
        (f"After {step} steps the error of the synthetic text is {value:.2f}{beside}.",),
        drawing,
        note="How well synthetic rows stand in for real ones while the run’s own model is fine-tuned on them: 0 is the "
        "real rows’ gradient, 1 what no gradient at all would reach. A mean over fewer rows is further off by chance.",
    )


def membership_section(metrics: Metrics) -> Section | None:
    """The loss attack beside its controls."""
    values, intervals = metrics.values, metrics.intervals
    drawing = figures.membership_figure(metrics)
    if drawing is None:
        return None
    name, control, null = (
        f"audit.mia.{condition}advantage" for condition in ("", "positive_control.", "null_control.")
    )
    lead = [f"Against the model tuned on synthetic text the attack’s advantage is {_signed(metrics, name)}."]
    if control in intervals and intervals[control][0] > 0:
        lead.append(f"It catches the positive control: {_signed(metrics, control)}.")
    else:
        lead.append(
            f"It does not even catch the positive control ({_signed(metrics, control)}), so it says nothing about the "
            "synthetic text."
        )
    apart = "audit.mia.null_control.auc"
    if null in intervals and apart in intervals and is_told_apart(intervals[null], intervals[apart]):
        lead.append(
            f"The null control never met the members and is told apart all the same ({_signed(metrics, null)}, with an "
            f"AUC of {values[apart]:.2f}): "
            "members and the other rows differ by where they come from, so none of these figures says anything about "
            "membership."
        )
    least, rows = values.get("audit.mia.detectable_epsilon"), values.get("audit.mia.rows")
    whom = "" if rows is None else f", of {number(rows)} members and as many others"
    if least is not None:
        lead.append(f"With so few rows it could tell no epsilon below {number(least, 2)} from perfect privacy.")
    table = tuple(
        (
            title,
            f"{values[f'audit.mia.{condition}auc']:.2f}",
            range_of(metrics, f"audit.mia.{condition}auc", "{:.2f}".format),
        )
        for condition, title in (
            ("", "Synthetic"),
            ("positive_control.", "Positive control"),
            ("null_control.", "Null control"),
        )
        if f"audit.mia.{condition}auc" in values
    )
    return Section(
        "membership",
        "Membership inference",
        tuple(lead),
        drawing,
        Table(("Model tuned on", "AUC", "Interval"), table) if table else None,
        f"The attacker sees one loss per row{whom}; "
        "the positive control was tuned on the members themselves, the null control never met them.",
    )


def _label_check(metrics: Metrics) -> list[str]:
    """How often the label check agreed, and what to do where it may as well have guessed."""
    name = "matching.label_check.agreement"
    if name not in metrics.values:
        return []
    chance = metrics.values["matching.label_check.chance"]
    said = (
        f"The label check confirms {percent(metrics.values[name])} ({range_of(metrics, name, percent)}) of the texts "
        f"that it read; guessing would confirm {percent(chance)}."
    )
    if metrics.intervals[name][0] > chance:
        return [said]
    return [
        said,
        "So it may be dropping texts at random: this model can hardly tell their labels apart. "
        "filter.label_check=false keeps them; that run charges nothing more.",
    ]


def _counts_table(values: dict[str, float]) -> Table:
    rows = [("Matched", number(values.get("matching.drawn", 0.0)))]
    rows += [
        (f"Dropped: {words}", number(values[name]))
        for reason, words in DROP_REASONS.items()
        if (name := f"matching.dropped.{reason}") in values
    ]
    rows.append(("Kept", number(values.get("matching.kept", 0.0))))
    if values.get("matching.shortfall"):
        rows.append(("Asked for but not reached", number(values["matching.shortfall"])))
    return Table(("Texts", "Number"), tuple(rows))


def _signed(metrics: Metrics, name: str) -> str:
    between = range_of(metrics, name, lambda value: f"{value:+.2f}".replace("-", "\u2212"))
    return f"{metrics.values[name]:+.2f}".replace("-", "\u2212") + (f" ({between})" if between else "")

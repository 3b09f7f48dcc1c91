"""What the report says, section by section, as plain data that the template lays out.

A section whose figures are missing says so and why; it is never an empty box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from understudy.evaluation import common_metrics, names
from understudy.evaluation.metrics import Metrics
from understudy.reporting import figures, single_rows
from understudy.reporting.drawing import Drawing
from understudy.reporting.text_formatting import number, percent, points, words_in


@dataclass(frozen=True)
class Table:
    """A table: the first column heads its rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = field(repr=False)


@dataclass(frozen=True)
class Section:
    """One section of the report.

    Attributes:
        key: id of the heading.
        title: heading.
        lead: sentences, the finding first.
        drawing: its figure.
        table: its numbers.
        note: how to read it, or what it does not show.
        missing: why there is no figure; empty when there is one.
    """

    key: str
    title: str
    lead: tuple[str, ...] = ()
    drawing: Drawing | None = None
    table: Table | None = None
    note: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Beside:
    """What a headline is compared with.

    Attributes:
        figure: its own figure.
        difference: figure of the headline minus it, whose interval decides.
        words: for it, such as `real text`.
    """

    figure: str
    difference: str
    words: str


@dataclass(frozen=True)
class Headline:
    """A figure that a report opens with, and the same without private rows.

    Attributes:
        figure: its name; the unit, and which way is better, are those that were declared for it.
        said: a sentence with `{}` for the figure, without capital and full stop.
        beside: the same without private rows, and then whatever else it is compared with.
        rival: what the first of these is called where the run was no better.
        gain: what is said where it was.
    """

    figure: str
    said: str
    beside: tuple[Beside, ...]
    rival: str
    gain: str = "The private rows helped"


@dataclass(frozen=True)
class MethodSections:
    """What a method adds to the report of its runs.

    Attributes:
        first: stand in the place of the accuracy of a classifier; where there are none, that section stays.
        last: come after the common sections.
        common: whether there are any; a page about something else than one synthetic table has none.
        headlines: what the page may open with, before the accuracy of a classifier: the first that was measured.
    """

    first: tuple[Section, ...] = ()
    last: tuple[Section, ...] = ()
    common: bool = True
    headlines: tuple[Headline, ...] = ()


SectionsOf = Callable[[Metrics, Mapping[str, Any]], MethodSections]  # (figures, privacy statement) -> sections


# The report names mean recalls where one of them differs from its accuracy by at least this.
_APART = 0.01

CONDITION_TITLES = {"prompt_only": "Prompt-only", "synthetic": "Synthetic", "real": "Real"}


def both(values: Mapping[str, float], name: str, other: str) -> tuple[float, float] | None:
    """Two figures that are told side by side; None where one of them is missing."""
    return (values[name], values[other]) if name in values and other in values else None


def utility_section(metrics: Metrics) -> Section:
    """Accuracy on real rows by training set."""
    values, key, title = metrics.values, "utility", "Utility"
    drawing = figures.utility_figure(metrics)
    if drawing is None:
        otherwise = "Accuracy was not measured: this run has no labelled real test rows."
        return Section(key, title, missing=_reason(metrics, "accuracy", otherwise))
    lead = [
        "A classifier trained on the synthetic text is right on "
        f"{percent(values['utility.synthetic.accuracy'])} of real rows it never saw{_beside(values)}."
    ]
    for other, words in (("real", "real text"), ("prompt_only", "prompt-only text")):
        name = f"utility.synthetic_minus_{other}.accuracy"
        if name in values:
            between = range_of(metrics, name, lambda share: points(share, unit=""))
            lead.append(f"Synthetic minus {words}: {points(values[name])}{between and f' ({between})'}.")
    lead += _of_unequal_labels(metrics)
    learnt = f"Real text: {number(values['utility.real_rows'])} rows. " if "utility.real_rows" in values else ""
    tested = f"Tested on {number(values['utility.test_rows'])} real rows. " if "utility.test_rows" in values else ""
    return Section(
        key,
        title,
        tuple(lead),
        drawing,
        _accuracy_table(metrics),
        f"{learnt}{tested}Probe: logistic regression on sentence embeddings. Transformer: a small language model, "
        "fine-tuned. Prompt-only text comes from the same base model and never met the private data.",
    )


def fidelity_section(metrics: Metrics) -> Section:
    """MAUVE and Frechet distance."""
    values, key, title = metrics.values, "fidelity", "Fidelity"
    drawing = figures.fidelity_figure(metrics)
    if drawing is None:
        otherwise = "MAUVE and Fréchet distance were not measured."
        return Section(key, title, missing=_reason(metrics, "MAUVE", otherwise))
    mauve, frechet = (
        f"MAUVE is {values['fidelity.mauve']:.2f}",
        f"The Fréchet distance is {values['fidelity.frechet']:.3f}",
    )
    ceiling, floor = values.get("fidelity.mauve_ceiling"), values.get("fidelity.frechet_floor")
    if ceiling is not None:
        mauve += f"; real text scores {ceiling:.2f} against other real text of the same size"
    if floor is not None:
        frechet += f"; real text is {floor:.3f} from other real text, the least to expect"
    size = f" {number(values['fidelity.rows'])} rows per set." if "fidelity.rows" in values else ""
    drawn = values.get("fidelity.mauve_rows")
    if drawn is not None and drawn < values.get("fidelity.rows", 0.0):
        size += f" MAUVE is the mean over random subsamples of {number(drawn)} rows per set."
    return Section(
        key,
        title,
        (f"{mauve}.", f"{frechet}."),
        drawing,
        note="Both compare sentence embeddings with real text that the generator never saw. Both depend on "
        f"the number of rows: compare within this report, not across reports.{size}",
    )


def memorization_section(metrics: Metrics) -> Section:
    """n-gram overlap, and what single rows hold, beside a holdout."""
    values, key, title = metrics.values, "memorization", "Memorisation"
    lead: list[str] = []
    if pair := both(values, "memorization.ngram_5.synthetic", "memorization.ngram_5.holdout"):
        lead.append(
            f"Of the distinct runs of five words in the synthetic text {percent(pair[0], 2)} stand in "
            f"private rows and {percent(pair[1], 2)} in as many real rows that the generator never saw."
        )
    longest = values.get("memorization.longest_match.all_private")
    if longest is not None:
        lead.append(f"The longest run of words shared with any private row has {words_in(longest)}.")
    duplicates = values.get("memorization.exact_duplicates.all_private")
    if duplicates is not None:
        share = percent(duplicates, 2) if duplicates else "None"
        lead.append(f"{share} of the synthetic texts equal{'' if duplicates else 's'} a private row.")
    lead += single_rows.said_of_single_rows(metrics)
    drawing = figures.memorization_figure(metrics)
    return Section(
        key,
        title,
        tuple(lead),
        drawing,
        _overlap_table(values),
        "Of n-grams and the longest run both columns read equally many rows, the sentences on any private row all of "
        "them. Common phrases occur in any two texts, so the first column means little without the second. A gap "
        "between them is a sign of memorisation; the absence of a gap is not a proof of privacy."
        f"{single_rows.note_of_single_rows(values)}",
        "" if drawing else _reason(metrics, "n-gram", "n-gram overlap was not measured."),
    )


def diversity_section(metrics: Metrics) -> Section:
    """Lengths and variety."""
    values, key, title = metrics.values, "diversity", "Length and diversity"
    drawing = figures.length_figure(metrics)
    labels: dict[str, tuple[str, Callable[[float], str]]] = {
        "distinct_1": ("Distinct words", percent),
        "distinct_2": ("Distinct 2-grams", percent),
        "distinct_3": ("Distinct 3-grams", percent),
        "duplicates": ("Repeated texts", percent),
        "length_mean": ("Mean length in words", number),
        "length_q50": ("Median length in words", number),
    }
    rows = [
        (label, form(values[f"diversity.{name}"]), form(values[f"diversity.real.{name}"]))
        for name, (label, form) in labels.items()
        if f"diversity.{name}" in values and f"diversity.real.{name}" in values
    ]
    lead = []
    if pair := both(values, "diversity.distinct_2", "diversity.real.distinct_2"):
        lead.append(
            f"Of the synthetic pairs of words {percent(pair[0])} are distinct; of as many real texts’, "
            f"{percent(pair[1])}."
        )
    return Section(
        key,
        title,
        tuple(lead),
        drawing,
        Table(("", "Synthetic", "Real"), tuple(rows)) if rows else None,
        "Much less variety than in the real text points to a generator that repeats itself. The last bar "
        "also counts all longer texts.",
        "" if drawing else _reason(metrics, "diversity", "The length distribution was not measured."),
    )


def label_section(metrics: Metrics, label_names: Sequence[str]) -> Section:
    """Label fidelity."""
    values, key, title = metrics.values, "labels", "Label fidelity"
    drawing = figures.label_figure(metrics, label_names)
    if drawing is None:
        otherwise = "Label fidelity was not measured: the data of this run has no labels."
        return Section(key, title, missing=_reason(metrics, "label fidelity", otherwise))
    agreed = percent(values["label_fidelity.synthetic"])
    real = values.get("label_fidelity.real")
    most = f"; on real test rows it is right in {percent(real)}" if real is not None else ""
    return Section(
        key,
        title,
        (f"A judge trained on real text agrees with {agreed} of the synthetic labels{most}.",),
        drawing,
        note="The judge is not the head that may have steered generation, which would confirm itself. It saw "
        "private rows, so it judges here and filters nothing.",
    )


def all_figures(metrics: Metrics) -> Table:
    """Every measured value with its meaning."""
    rows = tuple(
        (name, number(value), range_of(metrics, name, number), names.describe(name, metrics.declared).meaning)
        for name, value in sorted(metrics.values.items())
    )
    return Table(("Name", "Value", "Interval", "Meaning"), rows)


def _accuracy_table(metrics: Metrics) -> Table | None:
    rows = tuple(
        (
            f"{CONDITION_TITLES[condition]}, {evaluator}",
            percent(metrics.values[name]),
            range_of(metrics, name, _bare_percent),
        )
        for evaluator in ("probe", "transformer")
        for condition in common_metrics.CONDITIONS
        if (name := f"utility.{evaluator}.{condition}.accuracy") in metrics.values
    )
    level = metrics.values.get("utility.confidence_level")
    interval = f"{percent(level, 0)} interval" if level is not None else "Interval"
    return Table(("Trained on", "Accuracy", interval), rows) if rows else None


def labels_are_unequal(metrics: Metrics) -> bool:
    """Whether mean recalls tell another story than accuracies: a common label may hide a missing one."""
    values = metrics.values
    return any(
        abs(values[f"utility.{condition}.mean_recall"] - values[f"utility.{condition}.accuracy"]) >= _APART
        for condition in common_metrics.CONDITIONS
        if {f"utility.{condition}.mean_recall", f"utility.{condition}.accuracy"} <= values.keys()
    )


def _of_unequal_labels(metrics: Metrics) -> list[str]:
    """Mean recalls, where they are not the accuracies."""
    if not labels_are_unequal(metrics):
        return []
    found = []
    for condition, words in CONDITION_TITLES.items():
        name = f"utility.{condition}.mean_recall"
        if name in metrics.values:
            between = range_of(metrics, name, _bare_percent)
            found.append(f"{words.lower()} {percent(metrics.values[name])}{between and f' ({between})'}")
    return [f"With every label counted alike, whatever its rows (mean recall): {', '.join(found)}."]


def _overlap_table(values: dict[str, float]) -> Table | None:
    rows = [
        (f"{n}-grams", percent(values[a], 2), percent(values[b], 2))
        for n in range(1, 10)
        if (a := f"memorization.ngram_{n}.synthetic") in values and (b := f"memorization.ngram_{n}.holdout") in values
    ]
    private, unseen = (values.get(f"memorization.longest_match.{side}") for side in ("synthetic", "holdout"))
    if private is not None and unseen is not None:
        rows.append(("Longest run", words_in(private), words_in(unseen)))
    rows += single_rows.rows_of_single_rows(values)
    return Table(("", "Private rows", "Never seen"), tuple(rows)) if rows else None


def _beside(values: dict[str, float]) -> str:
    others = [
        f"{words} gives {percent(values[name])}"
        for condition, words in (("real", "real training text"), ("prompt_only", "prompt-only text"))
        if (name := f"utility.{condition}.accuracy") in values
    ]
    return f"; {' and '.join(others)}" if others else ""


def _bare_percent(share: float) -> str:
    return f"{100 * share:.1f}"


def range_of(metrics: Metrics, name: str, form: Callable[[float], str]) -> str:
    """The interval of a figure in words; empty where it has none."""
    if name not in metrics.intervals:
        return ""
    low, high = metrics.intervals[name]
    return f"{form(low)} to {form(high)}"


def _reason(metrics: Metrics, about: str, otherwise: str) -> str:
    """The evaluation's own reason that mentions `about`, else a plain statement."""
    found = next((reason for reason in metrics.missing if about.lower() in reason.lower()), None)
    return f"Not measured. {found[:1].upper()}{found[1:]}." if found else otherwise

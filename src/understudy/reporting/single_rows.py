"""Words and identifiers of single rows, as the report tells of them: what the synthetic text holds of each."""

from __future__ import annotations

from collections.abc import Mapping

from understudy.evaluation.common_metrics import KIND_WORDS
from understudy.evaluation.metrics import Metrics
from understudy.reporting.text_formatting import number, percent, points

_THINGS = {"words": "Words of one row alone", "identifiers": "Identifiers of one row alone"}


def said_of_single_rows(metrics: Metrics) -> list[str]:
    """A sentence each on words of single rows and on identifiers; none of what was not measured."""
    found = []
    name = "memorization.lone_words"
    values = metrics.values
    if f"{name}.synthetic_minus_holdout" in values:
        low, high = (points(end, "") for end in metrics.intervals[f"{name}.synthetic_minus_holdout"])
        found.append(
            f"Of the words that stand in one private row alone, {percent(values[f'{name}.synthetic'], 2)} stand in the "
            f"synthetic text too. So do {percent(values[f'{name}.holdout'], 2)} of those that stand in one unseen row "
            f"alone, which is by chance. The difference is "
            f"{points(values[f'{name}.synthetic_minus_holdout'])} ({low} to {high})."
        )
    counted = any(f"memorization.identifiers.{kind}.private" in values for kind in KIND_WORDS)
    if counted or "memorization.lone_identifiers_held.synthetic" in values:
        found.append(_of_identifiers(values))
    return found


def rows_of_single_rows(values: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """Rows of the table of overlaps: shares with private rows and with rows never seen; only where both hold some."""
    return [
        (title, percent(values[f"{name}.synthetic"], 2), percent(values[f"{name}.holdout"], 2))
        for things, title in _THINGS.items()
        if f"{(name := f'memorization.lone_{things}')}.synthetic_minus_holdout" in values
    ]


def note_of_single_rows(values: Mapping[str, float]) -> str:
    """What the rows of `rows_of_single_rows` read, as a further part of a note; empty where there are none."""
    if not rows_of_single_rows(values):
        return ""
    return (
        " Words and identifiers of one row are looked for in all rows, and stand in no other one, private or never "
        f"seen. A name is often such a word. Identifiers are {', '.join(KIND_WORDS.values())}."
    )


def _of_identifiers(values: Mapping[str, float]) -> str:
    kinds = {
        words: [values[f"memorization.identifiers.{kind}.{part}"] for part in ("private", "replayed", "replayed_alone")]
        for kind, words in KIND_WORDS.items()
        if f"memorization.identifiers.{kind}.private" in values
    }
    if not kinds:
        return f"The private rows hold none of these: {', '.join(KIND_WORDS.values())}."
    said = ", ".join(f"{number(again)} of {number(held)} {words}" for words, (held, again, _) in kinds.items())
    again, alone = (sum(counts[part] for counts in kinds.values()) for part in (1, 2))
    of_one_row = (
        f" Of these {number(again)}, {number(alone)} stand{'s' if alone == 1 else ''} in one private row alone."
        if again
        else ""
    )
    return f"Of the identifiers in private rows, the synthetic text holds {said}.{of_one_row}"

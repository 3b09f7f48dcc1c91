"""The metrics of audits, and the words for what is attacked and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from understudy.evaluation.metric_name import Better, MetricName

MIA_CONDITIONS = {
    "": "synthetic text",
    "positive_control.": "the members themselves",
    "null_control.": "text that never met them",
}


def _membership() -> Iterable[MetricName]:
    for prefix, whose in MIA_CONDITIONS.items():
        for tail, words in (
            ("advantage", "TPR - FPR of a loss threshold chosen on other rows; 0 is guessing"),
            ("auc", "Chance that a member's loss is below a non-member's; 0.5 is guessing"),
        ):
            better: Better = "context" if prefix else "lower"
            yield MetricName(f"audit.mia.{prefix}{tail}", f"{words}; against a model tuned on {whose}", "score", better)
    yield MetricName("audit.mia.rows", "Members, and as many non-members, that were attacked", "rows", "context")
    yield MetricName(
        "audit.mia.detectable_epsilon",
        "Least epsilon whose largest possible advantage this audit could tell from guessing",
        "epsilon",
        "context",
    )


AUDIT_CONDITIONS = {
    "": "the run",
    "positive_control.": "the run without noise",
    "null_control.": "a run without canaries",
}
THREATS = {
    "data": "the synthetic table alone",
    "model": "the released model",
    "sums": "the released sums and every other row",
}


def _one_run() -> Iterable[MetricName]:
    """Audits with canaries: what an attacker who sees the data, the model, or sums and rows, finds out of each run."""
    for threat, sees in THREATS.items():
        for condition, whose in AUDIT_CONDITIONS.items():
            better: Better = "context" if condition else "lower"
            tail = f"; of {whose}, by {sees}"
            for figure, words, unit in (
                ("epsilon_lower_bound", "Least epsilon that right guesses of coins prove", "epsilon"),
                ("guesses", "Coins guessed for that bound", "rows"),
                ("right_guesses", "Of these, right guesses", "rows"),
                ("auc", "Chance that a canary in the rows scores above one left out; 0.5 is guessing", "score"),
                ("tpr_at_fpr_0_001", "Canaries found at one false alarm in a thousand", "share"),
                ("tpr_at_fpr_0_01", "Canaries found at one false alarm in a hundred", "share"),
            ):
                of_figure: Better = "context" if "guesses" in figure else better
                yield MetricName(f"audit.one_run.{threat}.{condition}{figure}", words + tail, unit, of_figure)
    yield MetricName("audit.one_run.canaries", "Canaries, each in the rows by a fair coin", "rows", "context")
    yield MetricName("audit.one_run.claimed_epsilon", "Epsilon that the run promises", "epsilon", "context")
    yield MetricName(
        "audit.one_run.detectable_epsilon",
        "Least epsilon that the best attack on so many canaries would tell from 0, in four of five audits",
        "epsilon",
        "context",
    )
    yield MetricName(
        "audit.one_run.confidence_level",
        "Confidence at which the bounds of all attackers hold together; each interval holds at no less",
        "share",
        "context",
    )


SECRET_CONDITIONS = {
    "": "in the rows of the run",
    "positive_control.": "in the rows of the run without noise",
    "null_control.": "and a run without canaries",
    "left_out.": "left out of the rows of the run",
}


def _secrets() -> Iterable[MetricName]:
    """Secrets at the end of canaries, guessed by the released model among 64 candidates."""
    for condition, whose in SECRET_CONDITIONS.items():
        better: Better = "context" if condition else "lower"
        name, tail = f"audit.secrets.{condition}", f"of canaries {whose}"
        yield MetricName(f"{name}rate", f"Secrets that whoever has the model guesses right, {tail}", "share", better)
        yield MetricName(f"{name}guessed", f"Secrets guessed, {tail}", "rows", "context")
    yield MetricName("audit.secrets.chance", "Right guesses of a secret without the model", "share", "context")
    yield MetricName(
        "audit.secrets.detectable_rate",
        "Least share of right guesses of the run's secrets that would be told from chance, in four of five audits",
        "share",
        "context",
    )


AUDIT_METRICS: Final = (*_membership(), *_one_run(), *_secrets())

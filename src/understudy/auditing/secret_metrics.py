"""What was guessed of canaries' secrets, under the stable dotted names of metrics."""

from __future__ import annotations

from collections.abc import Mapping

from understudy.auditing.reconstruction import CANDIDATES, Reconstruction, least_rate
from understudy.evaluation.audit_metrics import SECRET_CONDITIONS
from understudy.evaluation.metrics import Metrics
from understudy.frozen import Frozen

NO_MODEL = "secrets of canaries: this method releases no language model to guess them by"
# Condition of the audit -> of the canaries that its run met, and of those that it did not.
_NAMED = {
    "claim": ("", "left_out."),
    "positive_control": ("positive_control.", None),
    "null_control": (None, "null_control."),
}


class GuessedShare(Frozen):
    """A share of secrets guessed right.

    Attributes:
        rate: the share.
        interval: at 95 %.
        guessed: how many secrets were.
    """

    rate: float
    interval: tuple[float, float]
    guessed: int


def secret_metrics(guesses: Mapping[str, Mapping[str, Reconstruction]]) -> Metrics:
    """The figures of guesses.

    Args:
        guesses: condition (`claim`, `positive_control`, `null_control`) -> `put_in` or `left_out`, as far as there
            are canaries of both -> what was guessed. Empty for a method without a model.
    """
    if not guesses:
        return Metrics(missing=(NO_MODEL,))
    values, intervals = {"audit.secrets.chance": 1 / CANDIDATES}, {}
    for condition, by_coin in guesses.items():
        for prefix, side in zip(_NAMED[condition], ("put_in", "left_out"), strict=True):
            if prefix is not None and side in by_coin:
                name, found = f"audit.secrets.{prefix}", by_coin[side]
                values |= {f"{name}rate": found.rate, f"{name}guessed": float(found.texts)}
                intervals[f"{name}rate"] = found.interval
    if positive := guesses["positive_control"].get("put_in"):
        values["audit.secrets.detectable_rate"] = least_rate(positive.texts, chance=1 / CANDIDATES)
    return Metrics(values=values, intervals=intervals)


def guessed_shares(metrics: Metrics) -> dict[str, GuessedShare]:
    """`claim`, `positive_control`, `null_control` and `left_out` -> what was guessed, as far as measured."""
    found = {}
    for prefix in SECRET_CONDITIONS:
        name = f"audit.secrets.{prefix}"
        if f"{name}rate" in metrics.values:
            found[prefix.rstrip(".") or "claim"] = GuessedShare(
                rate=metrics.values[f"{name}rate"],
                interval=metrics.intervals[f"{name}rate"],
                guessed=int(metrics.values[f"{name}guessed"]),
            )
    return found


def guesses_in_words(shares: Mapping[str, GuessedShare]) -> str:
    """What was guessed, as the end of a statement's sentence on an audit; empty where nothing was."""
    if "claim" not in shares or "positive_control" not in shares:
        return ""
    named = {"claim": "with this noise", "positive_control": "without noise", "null_control": "without a canary"}
    found = ", ".join(
        f"{words} {shares[name].rate:.1%} of {shares[name].guessed}"
        f" (95% interval {shares[name].interval[0]:.1%} to {shares[name].interval[1]:.1%})"
        for name, words in named.items()
        if name in shares
    )
    told = f". Secrets of canaries guessed right by the released model: {found}; chance is {1 / CANDIDATES:.1%}"
    caught = shares["positive_control"].interval[0] > 1 / CANDIDATES
    return told if caught else f"{told}. Without noise they are not told from chance, so this says nothing"

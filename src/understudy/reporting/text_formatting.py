"""The report's words and numbers: what a guarantee means, in plain language that stays correct.

Everything here is post-processing of public figures. A value that is absent is said to be absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from understudy.privacy.shown_cost import round_up

NARROW_SPACE = "\u202f"
MINUS = "\u2212"

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

UNITS = {
    "example": "one record",
    "client": "one client with all of its records",
}
RELATIONS = {
    "replace_special": "replace by null",
    "add_or_remove_one": "add or remove one",
}
RELATION_MEANINGS = {
    "replace_special": (
        "Two data sets are neighbours when {unit} of one is blank in the other; how many there are is public."
    ),
    "add_or_remove_one": "Two data sets are neighbours when {unit} is in one and absent from the other.",
}
ACCOUNTANTS = {
    "pld": "privacy loss distributions (PLD)",
    "rdp": "Rényi differential privacy (RDP)",
    "analytic_gaussian": "analytic Gaussian calibration",
}


def percent(share: float, digits: int = 1) -> str:
    """A share as per cent.

    >>> percent(0.714).replace(NARROW_SPACE, " ")
    '71.4 %'
    """
    return f"{100 * share:.{digits}f}{NARROW_SPACE}%".replace("-", MINUS)


def points(difference: float, unit: str = " points") -> str:
    """A difference of shares in percentage points, with its sign.

    >>> points(-0.0321).replace(MINUS, "-")
    '-3.2 points'
    """
    return f"{100 * difference:+.1f}{unit}".replace("-", MINUS)


def signed(difference: float) -> str:
    """A difference with its sign, to three decimals.

    >>> signed(-0.0321).replace(MINUS, "-"), signed(0)
    ('-0.032', '+0.000')
    """
    return f"{difference:+.3f}".replace("-", MINUS)


def capitalised(words: str) -> str:
    """Words as they begin a line; capitals inside stay.

    >>> capitalised("the DP model")
    'The DP model'
    """
    return words[:1].upper() + words[1:]


def words_in(count: float) -> str:
    """A number of words.

    >>> words_in(1), words_in(0)
    ('1 word', '0 words')
    """
    return f"{number(count)} word{'' if count == 1 else 's'}"


def at_least(bound: float) -> str:
    """Two decimals of a lower bound, never more than was proven.

    >>> at_least(1.9999), at_least(0.5)
    ('1.99', '0.50')
    """
    return f"{math.floor(bound * 100) / 100:.2f}"


def number(value: float, digits: int = 4) -> str:
    """A figure with at most so many significant digits, plain where it is neither huge nor tiny.

    >>> number(3.0), number(0.25), number(1500000), number(math.inf)
    ('3', '0.25', '1,500,000', '∞')
    >>> number(0.00001234).replace(NARROW_SPACE, " ")
    '1.234 × 10⁻⁵'
    """
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}".replace("-", MINUS)
    text = f"{value:,.{digits}g}" if 1e-3 <= abs(value) < 1e9 else f"{value:.{digits - 1}e}"
    if "e" in text:
        mantissa, _, power = text.partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        text = f"{mantissa}{NARROW_SPACE}×{NARROW_SPACE}10{str(int(power)).translate(_SUPERSCRIPT)}"
    return text.replace("-", MINUS)


def as_float(value: Any) -> float | None:
    """A number of a statement, which may say infinity in words; None when there is none.

    >>> as_float("Infinity"), as_float(None), as_float("3"), as_float(True)
    (inf, None, 3.0, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def explain_guarantee(statement: Mapping[str, Any]) -> list[str]:
    """What the statement's (epsilon, delta) promises, in two or three sentences.

    For neighbours under (epsilon, delta) every event's probability changes at most by the factor e^epsilon,
    up to delta. A test that tells two neighbours apart from even odds is therefore right at most (e^epsilon +
    delta) / (1 + e^epsilon) of the time (from Kairouz, Oh & Viswanath 2015, theorem 2.1, at equal error
    rates).
    """
    epsilon, delta = as_float(statement.get("epsilon")), as_float(statement.get("delta"))
    if epsilon is None or not math.isfinite(epsilon) or statement.get("verdict") == "none":
        promise = statement.get("promise") or "No epsilon is stated, so nothing is promised."
        return [str(promise), "This output is as private as the data: measure it here, never hand it over."]
    unit = UNITS.get(str(statement.get("unit")), "one unit")
    slack = delta or 0.0
    factor = math.exp(min(epsilon, 700.0))
    right = (factor + slack) / (1 + factor)
    slack_words = f", apart from a slack of δ = {number(slack)}" if slack else ""
    sentences = [
        f"Whether {unit} was among the private data changes the probability of anything that was released "
        f"by at most the factor exp(ε) = {_factor(factor)}{slack_words}."
    ]
    # Rounded up, so that the bound holds as written; the hair is what floats miss of a round number.
    rounded = math.ceil(right * 1000 - 1e-9) / 10
    if rounded < 100:
        sentences.append(
            "Whoever guesses whether it was, starting from even odds and knowing everything else, is right "
            f"at most {rounded:.1f}{NARROW_SPACE}% of the time; a coin is right half of the time."
        )
    if epsilon > 8:
        sentences.append(f"At ε = {number(epsilon)} this bound alone excludes very little; lower values protect more.")
    return sentences


def explain_relation(statement: Mapping[str, Any]) -> str:
    """What neighbouring data sets are, in a sentence; empty for an unknown relation."""
    unit = UNITS.get(str(statement.get("unit")), "one unit")
    return RELATION_MEANINGS.get(str(statement.get("relation")), "").format(unit=unit)


def explain_accountant(statement: Mapping[str, Any]) -> str:
    """How epsilon was computed."""
    name = str(statement.get("accountant") or "")
    return ACCOUNTANTS.get(name.lower(), name) or "not stated"


def headline(statement: Mapping[str, Any]) -> dict[str, Any]:
    """The guarantee's figures and what they mean."""
    epsilon, delta = (as_float(statement.get(key)) for key in ("epsilon", "delta"))
    unit, relation = str(statement.get("unit") or ""), str(statement.get("relation") or "")
    nothing = "none" if statement.get("verdict") == "none" else "not stated"
    return {
        "epsilon": nothing if epsilon is None else number(round_up(epsilon)),
        "delta": nothing if delta is None else number(round_up(delta)),
        "unit": UNITS.get(unit, unit or "not stated"),
        "relation": RELATIONS.get(relation, relation or "not stated"),
        "relation_meaning": explain_relation(statement),
        "accountant": explain_accountant(statement),
        "source": str(statement.get("source") or "not stated"),
        "verdict": str(statement.get("verdict") or "not stated"),
        "sentences": explain_guarantee(statement),
        "warnings": [str(warning) for warning in statement.get("warnings") or ()],
    }


def statement_rows(statement: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The statement's entries as (words, value), in its own order, nested keys made words too."""

    def readable(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {humanise(str(key)): readable(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [readable(entry) for entry in value]
        if value is None or value == "":
            return "not stated"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return number(value, digits=6) if isinstance(value, int | float) else str(value)

    return [(humanise(str(key)), readable(value)) for key, value in statement.items()]


def humanise(key: str) -> str:
    """A key as words.

    >>> humanise("noise_multiplier"), humanise("epsilon_rdp"), humanise("rng")
    ('Noise multiplier', 'Epsilon RDP', 'RNG')
    >>> humanise("n")
    'n'
    """
    upper = {"rdp", "pld", "rng", "dp", "id", "ids", "sgd"}
    text = " ".join(w.upper() if w in upper else w for w in re.split(r"[_\s]+", key.strip()) if w)
    return text[:1].upper() + text[1:] if len(text) > 1 else text


def _factor(factor: float) -> str:
    """The factor of the promise, rounded up as in the privacy statement.

    >>> _factor(math.exp(8))
    '2,990'
    """
    # The hair is what floats miss of a round number.
    return number(round_up(factor * (1 - 1e-12), digits=3))

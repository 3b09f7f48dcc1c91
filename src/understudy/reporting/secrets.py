"""The section of an audit's page about secrets of canaries, guessed by whoever has the model."""

from __future__ import annotations

from understudy.auditing.secret_metrics import NO_MODEL, GuessedShare, guessed_shares
from understudy.evaluation.metrics import Metrics
from understudy.reporting.drawing import MUTED, PROMPT, REAL, SYNTHETIC, Drawing, beside_chance
from understudy.reporting.figures import marks_of
from understudy.reporting.text_formatting import percent
from understudy.reporting.view import Section, Table, range_of

_STYLE = {
    "": ("The run", SYNTHETIC, "o"),
    "positive_control.": ("Without noise", REAL, "s"),
    "null_control.": ("No canary", PROMPT, "D"),
    "left_out.": ("The run, canaries left out", MUTED, "v"),
}
_KEY, _TITLE = "secrets", "Secrets guessed by the released model"
ENDS = "Passing an audit does not prove privacy: another attack may find more."


def secrets_section(metrics: Metrics) -> list[Section]:
    """What was guessed, or why nothing was; none for a report from before secrets were guessed."""
    shares = guessed_shares(metrics)
    if not shares:
        return [Section(_KEY, _TITLE, missing=f"Not measured: {NO_MODEL}.")] if NO_MODEL in metrics.missing else []
    names = {prefix: f"audit.secrets.{prefix}rate" for prefix in _STYLE}
    rows = tuple(
        (
            _STYLE[prefix][0],
            f"{percent(metrics.values[name])} ({range_of(metrics, name, percent)})",
            f"{metrics.values[f'audit.secrets.{prefix}guessed']:.0f}",
        )
        for prefix, name in names.items()
        if name in metrics.values
    )
    return [
        Section(
            _KEY,
            _TITLE,
            tuple(_lead(metrics, shares)),
            _figure(metrics),
            Table(("", "Guessed right", "Secrets"), rows),
            "At the end of each canary stands a secret word, drawn uniformly from 64 candidates of its own that are "
            "known. The attacker reads the canary with every candidate and takes the one that became likelier by the "
            "most from the public model to the released one. Intervals are those of Clopper and Pearson, at "
            f"95\u202f% each. {ENDS}",
        )
    ]


def _lead(metrics: Metrics, shares: dict[str, GuessedShare]) -> list[str]:
    chance, claim, control = metrics.values["audit.secrets.chance"], shares.get("claim"), shares.get("positive_control")
    said = []
    if claim is not None:
        said.append(f"Of {claim.guessed} secrets, the attacker with the model guessed {_words(claim)} right; ")
        said[0] += f"chance is {percent(chance)}."
    if control is not None:
        begins = "Without noise it is" if said else f"Of {control.guessed} secrets in the run without noise, it guessed"
        said.append(f"{begins} {_words(control)}.")
        if control.interval[0] <= chance:
            said.append("That is not told from chance either, so guessing nothing in the run says nothing.")
    said += [
        f"{words} {_words(shares[name])} were guessed, which is above chance: by chance, which happens in one audit of "
        "forty, or because the attack is wrong. Repeat the audit with another --seed before you read it."
        for name, words in (("null_control", "Of a run that met no canary,"), ("left_out", "Of canaries left out,"))
        if name in shares and shares[name].interval[0] > chance
    ]
    if (least := metrics.values.get("audit.secrets.detectable_rate")) is not None:
        said.append(f"With so few secrets a share below {percent(least)} could hardly be told from chance.")
    return said


def _words(share: GuessedShare) -> str:
    low, high = share.interval
    return f"{percent(share.rate)} ({percent(low)} to {percent(high)})"


def _figure(metrics: Metrics) -> Drawing:
    marks, chance = marks_of(metrics, _STYLE, "audit.secrets.{}rate"), metrics.values["audit.secrets.chance"]
    title, across = "Secrets of canaries guessed right", "Share of secrets guessed right; the line is chance"
    return beside_chance("attack-secrets", marks, title=title, across=across, chance=chance, form="{:.3f}")

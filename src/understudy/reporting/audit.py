"""The report's page about an audit: what each attacker found out, beside the controls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from understudy.evaluation.audit_metrics import AUDIT_CONDITIONS, THREATS
from understudy.evaluation.metrics import Metrics
from understudy.reporting.drawing import PROMPT, REAL, SYNTHETIC, Drawing, beside_chance
from understudy.reporting.figures import marks_of
from understudy.reporting.pages import stored_report
from understudy.reporting.secrets import ENDS, secrets_section
from understudy.reporting.text_formatting import at_least, number, percent
from understudy.reporting.view import MethodSections, Section, Table, range_of

_STYLE = {
    "": ("The run", SYNTHETIC, "o"),
    "positive_control.": ("Without noise", REAL, "s"),
    "null_control.": ("No canary", PROMPT, "D"),
}
_TITLES = {
    "data": "Attack on the synthetic table",
    "model": "Attack on the released model",
    "sums": "Attack by whoever knows every other row",
}
_OF_SUMS = "Nobody outside knows every other row: it is the attacker against whom the promise is made. "


def is_audit(directory: Path) -> bool:
    """Whether an audit's report lies in a folder."""
    return "audit.one_run.canaries" in (stored_report(directory).get("metrics") or {})


def sections(metrics: Metrics, _statement: Mapping[str, Any]) -> MethodSections:
    """A section for each attacker and one of secrets, and none about a single synthetic table."""
    found = tuple(attack_section(metrics, threat) for threat in THREATS)
    return MethodSections(last=(*found, *secrets_section(metrics)), common=False)


def attack_section(metrics: Metrics, threat: str) -> Section:
    """What an attacker found out of the run and of its two controls."""
    values, name = metrics.values, f"audit.one_run.{threat}."
    title = _TITLES[threat]
    if f"{name}positive_control.auc" not in values:
        return Section(threat, title, missing=_reason(metrics, threat))
    rows = tuple(
        (
            _STYLE[condition][0],
            at_least(values[f"{name}{condition}epsilon_lower_bound"]),
            f"{values[f'{name}{condition}right_guesses']:.0f} of {values[f'{name}{condition}guesses']:.0f}",
            f"{values[f'{name}{condition}auc']:.2f} ({range_of(metrics, f'{name}{condition}auc', '{:.2f}'.format)})",
            *(
                f"{percent(values[full])} ({range_of(metrics, full, percent)})"
                for full in (f"{name}{condition}tpr_at_fpr_0_001", f"{name}{condition}tpr_at_fpr_0_01")
            ),
        )
        for condition in AUDIT_CONDITIONS
        if f"{name}{condition}auc" in values
    )
    columns = ("", "Epsilon at least", "Right guesses", "AUC", "Found at FPR 0.1 %", "Found at FPR 1 %")
    return Section(
        threat,
        title,
        tuple(_lead(metrics, threat)),
        _figure(metrics, threat),
        Table(columns, rows),
        f"{number(values['audit.one_run.canaries'])} canaries, each a word of its own over and over, in the rows by a "
        f"fair coin. The attacker sees {THREATS[threat]} and guesses the coins. "
        f"{_OF_SUMS if threat == 'sums' else ''}The bound on epsilon is that of "
        f"Steinke et al. 2023, at {percent(values['audit.one_run.confidence_level'], 0)} confidence for all attackers "
        "together. Where fewer canaries were left out than 1 in a rate of false alarms, the rate means none. "
        f"{ENDS}",
    )


def _lead(metrics: Metrics, threat: str) -> list[str]:
    values, name = metrics.values, f"audit.one_run.{threat}."
    control, null = (
        values[f"{name}{condition}epsilon_lower_bound"] for condition in ("positive_control.", "null_control.")
    )
    claimed, least = values["audit.one_run.claimed_epsilon"], values.get("audit.one_run.detectable_epsilon")
    said = []
    if (low := values.get(f"{name}epsilon_lower_bound")) is not None:
        if low > claimed:
            said.append(
                f"The run leaks more than it promises: its epsilon is at least {at_least(low)}, and {number(claimed)} "
                "was claimed."
            )
        elif low > 0:
            said.append(f"The run’s epsilon is at least {at_least(low)}; it promises at most {number(claimed)}.")
        else:
            said.append(f"The attack finds nothing in the run, which promises an epsilon of {number(claimed)}.")
    if control > 0:
        said.append(f"It catches the same run without noise: at least {at_least(control)}.")
    else:
        said.append("It does not even catch the same run without noise, so its finding nothing says nothing.")
    if null > 0:
        said.append(
            f"It finds at least {at_least(null)} in a run that met no canary: by chance, which happens in one audit of "
            "twenty, or because the attack is wrong. Repeat the audit with another --seed before you read it."
        )
    if least is not None:
        said.append(f"With so few canaries even the best attack could hardly tell an epsilon below {number(least, 2)}.")
    return said


def _figure(metrics: Metrics, threat: str) -> Drawing:
    marks = marks_of(metrics, _STYLE, f"audit.one_run.{threat}.{{}}auc")
    title, across = "Chance that a canary in the rows scores above one left out", "AUC: 0.5 is guessing, 1 is certainty"
    return beside_chance(f"attack-{threat}", marks, title=title, across=across, chance=0.5, form="{:.2f}")


def _reason(metrics: Metrics, threat: str) -> str:
    found = next((reason for reason in metrics.missing if THREATS[threat] in reason), None)
    return f"Not measured: {found}." if found else "Not measured."

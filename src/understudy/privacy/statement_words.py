"""The privacy statement in words, from the dictionary that is written as `statement.json`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


def render_markdown(statement: Mapping[str, Any]) -> str:
    """The statement in words, as Markdown that also reads well as plain text."""
    parts = [
        f"# Privacy statement for the source `{statement['source']}`",
        f"**Status of the guarantee: {statement['verdict']}.** {statement['promise']}",
        *(f"**Note:** {warning}" for warning in statement["warnings"]),
        *_guarantee_section(statement),
        "## What leaves, and who could learn from it",
        _bullets(statement["released"]),
        f"Trust: {statement['trust']}\n\nHolds against: {statement['against']}",
        "## How the contribution of one unit is bounded",
        statement["contributions"],
        "## Mechanisms",
        *(_mechanism_words(m) for m in statement["mechanisms"]),
        "## Every access to private data",
        _bullets(f"{a['task']} reads {a['reads']}: {a['through']}" for a in statement["accesses"]),
        "## What was declared public",
        _bullets(f"{name}: {_plain(value)}" for name, value in statement["declared_public"].items()),
        "## Choices, models and third parties",
        f"Settings and checkpoints: {statement['choices']}",
        _bullets(
            f"{m['role']}: {m['name']} ({m['digest'] or 'digest not known here'}): {m['overlap']}"
            for m in statement["pretrained_models"]
        ),
        "Third parties that saw raw text: " + (", ".join(statement["third_parties"]) or "none") + ".",
        "## What this does not cover",
        _bullets([*statement["not_private"], *(f"Not proven: {h}" for h in statement["heuristics"])]),
        statement["floating_point"],
        "Audits made on public twins; passing an audit does not prove privacy:",
        _bullets(statement["audits"]),
        "## Record",
        _record(statement),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _guarantee_section(statement: Mapping[str, Any]) -> list[str]:
    budget = statement["budget"]
    spent = (
        f"All runs on this source so far: epsilon {budget['spent_epsilon']:g}, delta "
        f"{budget['spent_delta']:g}, of a budget of epsilon {budget['epsilon']:g}, delta {budget['delta']:g} "
        f"(composition: {budget['composition']})."
    )
    if statement["epsilon"] is None:
        return ["## This run", spent]
    lines = [
        f"- epsilon {statement['epsilon']:g}, delta {statement['delta']:g}, by {statement['accountant']}",
        f"- cross-check by Renyi DP: epsilon {_plain(statement['epsilon_rdp'])}",
        f"- unit: {statement['unit']}; relation: {statement['relation']}; {statement['rounding']}",
    ]
    without = statement["epsilon_without_amplification"]
    seen = "no epsilon can be stated" if without is None else f"epsilon {without:g}"
    lines.append(f"- against someone who sees which units took part: {seen}")
    return ["## This run", "\n".join(lines), spent]


def _mechanism_words(mechanism: Mapping[str, Any]) -> str:
    clip = mechanism["l2_clip_norm"]
    clipped = "" if clip is None else f"each contribution clipped to L2 norm {clip:g}; "
    return (
        f"**{mechanism['name']}**: {mechanism['query']}; {clipped}{mechanism['noise']} noise of standard "
        f"deviation {mechanism['standard_deviation']:.6g} (noise multiplier "
        f"{mechanism['noise_multiplier']:.6g}, sensitivity {mechanism['sensitivity']:.6g}, grid "
        f"2^{round(math.log2(mechanism['grid']))}); steps: "
        f"{mechanism['steps']}; each unit takes part with probability "
        f"{mechanism['sampling_probability']:.6g} ({mechanism['sampler']})."
    )


def _record(statement: Mapping[str, Any]) -> str:
    entries = [
        f"charge {e['id']} (attempt {e['attempt']}, {e['kind']}, {e['status']}), made {e['created_at']}"
        for e in statement["ledger_entries"]
    ]
    return _bullets(
        [
            *entries,
            f"restarts: {statement['restarts']}; a resumed run computes the same bytes under the same charge",
            f"code {statement['code_digest']}, settings {statement['config_digest']}, {statement['time']}",
            f"random numbers: {statement['randomness']}",
        ]
    )


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items) or "- none"


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(_plain(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)

"""Audits on public rows: what they found may stand in the statements of later runs of the same method and model.

An audit on private rows stays internal. One on a public table tells of nobody, so it may leave; a statement names it
beside what it promises. One small file for each audit, in the home.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from understudy.auditing.secret_metrics import GuessedShare, guessed_shares, guesses_in_words
from understudy.durable import write_atomically
from understudy.evaluation.audit_metrics import THREATS
from understudy.evaluation.metrics import Metrics
from understudy.frozen import Frozen
from understudy.privacy.labels import Relation, Unit
from understudy.privacy.shown_cost import cost_in_words
from understudy.reporting.text_formatting import at_least
from understudy.runs.run_plan import RunPlan, config_digest
from understudy.settings import private_directory, settings

_BLIND: Final = ". No attack catches even the same run without noise, so their finding nothing says nothing"


class PublicAudit(Frozen):
    """What an audit on public rows found.

    Attributes:
        method: that was audited.
        model: its base model, and `model_digest` of that model's files.
        source: name of the public rows.
        unit: of the promise, and `relation` of its neighbours.
        units: at most so many there are.
        epsilon: that was claimed, at `delta`.
        canaries: how many stood among the rows.
        confidence: that the bounds hold.
        bounds: attacker -> run (`claim`, `positive_control`, `null_control`) -> lower bound on epsilon.
        secrets: run, and `left_out` -> secrets of canaries guessed by the model; empty of a method without one, and of
            an audit from before they were guessed.
        config_digest: of all settings, as a statement gives it.
        code_digest: of the code, the versions and the device that the claim was made with, as its charge has it.
    """

    method: str
    model: str
    model_digest: str
    source: str
    unit: Unit
    relation: Relation
    units: int
    epsilon: float
    delta: float
    canaries: int
    confidence: float
    bounds: dict[str, dict[str, float]]
    secrets: dict[str, GuessedShare] = Field(default_factory=dict)
    config_digest: str
    code_digest: str

    def in_words(self, config_digest: str, code_digest: str) -> str:
        """As a statement says it.

        Args:
            config_digest: of the run that the statement is about.
            code_digest: of that run.
        """
        named = {"claim": "with this noise", "positive_control": "without noise", "null_control": "without a canary"}
        found = "; ".join(
            f"by {THREATS[threat]}, "
            + ", ".join(f"{words} {at_least(self.bounds[threat][condition])}" for condition, words in named.items())
            for threat in THREATS
            if threat in self.bounds
        )
        alike = {"settings": config_digest == self.config_digest, "code and versions": code_digest == self.code_digest}
        told = " and ".join(f"{'the same' if is_same else 'other'} {what}" for what, is_same in alike.items())
        refuted = any(bound.get("claim", 0.0) > self.epsilon for bound in self.bounds.values())
        promise = cost_in_words(self.epsilon, self.delta, unit=self.unit, relation=self.relation)
        return (
            f"{'REFUTED the promise: ' if refuted else ''}{self.method} with {self.model} at {promise}, on the public "
            f"source {self.source!r} of at most {self.units} units, {self.canaries} of them canaries; compared with "
            f"this run, {told}. Lower bounds on epsilon, at {self.confidence:.0%} confidence for all attackers "
            f"together: {found}{'' if self.caught else _BLIND}{guesses_in_words(self.secrets)}"
        )

    @property
    def caught(self) -> bool:
        """Whether any attacker tells the same run without noise from guessing: else finding nothing says nothing."""
        return any(bound.get("positive_control", 0.0) > 0 for bound in self.bounds.values())


def public_audit(
    plan: RunPlan, metrics: Metrics, bounds: dict[str, dict[str, float]], *, code_digest: str
) -> PublicAudit:
    """What an audit found, as it is kept.

    Args:
        plan: of the claim.
        metrics: of the audit.
        bounds: of these, as `auditing.metrics.bounds_of` gives them.
        code_digest: of the claim's charge.
    """
    names = ("method", "model_digest", "source", "unit", "relation", "epsilon", "delta")
    promised = {name: getattr(plan, name) for name in names}
    counted = {"units": plan.n, "canaries": int(metrics.values["audit.one_run.canaries"])}
    digests = {"config_digest": config_digest(plan), "code_digest": code_digest}
    confidence = metrics.values["audit.one_run.confidence_level"]
    found = {"model": plan.model_name, "confidence": confidence, "bounds": bounds, "secrets": guessed_shares(metrics)}
    return PublicAudit.model_validate(promised | counted | digests | found)


def keep(audit: PublicAudit) -> None:
    """Keep what an audit on public rows found; the same is kept once."""
    content = audit.model_dump_json().encode()
    write_atomically(_folder() / f"{hashlib.sha256(content).hexdigest()[:32]}.json", content)


def kept(method: str, model_digest: str) -> list[PublicAudit]:
    """What audits of a method and a model found, by their epsilons; a file of another version says nothing."""
    found = []
    for path in sorted(_folder().glob("*.json")):
        try:
            found.append(PublicAudit.model_validate_json(path.read_bytes()))
        except ValidationError:
            continue
    ours = [audit for audit in found if (audit.method, audit.model_digest) == (method, model_digest)]
    return sorted(ours, key=lambda audit: (audit.epsilon, audit.source))


def _folder() -> Path:
    return private_directory(settings().home / "audits")

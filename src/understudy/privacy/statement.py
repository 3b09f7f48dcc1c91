"""The privacy statement that goes with everything released: what is promised, to whom, and on what grounds.

Built from the charge in the ledger, the source's record and facts of the plan that are public. No private
count, size, digest or loss ever enters it. `build_statement` gives the dictionary that is written as
`statement.json`; `statement_words` says the same in words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field, field_validator

from understudy.frozen import Frozen
from understudy.privacy.grid import charged_sensitivity, grid_of
from understudy.privacy.inherited import EarlierRelease, inherited_in_words
from understudy.privacy.ledger.records import Charge, SourceRecord
from understudy.privacy.naming import without_place
from understudy.privacy.queries import Query, check_epsilon_of, queries_from_json
from understudy.privacy.shown_cost import round_up

Verdict = Literal["proven under assumptions", "heuristic", "none"]

STABLE_KEYS: Final = (
    "epsilon",
    "delta",
    "unit",
    "relation",
    "accountant",
    "epsilon_rdp",
    "mechanisms",
    "ledger_entries",
    "source",
    "verdict",
)

RANDOMNESS: Final = (
    "Noise and sampling masks come from AES-256 in counter mode, keyed by HMAC-SHA256 over a secret of the "
    "client zone, the charge, its random salt, the step, the purpose and the exact query; the salt is erased "
    "on release. Initial weights, dropout and text generation use seeds that no private content enters."
)
FLOATING_POINT: Final = (
    "Every noised value is a whole number of steps of a public grid, named with its mechanism: the query is rounded "
    "to it, the noise is a continuous Gaussian exactly rounded to it (counts and masked sums: discrete Gaussian), and "
    "their sum is exact, so no float tells which query it came from. The sensitivity includes what rounding may add, "
    "under a thousandth. What the samplers are off their laws is part of delta."
)
TRAINING_FLOATS: Final = (
    " In training, the clipped gradients of at most 32 rows are added up in float32 before they are rounded. For the "
    "error of that sum and of the norms, 2^-11 of the sensitivity is set aside, and in the worst case it is half of "
    "that. An assumption, tested and not proven, is that one record's activations and gradients are the same floats "
    "whatever other records pass through the model with it, and where they are computed twice, the same twice."
)
ROUNDING: Final = "epsilon and delta are rounded up to four significant digits, never down"

_RELATIONS: Final = {
    "replace_special": "is replaced by an empty one (the number of records is public)",
    "add_or_remove_one": "is added or removed",
}


class MechanismFacts(Frozen):
    """One noised query, or one series of them, as planned and as run."""

    name: str
    query: str = Field(description="What is added up, in words.")
    noise: Literal["gaussian", "discrete gaussian"]
    noise_multiplier: float = Field(ge=0, description="Standard deviation over sensitivity.")
    sensitivity: float = Field(gt=0)
    l2_clip_norm: float | None = Field(default=None, description="None where nothing is clipped.")
    steps: int = Field(ge=1)
    sampling_probability: float = Field(gt=0, le=1)
    sampler: str = Field(description="The one that ran.")
    grid: float = Field(gt=0, description="Step, a power of two, of which query, noise and result are multiples.")


EVERYONE: Final = "none: every unit counts"
POISSON: Final = "Poisson sampling, empty batches included"


def mechanism_facts(query: Query, *, asks: str, grid: float | None = None) -> MechanismFacts:
    """What the statement says of a query on the charged list.

    Args:
        query: as charged.
        asks: what is added up, in words.
        grid: of a masked sum; the others follow from the query.
    """
    counts = query.kind == "histogram"
    gaussian = query.kind == "gaussian_sum"
    return MechanismFacts(
        name=query.name,
        query=asks,
        noise="gaussian" if gaussian else "discrete gaussian",
        noise_multiplier=query.noise_multiplier,
        sensitivity=charged_sensitivity(query.sensitivity) if gaussian else query.sensitivity,
        l2_clip_norm=None if counts else query.sensitivity,
        steps=query.steps,
        sampling_probability=query.sampling_probability,
        sampler=EVERYONE if query.batch is None or query.sampling_probability == 1 else POISSON,
        grid=grid or (grid_of(query.sensitivity) if gaussian else 1.0),
    )


class Access(Frozen):
    """One access to private data along the lineage of what is released."""

    task: str
    reads: str
    through: str = Field(description="The mechanism, or why no mechanism is needed.")

    @classmethod
    def measuring(cls, task: str, *, reads: str = "the rows and the held-out rows") -> Access:
        """A task that measures the result on real rows; `reads` says what it reads of them, in words."""
        return cls(task=task, reads=reads, through="none: its figures are internal")


class PretrainedModel(Frozen):
    """A public model that the result builds on."""

    name: str = Field(description="Of a folder the last part: where it lies says something of the machine.")
    role: str = Field(default="base model", description="What it does for the result.")
    digest: str = Field(description="sha256 of its files; empty where only another zone or a server knows it.")
    overlap: str = Field(
        default="What it was trained on is not known here and may resemble the private texts; the promise "
        "does not cover what it had learnt before."
    )

    @field_validator("name")
    @classmethod
    def _without_its_place(cls, value: str) -> str:
        return without_place(value)


class StatementFacts(Frozen):
    """What the plan and the run say about themselves; public values only."""

    method: str = Field(default="", description="Name of the method that made what is released.")
    mechanisms: tuple[MechanismFacts, ...]
    contributions: str = Field(description="How the contribution of one unit is bounded.")
    trust: str = Field(description="Who sees raw data and must be trusted.")
    against: str = Field(description="Against whom the promise holds.")
    epsilon_without_amplification: float | None = Field(
        default=None, description="Epsilon against someone who sees which units took part."
    )
    released: tuple[str, ...] = Field(description="What exactly leaves.")
    accesses: tuple[Access, ...]
    choices: str = Field(description="How hyper-parameters and checkpoints were chosen.")
    declared_public: Mapping[str, Any] = Field(description="Name -> value of what is declared public.")
    pretrained_models: tuple[PretrainedModel, ...] = ()
    inherited: tuple[EarlierRelease, ...] = Field(default=(), description="What it builds on that has a promise too.")
    third_parties: tuple[str, ...] = Field(default=(), description="Who else saw raw text.")
    randomness: str = RANDOMNESS
    floating_point: str = FLOATING_POINT
    restarts: int = Field(ge=0, description="How often the mechanism was started again after its first start.")
    config_digest: str
    time: str = Field(description="When the statement was made; ISO 8601, UTC.")
    audits: tuple[str, ...] = Field(default=(), description="Audits made on public twins.")
    not_private: tuple[str, ...] = Field(default=(), description="Parts that are not differentially private.")
    heuristics: tuple[str, ...] = Field(default=(), description="Steps of the argument that are not proven.")
    warnings: tuple[str, ...] = Field(default=(), description="What limits the use of the result, from public values.")


def build_statement(
    facts: StatementFacts, *, charge: Charge, source: SourceRecord, spent: tuple[float, float]
) -> dict[str, Any]:
    """The privacy statement of one run, ready for JSON; the keys of `STABLE_KEYS` come first, in that order.

    Args:
        facts: public facts of the plan and the run.
        charge: the run's charge.
        source: the record of the charge's source.
        spent: what all charges of the source add up to, this one included.

    Raises:
        ValueError: when the charge and the source, or the mechanisms and the charged list, do not belong together.
        UnderstudyError: when the charged list costs more than the charge says.
    """
    if charge.source != source.name:
        raise ValueError(f"expected a charge of source={source.name!r}, found one of {charge.source!r}")
    queries = queries_from_json(charge.queries)
    if charge.exportable:
        check_epsilon_of(queries, epsilon=charge.epsilon, delta=charge.delta)
    charged = [query.name for query in queries]
    if charged != [mechanism.name for mechanism in facts.mechanisms] or any(
        mechanism != mechanism_facts(query, asks=mechanism.query, grid=mechanism.grid)
        for query, mechanism in zip(queries, facts.mechanisms, strict=True)
    ):
        raise ValueError(f"expected the mechanisms of the charged list, {charged}, in its order and with its noise")
    epsilon = _public(charge.epsilon) if charge.exportable else None
    stable = {
        "epsilon": epsilon,
        "delta": round_up(charge.delta),
        "unit": charge.unit,
        "relation": charge.relation,
        "accountant": charge.accountant,
        "epsilon_rdp": _public(charge.epsilon_rdp) if charge.exportable else None,
        "mechanisms": [_mechanism(m) for m in facts.mechanisms],
        "ledger_entries": [_entry(charge)],
        "source": source.name,
        "verdict": _verdict(facts, charge),
    }
    return stable | {
        "method": facts.method,
        "rounding": ROUNDING,
        "promise": _promise(charge),
        "contributions": facts.contributions,
        "trust": facts.trust,
        "against": facts.against,
        "epsilon_without_amplification": _public(facts.epsilon_without_amplification),
        "released": list(facts.released),
        "accesses": [a.model_dump() for a in facts.accesses],
        "choices": facts.choices,
        "declared_public": dict(facts.declared_public),
        "this_run": {"epsilon": epsilon, "delta": round_up(charge.delta), "event": charge.event},
        "budget": _budget(source, spent),
        "inherited": [one.model_dump() for one in facts.inherited],
        "pretrained_models": [m.model_dump() for m in facts.pretrained_models],
        "third_parties": list(facts.third_parties),
        "randomness": facts.randomness,
        "floating_point": facts.floating_point,
        "restarts": facts.restarts,
        "code_digest": charge.code_digest,
        "config_digest": facts.config_digest,
        "time": facts.time,
        "audits": list(facts.audits),
        "not_private": list(facts.not_private),
        "heuristics": list(facts.heuristics),
        "warnings": [*facts.warnings, *inherited_in_words(facts.inherited, charge)],
    }


def _public(value: float | None) -> float | None:
    """Rounded up for print; None for what JSON cannot hold."""
    return None if value is None or not math.isfinite(value) else round_up(value)


def _verdict(facts: StatementFacts, charge: Charge) -> Verdict:
    if not charge.exportable:
        return "none"
    return "heuristic" if facts.heuristics else "proven under assumptions"


def _promise(charge: Charge) -> str:
    if not charge.exportable:
        why = "the noise came from a seed that the user knows" if charge.simulation else "no noise was added"
        return f"Nothing is promised: {why}. The result is as private as the data and must not be handed over."
    epsilon, delta = round_up(charge.epsilon), round_up(charge.delta)
    factor = round_up(math.exp(epsilon), digits=3) if epsilon < 700 else math.inf
    return (
        f"Whatever else is known: if one {charge.unit} {_RELATIONS[charge.relation]}, the probability of any "
        f"outcome changes by at most a factor e^{epsilon:g} (about {factor:g}), apart from an extra "
        f"probability of at most {delta:g}."
    )


def _mechanism(facts: MechanismFacts) -> dict[str, Any]:
    return facts.model_dump() | {"standard_deviation": facts.noise_multiplier * facts.sensitivity}


def _entry(charge: Charge) -> dict[str, Any]:
    return {
        "id": charge.id,
        "attempt": charge.attempt,
        "kind": charge.kind,
        "simulation": charge.simulation,
        "status": charge.status,
        "epsilon": _public(charge.epsilon),
        "delta": round_up(charge.delta),
        "created_at": charge.created_at,
        "released_at": charge.released_at,
    }


def _budget(source: SourceRecord, spent: tuple[float, float]) -> dict[str, Any]:
    return {
        "epsilon": source.epsilon,
        "delta": source.delta,
        "composition": source.composition,
        "spent_epsilon": round_up(spent[0]),
        "spent_delta": round_up(spent[1]),
    }

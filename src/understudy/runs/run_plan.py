"""The run plan: everything public about a run, made once, before anything is charged.

It carries the list of queries, the settings with the base model's digest, what the statement will say and references to
the checked rows to whatever needs them. Nothing in it is derived a second time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

from understudy.artifacts.access import ArtifactRef
from understudy.data import tables
from understudy.data.tables import RowKind
from understudy.errors import UnderstudyError
from understudy.frozen import not_in_keys, of_kind
from understudy.methods.method import Description, Promise
from understudy.privacy.accounting import epsilon_pld, epsilon_rdp
from understudy.privacy.inherited import EarlierRelease
from understudy.privacy.labels import Relation, Unit
from understudy.privacy.ledger.ledger import Ledger
from understudy.privacy.queries import Queries, event_delta, event_of
from understudy.runs.request import Budget

C = TypeVar("C", bound=BaseModel)


class RunPlan(BaseModel):
    """What is public about a validated run, and references to its private rows."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    method: str
    releases: str = Field(description="Kind of the artifact that the charge pays for.")
    rows: RowKind
    source: str
    budget: Budget = Field(description="Of the source, over all its runs.")
    unit: Unit
    relation: Relation
    n: int = Field(description="Declared number of units, an upper bound of those there are; public.")
    label_names: tuple[str, ...]
    labels_from_data: bool = Field(
        default=False, description="The label list was read from private rows and is published without any guarantee."
    )
    has_test: bool = Field(default=False, description="Rows of their own are measured on, so that none is held out.")
    epsilon: float
    delta: float
    config: SerializeAsAny[BaseModel] = Field(description="The method's settings, with the base model's digest.")
    charged: SerializeAsAny[BaseModel] = Field(description="Those of them that private rows meet (ADR 0005).")
    given: str = Field(default="", description="What the request itself says of them: see `given_settings`.")
    queries: Queries = Field(description="Everything that private rows are asked.")
    description: Description
    report_facts: dict[str, str]
    sections: str = Field(default="", description="Where the method's own sections of the report are.")
    device: str = Field(default="cpu", description="What the tasks of the process that made the plan compute on.")
    precision: str = Field(default="float32", description="Of the base model's frozen weights there.")
    inherited: tuple[EarlierRelease, ...] = Field(
        default=(), description="What the settings name that was itself released, with what that promised."
    )
    notes: tuple[str, ...] = Field(default=(), description="What was assumed or handled; shown before registration.")
    model_notes: tuple[str, ...] = Field(default=(), description="Those of them that are about the base model.")
    key: str = Field(default="", description="Names the run in MLflow: see `run_key`; set by registration.")
    train: ArtifactRef | None = Field(default=None, description="Set by registration.")
    test: ArtifactRef | None = Field(default=None, description="Set by registration; for measuring only.")

    @property
    def promise(self) -> Promise:
        """What the run is charged for."""
        return Promise(self.queries, self.n, self.epsilon, self.delta, self.label_names)

    @property
    def model_name(self) -> str:
        """The base model, as asked for."""
        return str(getattr(self.config, "model", ""))

    @property
    def model_digest(self) -> str:
        """Of the base model's files."""
        return str(getattr(self.config, "model_digest", ""))

    @property
    def stored_rows(self) -> tuple[ArtifactRef, ArtifactRef]:
        """The checked rows to train on and those to measure with.

        Raises:
            UnderstudyError: the run is not registered yet.
        """
        if self.train is None or self.test is None:
            raise UnderstudyError("expected the stored rows of a registered run; register the run first")
        return self.train, self.test

    def settings(self, kind: type[C]) -> C:
        """The settings, of the method's own type.

        Raises:
            UnderstudyError: the run is another method's.
        """
        return of_kind(self.config, kind)

    def charged_settings(self, kind: type[C]) -> C:
        """Those of the settings that private rows meet, of the method's own type.

        Raises:
            UnderstudyError: the run is another method's.
        """
        return of_kind(self.charged, kind)


def config_digest(plan: RunPlan) -> str:
    """Of all settings of a run, as its statement gives it; models and public tables by their content."""
    return hashlib.sha256(plan.config.model_dump_json(exclude=not_in_keys(plan.config)).encode()).hexdigest()


def run_key(request: BaseModel, charged: BaseModel, *inputs: ArtifactRef) -> str:
    """Names a run: the same request on the same rows has the same.

    Args:
        request: of the run, or of an audit.
        charged: the charged settings, for a `RunRequest` says neither of which method nor what is in a model's folder.
        *inputs: the rows to train on and those to measure with; of an audit, the rows and the canaries.
    """
    asked = f"{request.model_dump_json()} {charged.model_dump_json()} {' '.join(ref.id for ref in inputs)}"
    return hashlib.sha256(asked.encode()).hexdigest()


def match_of(ledger: Ledger, source: str, kind: str, table: pa.Table) -> bytes:
    """What finds a stored table of private rows again: a keyed digest of its content.

    Args:
        ledger: gives the key of the source.
        source: name of a registered source.
        kind: of the artifact: `rows` or `test-rows`.
        table: checked rows, private.
    """
    return ledger.hmac(source, kind.encode() + b"\0" + tables.canonical_digest(table))


def request_key(
    ledger: Ledger,
    train: pa.Table,
    *,
    method: str,
    source: str,
    promised: tuple[float, float, int, tuple[str, ...]],
    charged: BaseModel,
) -> str:
    """What makes two runs one charge (ADR 0005), as a keyed digest: it says nothing without the ledger's key.

    A model or a public table counts by its content, wherever it lies, and how long is waited for an answer not at all.

    Args:
        ledger: gives the key.
        train: the checked rows that are trained on, private.
        method: name of the method.
        source: name of the source.
        promised: epsilon, delta, n and the label names.
        charged: the settings that private rows meet.
    """
    by_content = charged.model_dump_json(exclude=not_in_keys(charged))
    return ledger.request_key(method, source, tables.canonical_digest(train), repr(promised), by_content)


def key_of(ledger: Ledger, plan: RunPlan, train: pa.Table) -> str:
    """`request_key` of a run plan."""
    promised = (plan.epsilon, plan.delta, plan.n, plan.label_names)
    return request_key(ledger, train, method=plan.method, source=plan.source, promised=promised, charged=plan.charged)


def asked_key_of(ledger: Ledger, plan: RunPlan, train: pa.Table) -> str:
    """What was asked of which rows, as a keyed digest: the same where a version adds settings or has other defaults."""
    promised = (plan.epsilon, plan.delta, plan.n, plan.label_names)
    parts = (plan.method, plan.source, tables.canonical_digest(train), repr(promised), plan.given)
    return ledger.request_key("asked", *parts)


def dry_run_of(plan: RunPlan) -> Mapping[str, Any]:
    """What the run will charge and how it spends it; public values only."""
    event, delta = event_of(plan.queries), event_delta(plan.queries, epsilon=plan.epsilon, delta=plan.delta)
    private = math.isinf(plan.epsilon)
    return {
        "source": plan.source,
        "unit": f"{plan.unit} ({plan.relation}, n and label list public)",
        "units": plan.n,
        "epsilon_pld": None if private else epsilon_pld(event, delta),
        "epsilon_rdp": None if private else epsilon_rdp(event, delta),
        "delta": plan.delta,
        "budget": f"{plan.budget.epsilon:g}, {plan.budget.delta:g}",
        "model": plan.model_name,
        "device": plan.device,
        "precision": plan.precision,
        **plan.description.dry_run,
        "mechanisms": [
            f"{m.name}: {m.noise}, noise multiplier {m.noise_multiplier:.4g}, {m.steps} steps, "
            f"sampling probability {m.sampling_probability:.4g}, grid 2^{round(math.log2(m.grid))}"
            for m in plan.description.mechanisms
        ],
        "output": "private: nothing is promised, nothing will be exported" if private else "released, may be exported",
    }

"""Simulated charges of the benchmarks: recorded in a ledger of their own, not counted; nothing made is exported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from understudy.models.loading import LoadedModel, load_model
from understudy.privacy.accounting import default_delta, epsilon_pld, epsilon_rdp
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Queries, event_of, queries_to_json


@lru_cache(maxsize=4)
def model_of(name: str) -> LoadedModel:
    """A shipped model, frozen; whoever trains loads a copy of its own."""
    loaded = load_model(name)
    loaded.model.requires_grad_(False)
    return loaded


def register(
    source: str,
    *,
    unit: Literal["example", "client"],
    n: int,
    label_names: tuple[str, ...] | None = None,
    share: float = 0.9,
) -> None:
    """Register a source with a budget that no benchmark exhausts; again is no error."""
    relation = "replace_special" if unit == "example" else "add_or_remove_one"
    Ledger.open().register(
        SourceRecord(
            name=source, unit=unit, relation=relation, epsilon=1000.0, delta=share / n, n=n, label_names=label_names
        )
    )


def charge(
    source: str,
    *,
    unit: Literal["example", "client"],
    n: int,
    epsilon: float,
    queries: Queries,
    request: Sequence[str],
) -> Mechanisms:
    """Charge a simulation at the default delta and open the interface that noise comes from."""
    ledger, delta = Ledger.open(), default_delta(n)
    charged = ledger.reserve(
        source=source,
        request_key=ledger.request_key(*request),
        queries=queries_to_json(queries),
        epsilon=epsilon,
        delta=delta,
        epsilon_rdp=epsilon_rdp(event_of(queries), delta) if math.isfinite(epsilon) else epsilon,
        unit=unit,
        relation="replace_special" if unit == "example" else "add_or_remove_one",
        code_digest="benchmark",
        simulation=True,
    )
    return Mechanisms.live(ledger.material(charged.id))


def noise_facts(queries: Queries, *, n: int, epsilon: float) -> dict[str, Any]:
    """What a cell says about its privacy."""
    delta = default_delta(n)
    return {"delta": delta, "epsilon_pld": epsilon_pld(event_of(queries), delta) if math.isfinite(epsilon) else None}

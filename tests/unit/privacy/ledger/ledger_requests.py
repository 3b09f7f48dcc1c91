"""What the tests of the ledger ask it for: a list of queries that costs what is charged for it."""

from typing import Any

from understudy.privacy.queries import Query, queries_to_json


def one_sum(noise_multiplier: float = 100.0, units: int = 100, **changes: Any) -> str:
    """The stored list of one Gaussian sum: by default epsilon 0.034 at delta 1e-6."""
    asked: dict[str, Any] = {"kind": "gaussian_sum", "name": "sum", "units": units, "sensitivity": 1.0}
    return queries_to_json([Query(**(asked | {"noise_multiplier": noise_multiplier} | changes))])


def asked(**changes: Any) -> dict[str, Any]:
    """The fields of a charge of epsilon 0.1 at delta 1e-6 to the source `reviews`."""
    fields = {"source": "reviews", "request_key": "request", "queries": one_sum(), "epsilon": 0.1, "delta": 1e-6}
    fields |= {"epsilon_rdp": 1.0, "unit": "example", "relation": "replace_special", "code_digest": "code"}
    return fields | changes

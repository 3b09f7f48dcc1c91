"""Are the gateway calls of a run those that its statement lists, which are those that were charged?

Replay alone does not ask: a second query with noise of its own looks the same on both data sets.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from understudy.privacy.ledger_records import KeyMaterial
from understudy.privacy.mechanisms import Gateway, Mechanism, Recorder, Values
from understudy.privacy.replay import GatewayFactory


@dataclass(frozen=True)
class _Noting:
    """A recorder that lists the calls which another one answers."""

    inner: Recorder | None
    calls: list[Mechanism]

    def observe(self, mechanism: Mechanism, query: Values, draw: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        self.calls.append(mechanism)
        return draw() if self.inner is None else self.inner.observe(mechanism, query, draw)


def noting(make_gateway: GatewayFactory, calls: list[Mechanism]) -> GatewayFactory:
    """The same gateways, whose calls are added to `calls`."""

    def make(material: KeyMaterial) -> Gateway:
        gateway = make_gateway(material)
        gateway.recorder = _Noting(gateway.recorder, calls)
        return gateway

    return make


def unstated(calls: Sequence[Mechanism], stated: Sequence[Mapping[str, Any]]) -> list[str]:
    """How the calls differ from the `mechanisms` of a statement, in words."""
    made, masks = defaultdict(list), defaultdict(list)
    for call in calls:
        (masks if call.kind == "poisson" else made)[call.purpose].append(call)
    names = {one["name"] for one in stated}
    found = [f"{purpose}: called, but not stated" for purpose in made if purpose not in names]
    for one in stated:
        own, sampled = made[one["name"]], masks[one["name"].rpartition("/")[0]]
        steps = list(range(one["steps"]))
        scale = one["noise_multiplier"] * one["sensitivity"]
        if [call.step for call in own] != steps:
            found.append(f"{one['name']}: stated are {len(steps)} calls, made were {len(own)}")
        if any(not _close((call.sensitivity, call.scale), (one["sensitivity"], scale)) for call in own):
            found.append(f"{one['name']}: sensitivity or noise is not what is stated: {own[0]}")
        if one["sampling_probability"] < 1 and [mask.step for mask in sampled] != steps:
            found.append(f"{one['name']}: stated are {len(steps)} masks, drawn were {len(sampled)}")
        if any(not math.isclose(mask.scale, one["sampling_probability"]) for mask in sampled):
            found.append(f"{one['name']}: the sampling probability is not what is stated: {sampled[0]}")
    return found


def _close(found: tuple[float, float], expected: tuple[float, float]) -> bool:
    return all(math.isclose(a, b) for a, b in zip(found, expected, strict=True))

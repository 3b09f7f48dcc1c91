"""Are the gateway calls of a run those that its statement lists, which are those that were charged?

Replay alone does not ask: a second query with noise of its own looks the same on both data sets.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from understudy.privacy.ledger_records import KeyMaterial
from understudy.privacy.mechanisms import Gateway, Mechanism, Recorder, Values
from understudy.privacy.replay import GatewayFactory
from understudy.privacy.replay_statistics import Call


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
        (masks if call.kind == "poisson" else made)[_name(call)].append(call)
    names = {one["name"] for one in stated}
    found = [f"{purpose}: called, but not stated" for purpose in made if purpose not in names]
    for one in stated:
        own, sampled = made[one["name"]], masks[one["name"].rpartition("/")[0] or "participation"]
        steps = list(range(one["steps"]))
        scale = one["noise_multiplier"] * one["sensitivity"]
        made_in = [call.step for call in own]
        if made_in != steps:
            found.append(f"{one['name']}: stated are {len(steps)} calls, made were {len(own)}, in steps {made_in}")
        if any(not _as_stated(call, one["sensitivity"], scale) for call in own):
            found.append(f"{one['name']}: sensitivity or noise is not what is stated: {own[0]}")
        if one["sampling_probability"] < 1 and [mask.step for mask in sampled] != steps:
            found.append(f"{one['name']}: stated are {len(steps)} masks, drawn were {len(sampled)}")
        if any(not math.isclose(mask.scale, one["sampling_probability"]) for mask in sampled):
            found.append(f"{one['name']}: the sampling probability is not what is stated: {sampled[0]}")
    return found


def _name(call: Mechanism) -> str:
    """A masked sum is drawn once per round and carries the round in its purpose."""
    return call.purpose.removesuffix(f"/{call.step}") if call.kind == "masked_sum" else call.purpose


def _as_stated(call: Mechanism, sensitivity: float, scale: float) -> bool:
    """Masked sums get at least the noise that is stated: it is sized for the fewest clients that may answer."""
    enough = math.isclose(call.scale, scale) or (call.kind == "masked_sum" and call.scale > scale)
    return enough and math.isclose(call.sensitivity, sensitivity)


def pooled(calls: Sequence[Call], factor: float) -> Call:
    """The calls of one mechanism as one, with noise of `factor` times its size."""
    query = torch.cat([torch.cat([value.flatten().double() for value in call.query.values()]) for call in calls])
    output = torch.cat([torch.cat([value.flatten().double() for value in call.output.values()]) for call in calls])
    return Call(calls[0].mechanism, {"all": query}, {"all": query + factor * (output - query)})

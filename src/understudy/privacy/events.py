"""Privacy events as data: all that an accountant must know of a run, fixed before the first private byte.

An event is a frozen `DpEvent` of dp_accounting. This module makes the ones the methods charge, adds the one
that dp_accounting lacks, and writes them as canonical JSON, which is what the ledger keeps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import attr
import dp_accounting as dp

from understudy.errors import InputError, UnderstudyError


@attr.s(frozen=True, slots=True, auto_attribs=True)
class DiscreteGaussianDpEvent(dp.DpEvent):  # type: ignore[misc]
    """Integer counts plus discrete Gaussian noise; one unit changes one count, by at most `sensitivity`.

    The other counts carry the same noise on both neighbours, so the privacy loss is that of one coordinate.
    """

    sigma: float
    sensitivity: int = 1


# Canonical JSON: kind -> (class, its fields). Only what is listed here can be charged.
_KINDS: Final[Mapping[str, tuple[type, Mapping[str, type]]]] = {
    "none": (dp.NonPrivateDpEvent, {}),
    "gaussian": (dp.GaussianDpEvent, {"noise_multiplier": float}),
    "discrete_gaussian": (DiscreteGaussianDpEvent, {"sigma": float, "sensitivity": int}),
    "poisson_sampled": (dp.PoissonSampledDpEvent, {"sampling_probability": float, "event": dp.DpEvent}),
    "self_composed": (dp.SelfComposedDpEvent, {"count": int, "event": dp.DpEvent}),
    "composed": (dp.ComposedDpEvent, {"events": list}),
}


def combined_noise_multiplier(*noise_multipliers: float) -> float:
    """The noise multiplier of the one Gaussian event that several queries on one batch amount to.

    Queries of sensitivity C_i with noise z_i C_i, each scaled by 1 / (z_i C_i), are one query with unit noise
    and sensitivity (sum z_i^-2)^1/2, hence z = (sum z_i^-2)^-1/2. Counting them as independently sampled
    events would understate epsilon.

    >>> abs(combined_noise_multiplier(2.0, 2.0) - 2.0**0.5) < 1e-15
    True

    Raises:
        InputError: when none is given, or one is negative or not finite.
    """
    if not noise_multipliers or not all(math.isfinite(z) and z >= 0 for z in noise_multipliers):
        raise InputError(f"expected finite noise multipliers >= 0, found {noise_multipliers}")
    smallest = float(min(noise_multipliers))
    if smallest == 0:
        return 0.0
    # Scaled by the smallest, so that squares of very small multipliers do not overflow.
    return smallest / math.sqrt(math.fsum((smallest / z) ** 2 for z in noise_multipliers))


def sgd_event(*, sampling_probability: float, noise_multiplier: float, steps: int) -> dp.DpEvent:
    """The event of `steps` Poisson-sampled Gaussian queries (DP-SGD, Abadi et al. 2016).

    Raises:
        InputError: when a value is outside its range.
    """
    if not 0 < sampling_probability <= 1:
        raise InputError(f"expected 0 < sampling_probability <= 1, found {sampling_probability}")
    if steps < 1:
        raise InputError(f"expected steps >= 1, found {steps}")
    z = combined_noise_multiplier(noise_multiplier)
    step = dp.PoissonSampledDpEvent(float(sampling_probability), dp.GaussianDpEvent(z))
    return dp.SelfComposedDpEvent(step, int(steps))


def gaussian_event(*, noise_multiplier: float) -> dp.DpEvent:
    """The event of one Gaussian query on all units."""
    return dp.GaussianDpEvent(combined_noise_multiplier(noise_multiplier))


def histogram_event(*, sigma: float) -> dp.DpEvent:
    """The event of counts with discrete Gaussian noise where one unit changes one count by at most 1."""
    return DiscreteGaussianDpEvent(combined_noise_multiplier(sigma), 1)


def composed_event(*events: dp.DpEvent) -> dp.DpEvent:
    """The event of all of `events` on one source, each of which may depend on the outputs of those before."""
    return events[0] if len(events) == 1 else dp.ComposedDpEvent(list(events))


def without_amplification(event: dp.DpEvent) -> dp.DpEvent:
    """`event` with every sampling probability 1: its cost to someone who sees which units took part."""
    if isinstance(event, dp.PoissonSampledDpEvent):
        return without_amplification(event.event)
    if isinstance(event, dp.SelfComposedDpEvent):
        return dp.SelfComposedDpEvent(without_amplification(event.event), event.count)
    if isinstance(event, dp.ComposedDpEvent):
        return dp.ComposedDpEvent([without_amplification(e) for e in event.events])
    return event


def event_to_json(event: dp.DpEvent) -> str:
    """The canonical JSON of an event: equal events give equal text, and `event_from_json` rebuilds the event.

    Raises:
        UnderstudyError: when the event has a part that this module does not list.
    """
    return json.dumps(_encode(event), sort_keys=True, separators=(",", ":"), allow_nan=False)


def event_from_json(text: str) -> dp.DpEvent:
    """The event that `event_to_json` wrote as `text`.

    Raises:
        UnderstudyError: when the text is not such a description.
    """
    try:
        return _decode(json.loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise UnderstudyError("expected the canonical JSON of an event, found something else") from error


def _encode(event: dp.DpEvent) -> dict[str, Any]:
    for kind, (cls, fields) in _KINDS.items():
        if type(event) is cls:
            values = {name: _encode_field(getattr(event, name), t) for name, t in fields.items()}
            return {"kind": kind, **values}
    raise UnderstudyError(f"this event cannot be charged, it has no canonical JSON: {event}")


def _encode_field(value: Any, expected: type) -> Any:
    if expected is dp.DpEvent:
        return _encode(value)
    return [_encode(e) for e in value] if expected is list else expected(value)


def _decode(value: Any) -> dp.DpEvent:
    cls, fields = _KINDS[value["kind"]]
    if set(value) != {"kind", *fields}:
        raise ValueError(f"fields {sorted(value)}")
    return cls(**{name: _decode_field(value[name], t) for name, t in fields.items()})


def _decode_field(value: Any, expected: type) -> Any:
    if expected is dp.DpEvent:
        return _decode(value)
    if expected is list:
        return [_decode(e) for e in value]
    if type(value) is not expected:
        raise TypeError(f"expected {expected.__name__}, found {type(value).__name__}")
    return value

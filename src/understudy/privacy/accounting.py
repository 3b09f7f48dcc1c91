"""Privacy accounting: two accountants, which say what an event costs.

The headline is the privacy loss distribution (PLD; Koskela et al. 2020, Doroshenko et al. 2022), rounded
pessimistically; Renyi DP (RDP; Mironov 2017) is the cross-check. Both run under `REPLACE_SPECIAL`: a record
is replaced by the null record and n is public. For the events here its PLD is that of `ADD_OR_REMOVE_ONE`,
for a null record adds nothing to a sum; a golden test holds the two together.

dp_accounting's accountant is extended by the discrete Gaussian (Canonne, Kamath & Steinke 2020). Its privacy
loss is not dominated by that of the Gaussian with the same sigma (sigma 1, delta 1e-3: epsilon 3.27, not
3.14), so PLD takes its exact distribution. RDP takes the Gaussian's curve, which does bound it (ibid.,
Proposition 5).
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import dp_accounting as dp
import numpy as np
from dp_accounting import pld, rdp

from understudy.errors import InputError, UnderstudyError
from understudy.privacy.events import (
    DiscreteGaussianDpEvent,
    combined_noise_multiplier,
    composed_event,
    event_from_json,
    event_to_json,
    gaussian_event,
    histogram_event,
    sgd_event,
    without_amplification,
)
from understudy.privacy.gaussian_loss import epsilon_for_delta, gaussian_pld, self_composed
from understudy.quantities import LEAST_DELTA

__all__ = [
    "RELATION",
    "DiscreteGaussianDpEvent",
    "combined_noise_multiplier",
    "composed_event",
    "default_delta",
    "epsilon_pld",
    "epsilon_rdp",
    "event_from_json",
    "event_to_json",
    "gaussian_event",
    "histogram_event",
    "renyi_curve",
    "sgd_event",
    "without_amplification",
]

RELATION: Final = dp.NeighboringRelation.REPLACE_SPECIAL


class _PldAccountant(pld.PLDAccountant):  # type: ignore[misc]
    """dp_accounting's PLD accountant, which also knows `DiscreteGaussianDpEvent` and is fast with Gaussian queries.

    `_maybe_compose` is the method that every accountant of the library overrides to say what it supports.
    """

    _pld: Any

    def __init__(self, relation: dp.NeighboringRelation, interval: float) -> None:
        super().__init__(relation, interval)
        self._nothing = self._pld

    def get_epsilon(self, target_delta: float) -> float:
        """By the same distribution as the library's, without its loop over losses."""
        return math.inf if self._contains_non_dp_event else epsilon_for_delta(self._pld, target_delta)

    def _maybe_compose(self, event: dp.DpEvent, count: int, do_compose: bool) -> Any:
        if isinstance(event, DiscreteGaussianDpEvent):
            return self._compose_counts(event, count, do_compose)
        gaussian = _as_sampled_gaussian(event)
        if gaussian is None or not do_compose or self.neighboring_relation is dp.NeighboringRelation.REPLACE_ONE:
            return super()._maybe_compose(event, count, do_compose)
        q, noise_multiplier = gaussian
        one = gaussian_pld(
            noise_multiplier=noise_multiplier, sampling_probability=q, interval=self._value_discretization_interval
        )
        composed = self_composed(one, count)
        self._pld = composed if self._pld is self._nothing else self._pld.compose(composed)
        return None

    def _compose_counts(self, event: DiscreteGaussianDpEvent, count: int, do_compose: bool) -> Any:
        if self.neighboring_relation is dp.NeighboringRelation.REPLACE_ONE:
            return self.CompositionErrorDetails(event, "replacing a record changes two counts")
        if do_compose and event.sigma == 0:
            self._contains_non_dp_event = True
        elif do_compose:
            one = pld.privacy_loss_distribution.from_discrete_gaussian_mechanism(
                event.sigma,
                sensitivity=event.sensitivity,
                value_discretization_interval=self._value_discretization_interval,
            )
            self._pld = self._pld.compose(one.self_compose(count))
        return None


def _as_sampled_gaussian(event: dp.DpEvent) -> tuple[float, float] | None:
    """(sampling probability, noise multiplier) of one Gaussian query with noise, or None."""
    sampled = isinstance(event, dp.PoissonSampledDpEvent)
    q, query = (event.sampling_probability, event.event) if sampled else (1.0, event)
    if not isinstance(query, dp.GaussianDpEvent) or query.noise_multiplier == 0 or q == 0:
        return None
    return float(q), float(query.noise_multiplier)


def epsilon_pld(
    event: dp.DpEvent, delta: float, relation: dp.NeighboringRelation = RELATION, *, interval: float = 1e-4
) -> float:
    """An upper bound on epsilon at `delta` by the privacy loss distribution; infinity for no noise.

    It is one up to the rounding of Fourier transforms, of which no bound is proven. Beside the closed form of up to
    100,000 unsampled queries it was at most 1e-5 of itself too low at a delta of `LEAST_DELTA`, and 6 % at 1e-14.

    Args:
        event: what is accounted.
        delta: in (0, 1); a run's is at least `LEAST_DELTA`.
        relation: of neighbours.
        interval: losses are rounded up to multiples of it: coarser is faster and looser.

    Raises:
        InputError: when delta is not in (0, 1).
        UnderstudyError: when PLD does not know the event; whoever then headlines RDP must say so.
    """
    check_delta(delta)
    return _remembered(_pld_epsilon, event, delta, relation, interval)


def epsilon_rdp(
    event: dp.DpEvent,
    delta: float,
    relation: dp.NeighboringRelation = RELATION,
    *,
    orders: tuple[float, ...] | None = None,
) -> float:
    """An upper bound on epsilon at `delta` by Renyi DP, converted as in Canonne, Kamath & Steinke 2020.

    Args:
        event: what is accounted.
        delta: in (0, 1).
        relation: of neighbours.
        orders: at which the divergence is computed: fewer are faster and looser; None takes the library's.

    Raises:
        InputError: when delta is not in (0, 1).
        UnderstudyError: when RDP does not know the event under the relation.
    """
    check_delta(delta)
    return _remembered(_rdp_epsilon, event, delta, relation, orders)


def renyi_curve(
    event: dp.DpEvent, orders: tuple[float, ...], relation: dp.NeighboringRelation = RELATION
) -> tuple[float, ...]:
    """Upper bounds on the Renyi divergence of `event` at `orders`: what a Renyi filter adds up.

    Raises:
        UnderstudyError: when RDP does not know the event under the relation.
    """
    return tuple(float(value) for value in _rdp_accountant(event, relation, orders).rdp)


def default_delta(n: int) -> float:
    """1 / (n ln n), which is below 1 / n; at least `LEAST_DELTA`, where that is below 1 / n too.

    Raises:
        InputError: when n < 3, for which it would not be below 1 / n.
    """
    if n < 3:
        raise InputError(f"expected at least 3 units, so that delta = 1/(n ln n) is below 1/n, found n={n}")
    return max(1.0 / (n * math.log(n)), LEAST_DELTA if 1.0 / n > LEAST_DELTA else 0.0)


def check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError(f"expected 0 < delta < 1, found delta={delta}")


# (accountant, event and values written out) -> epsilon. A run asks the same again, and an answer may take seconds.
_ANSWERS: Final[dict[tuple[object, ...], float]] = {}


def _remembered(accountant: Callable[..., float], event: dp.DpEvent, *given: object) -> float:
    """What the accountant, a function of public values alone, says of the event."""
    asked = (accountant.__name__, repr(event), *given)
    if asked not in _ANSWERS:
        _ANSWERS[asked] = accountant(event, *given)
    return _ANSWERS[asked]


def _pld_epsilon(event: dp.DpEvent, delta: float, relation: dp.NeighboringRelation, interval: float) -> float:
    """Epsilon by PLD with losses rounded up to multiples of `interval`: coarser is faster, looser."""
    try:
        # Far too little noise overflows on the way to infinity.
        with np.errstate(over="ignore"):
            return float(_PldAccountant(relation, interval).compose(event).get_epsilon(delta))
    except dp.UnsupportedEventError as error:
        raise UnderstudyError(f"PLD accounting does not know this event: {event}") from error


def _rdp_epsilon(
    event: dp.DpEvent, delta: float, relation: dp.NeighboringRelation, orders: tuple[float, ...] | None
) -> float:
    return float(_rdp_accountant(event, relation, orders).get_epsilon(delta))


def _rdp_accountant(event: dp.DpEvent, relation: dp.NeighboringRelation, orders: tuple[float, ...] | None) -> Any:
    if relation is dp.NeighboringRelation.REPLACE_ONE:
        # The library's Gaussian curve is that of add/remove whatever the relation: it would understate.
        raise UnderstudyError("RDP is defined here for replace-by-null and add/remove only, found replace-one")
    try:
        with _without_order_warnings():
            return rdp.RdpAccountant(orders, relation).compose(_for_rdp(event))
    except dp.UnsupportedEventError as error:
        raise UnderstudyError(f"RDP accounting does not know this event: {event}") from error


@contextlib.contextmanager
def _without_order_warnings() -> Iterator[None]:
    """Drops the library's note that it left out an order whose series did not converge: the bound holds."""

    def keep(record: logging.LogRecord) -> bool:
        return "Excluding this order" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _for_rdp(event: dp.DpEvent) -> dp.DpEvent:
    """`event` with each discrete Gaussian replaced by the Gaussian whose Renyi curve bounds its own."""
    if isinstance(event, DiscreteGaussianDpEvent):
        return dp.GaussianDpEvent(event.sigma / event.sensitivity)
    if isinstance(event, dp.SelfComposedDpEvent):
        return dp.SelfComposedDpEvent(_for_rdp(event.event), event.count)
    if isinstance(event, dp.ComposedDpEvent):
        return dp.ComposedDpEvent([_for_rdp(e) for e in event.events])
    return event

"""The list of everything that private rows will be asked: the one source of event, statement and permitted calls.

A run makes its list once, before the first private row is read. The charge stores it, epsilon is computed from it, the
statement prints it, and the mechanism interface is opened with it: a call that is not on it is refused before anything
is drawn.

The accountants are imported by the functions that ask them: the server zone, which reads lists, waits for none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, ValidationError, model_validator

from understudy.errors import InputError, UnderstudyError
from understudy.frozen import Frozen
from understudy.privacy.grid import LEAST_SENSITIVITY
from understudy.privacy.secure_aggregation.accounting import NEGLIGIBLE, delta_correction

if TYPE_CHECKING:
    import dp_accounting as dp

Kind = Literal["gaussian_sum", "histogram", "masked_sum"]
# How often an epsilon is looked for that covers its own distance from the law.
_LOOKS: Final = 32
# Times the sensitivity: beyond it noise in steps of the grid does not fit the 64 bits of `rounded_gaussian`.
MOST_NOISE: Final = 1 << 30
NAME: Final = r"^[a-z0-9][a-z0-9_./-]*$"


class Query(Frozen):
    """One query, or a series of `steps` queries of one kind; public values only.

    Attributes:
        kind: which mechanism answers it.
        name: what the mechanism calls it; no two queries of a list share one.
        units: n, the slots that the query is over, null ones included; public.
        steps: number of releases, at steps 0 to steps - 1.
        sensitivity: L2 distance that one unit may move the exact query by: the clip norm; 1 for integer counts.
        noise_multiplier: standard deviation of the noise over the sensitivity (sigma of the discrete Gaussian).
        batch: name of the Poisson mask that the query is taken on; None where every unit counts. Queries on one mask
            are one event.
        sampling_probability: of that mask; 1 without one.
    """

    kind: Kind
    name: str = Field(pattern=NAME)
    units: int = Field(ge=1)
    steps: int = Field(default=1, ge=1)
    sensitivity: float = Field(gt=0, allow_inf_nan=False)
    noise_multiplier: float = Field(ge=0, allow_inf_nan=False)
    batch: str | None = Field(default=None, pattern=NAME)
    sampling_probability: float = Field(default=1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> Query:
        if self.batch is None and self.sampling_probability != 1:
            raise ValueError(f"sampling_probability={self.sampling_probability}: expected the name of its mask, batch")
        if self.kind == "histogram" and (self.steps, self.batch, self.sensitivity) != (1, None, 1.0):
            raise ValueError("a histogram is one query of sensitivity 1 on all units")
        if self.kind == "masked_sum" and self.sensitivity != 1:
            raise ValueError(f"sensitivity={self.sensitivity}: masked sums are of vectors of norm at most 1")
        return self


Queries = tuple[Query, ...]


def check_queries(queries: Sequence[Query]) -> Queries:
    """The list itself, when it can be charged.

    Raises:
        InputError: when two queries share a name, or queries on one mask differ in units, steps or probability.
    """
    names = [query.name for query in queries]
    if len(set(names)) != len(names):
        raise InputError(f"expected queries of different names, found {names}")
    masks: dict[str, tuple[int, int, float]] = {}
    for query in queries:
        mask = (query.units, query.steps, query.sampling_probability)
        if query.batch is not None and masks.setdefault(query.batch, mask) != mask:
            raise InputError(f"queries on the mask {query.batch!r} differ in units, steps or sampling probability")
    return tuple(queries)


def event_of(queries: Sequence[Query]) -> dp.DpEvent:
    """The whole event of a list, in its order; the queries on one mask are one event, at the place of the first.

    A run without queries reads rows past every mechanism: its event is the one that is not private, at any epsilon.

    Raises:
        InputError: see `check_queries`.
    """
    import dp_accounting as dp

    from understudy.privacy.events import composed_event

    if not queries:
        return dp.NonPrivateDpEvent()
    by_mask: dict[str, list[Query]] = {}
    for position, query in enumerate(check_queries(queries)):
        by_mask.setdefault(f"{position}" if query.batch is None else f"mask {query.batch}", []).append(query)
    return composed_event(*map(_one_event, by_mask.values()))


def _one_event(queries: Sequence[Query]) -> dp.DpEvent:
    import dp_accounting as dp

    from understudy.privacy.events import combined_noise_multiplier, histogram_event, sgd_event

    first = queries[0]
    if first.kind == "histogram":
        return histogram_event(sigma=first.noise_multiplier)
    noise = combined_noise_multiplier(*(query.noise_multiplier for query in queries))
    if first.batch is not None:
        return sgd_event(sampling_probability=first.sampling_probability, noise_multiplier=noise, steps=first.steps)
    one = dp.GaussianDpEvent(noise)
    return one if first.steps == 1 else dp.SelfComposedDpEvent(one, first.steps)


def event_delta(queries: Sequence[Query], *, epsilon: float, delta: float) -> float:
    """What is left of delta for the event, once the samplers' distance from their laws is taken off.

    Gaussian sums and histograms are drawn exactly. A masked sum is within `NEGLIGIBLE` of what is charged.
    """
    masked = masked_rounds(queries)
    if not masked or math.isinf(epsilon):
        return delta
    return delta - delta_correction(epsilon, gap=NEGLIGIBLE, rounds=masked)


def masked_rounds(queries: Sequence[Query]) -> int:
    """How many releases of the list are masked sums with noise."""
    return sum(query.steps for query in queries if query.kind == "masked_sum" and query.noise_multiplier > 0)


def epsilon_without_amplification(queries: Sequence[Query], *, delta: float) -> float | None:
    """Epsilon of the list, by PLD, against someone who sees which units took part in each step.

    Args:
        queries: the list.
        delta: of the charge.

    Returns:
        An epsilon that holds at `delta`; None where masked sums are so far from their law, at so large an epsilon, that
        nothing is left of delta.
    """
    from understudy.privacy.accounting import epsilon_pld
    from understudy.privacy.events import without_amplification

    event, found = without_amplification(event_of(queries)), 0.0
    for _ in range(_LOOKS):
        left = event_delta(queries, epsilon=found, delta=delta)
        if left <= 0:
            return None
        wanted = epsilon_pld(event, left)
        if event_delta(queries, epsilon=wanted, delta=delta) >= left:
            return wanted
        # The distance takes more of delta at this epsilon than at the one before, so it is looked at again.
        found = wanted * (1 + 1e-6)
    return None


def check_epsilon_of(queries: Sequence[Query], *, epsilon: float, delta: float) -> None:
    """Recompute epsilon from the list, by PLD, and compare it with what is charged or stated.

    Args:
        queries: the list.
        epsilon: what is to be charged; infinity is not compared, its output stays private.
        delta: what is to be charged.

    Raises:
        InputError: when the list is empty and epsilon finite, noise is so large that no mechanism would draw it, or a
            sensitivity so small that floats do not hold it.
        UnderstudyError: when the list costs more than `epsilon` at `delta`.
    """
    from understudy.privacy.events import event_to_json

    faintest = min(queries, key=lambda query: query.sensitivity, default=None)
    if faintest is not None and faintest.sensitivity < LEAST_SENSITIVITY:
        raise InputError(
            f"query {faintest.name!r}: expected a sensitivity, which is its clip norm, of at least "
            f"{LEAST_SENSITIVITY:.3g}, below which float32 rounds contributions by more than is accounted for, found "
            f"{faintest.sensitivity:.3g}; raise the clip norm"
        )
    if math.isinf(epsilon):
        return
    if not queries:
        raise InputError(
            f"expected at least one query for epsilon={epsilon:g}: rows that no mechanism reads are promised nothing"
        )
    loudest = max(queries, key=lambda query: query.noise_multiplier)
    if loudest.noise_multiplier > MOST_NOISE:
        raise InputError(
            f"query {loudest.name!r}: expected noise of at most {MOST_NOISE} times its sensitivity, as much as 64 bits "
            f"hold, found {loudest.noise_multiplier:.3g}; raise --epsilon, or the part of it that this query has"
        )
    left = event_delta(queries, epsilon=epsilon, delta=delta)
    found = _first_step(queries, left) if left > 0 else math.inf
    if found <= epsilon + 1:
        found = _epsilon(event_to_json(event_of(queries)), left)
    if not found <= epsilon:
        raise UnderstudyError(
            f"the queries of this run cost at least epsilon={found:.6g} at delta={delta:g} by PLD, more than the "
            f"epsilon={epsilon:g} that would be charged and stated: the noise was computed for something else. "
            "A damaged calibration is the usual cause: remove `calibrations` in UNDERSTUDY_HOME and run again"
        )


def _first_step(queries: Sequence[Query], delta: float) -> float:
    """Epsilon of one step of each query, too large by 1 at most, in a second where that of all would take minutes.

    Where noise is far too small this alone tells. Losses are rounded up by at most 0.01 for each query.
    """
    from understudy.privacy.accounting import epsilon_pld

    one = [query.model_copy(update={"steps": 1}) for query in queries]
    return epsilon_pld(event_of(one), delta, interval=min(0.01, 1 / len(one)))


@lru_cache(maxsize=64)
def _epsilon(event: str, delta: float) -> float:
    from understudy.privacy.accounting import epsilon_pld
    from understudy.privacy.events import event_from_json

    return epsilon_pld(event_from_json(event), delta)


def queries_to_json(queries: Sequence[Query]) -> str:
    """The canonical JSON of a list: equal lists give equal text."""
    plain = [query.model_dump() for query in check_queries(queries)]
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def queries_from_json(text: str) -> Queries:
    """The list that `queries_to_json` wrote as `text`.

    Raises:
        UnderstudyError: when the text is not such a list.
    """
    try:
        entries = json.loads(text)
        if not isinstance(entries, list):
            raise TypeError(f"expected a list, found {type(entries).__name__}")
        return check_queries([Query.model_validate(entry) for entry in entries])
    except (ValueError, TypeError, ValidationError, InputError) as error:
        raise UnderstudyError("expected the canonical JSON of a list of queries, found something else") from error

"""Noise for a target epsilon: calibration by the accountants, and the closed form of a single Gaussian query."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

import dp_accounting as dp
from scipy.optimize import brentq
from scipy.special import log_ndtr

from understudy.durable import naming
from understudy.errors import InputError
from understudy.privacy.accounting import RELATION, check_delta, epsilon_pld, epsilon_rdp
from understudy.privacy.events import event_to_json
from understudy.privacy.search import solve_decreasing

# Relative width of the band below the target epsilon in which a calibrated noise multiplier must land.
CALIBRATION_TOLERANCE: Final = 1e-3
_COARSE_INTERVAL: Final = 1e-3
# Enough to find where to search; whole orders have a short series.
_COARSE_ORDERS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)


def analytic_gaussian_sigma(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """The least standard deviation with which one Gaussian query is (epsilon, delta)-DP.

    Source: Balle & Wang 2018, Theorem 8: Phi(D/2s - e s/D) - exp(e) Phi(-D/2s - e s/D) <= delta.

    Args:
        epsilon: target, finite and > 0.
        delta: target, in (0, 1).
        sensitivity: L2 sensitivity D of the query, finite and > 0.

    Returns:
        The standard deviation, in the unit of the sensitivity, rounded up by less than one part in 10^9.

    Raises:
        InputError: when a value is outside its range.
    """
    check_delta(delta)
    if not (0 < epsilon < math.inf and 0 < sensitivity < math.inf):
        raise InputError(f"expected finite epsilon, sensitivity > 0, found {epsilon=}, {sensitivity=}")

    def excess(log_z: float) -> float:
        """Log of delta at noise multiplier e^log_z over the target, a decreasing function."""
        z = math.exp(log_z)
        first, second = log_ndtr(0.5 / z - epsilon * z), epsilon + log_ndtr(-0.5 / z - epsilon * z)
        gap = -math.expm1(second - first)
        # A finite floor in place of -inf, which the root finder could not interpolate.
        return max(float(first + math.log(gap) - math.log(delta)), -1e3) if gap > 0 else -1e3

    low, high = -1.0, 1.0
    while excess(low) < 0:
        low -= 2.0
    while excess(high) > 0:
        high += 2.0
    return math.exp(brentq(excess, low, high, xtol=1e-13, rtol=1e-14)) * (1 + 5e-10) * sensitivity


def calibrate_noise_multiplier(
    make_event: Callable[[float], dp.DpEvent], *, epsilon: float, delta: float, cache: Path | None
) -> float:
    """A noise multiplier whose event has PLD epsilon in [0.999 epsilon, epsilon] at `delta`.

    The epsilon was computed for exactly the event that will run. The search goes by RDP, then by a coarse
    PLD, then by the real one, each from where the one before ended: most often the real one runs once.

    Args:
        make_event: the run's whole event as a function of the noise multiplier; its epsilon must decrease.
        epsilon: target; infinity asks for no noise and gives 0.0.
        delta: target, in (0, 1).
        cache: folder for results, keyed by public values and the accountant's version; None for no cache.

    Raises:
        InputError: when epsilon or delta is out of range, or no amount of noise reaches epsilon.
    """
    check_delta(delta)
    if math.isnan(epsilon) or epsilon <= 0:
        raise InputError(f"expected epsilon > 0, found epsilon={epsilon}")
    if math.isinf(epsilon):
        return 0.0
    entry = None if cache is None else cache / f"{_cache_key(make_event, epsilon, delta)}.json"
    cached = None if entry is None else _read_cache(entry, make_event)
    if cached is not None:
        return cached
    noise_multiplier, reached = solve_decreasing(
        lambda z: epsilon_pld(make_event(z), delta),
        low=epsilon * (1 - CALIBRATION_TOLERANCE),
        high=epsilon,
        start=_search_start(make_event, epsilon=epsilon, delta=delta),
    )
    if entry is not None:
        event = event_to_json(make_event(noise_multiplier))
        _write_cache(entry, {"noise_multiplier": noise_multiplier, "epsilon": reached, "event": event})
    return noise_multiplier


def _search_start(make_event: Callable[[float], dp.DpEvent], *, epsilon: float, delta: float) -> float:
    """A noise multiplier near the solution, by cheaper accountants; never more than a guess."""
    # RDP lies 2 to 15 % above PLD where it is tight. It has a floor near 0.01, from its largest order.
    guess = max(1.0, 1.0 / epsilon)
    stages = (
        (lambda z: epsilon_rdp(make_event(z), delta, orders=_COARSE_ORDERS), 1.02, 1.15),
        (lambda z: epsilon_pld(make_event(z), delta, interval=_COARSE_INTERVAL), 0.9993, 0.9999),
    )
    for estimate, low, high in stages:
        with contextlib.suppress(InputError):
            guess, _ = solve_decreasing(estimate, low=low * epsilon, high=high * epsilon, start=guess)
    return guess


def _cache_key(make_event: Callable[[float], dp.DpEvent], epsilon: float, delta: float) -> str:
    """A digest of public values: two points of the event family, the target, the accountant, this method."""
    parts = [event_to_json(make_event(z)) for z in (1.0, 2.0)]
    parts += [repr(float(epsilon)), repr(float(delta)), RELATION.name, version("dp-accounting"), "1"]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read_cache(entry: Path, make_event: Callable[[float], dp.DpEvent]) -> float | None:
    """The cached result, or None; an entry counts only if it holds the very event that would run."""
    try:
        found = json.loads(entry.read_text(encoding="utf-8"))
        noise_multiplier = float(found["noise_multiplier"])
        return noise_multiplier if found["event"] == event_to_json(make_event(noise_multiplier)) else None
    except (OSError, ValueError, KeyError, TypeError, InputError):
        return None  # absent or damaged: computed again and replaced


def _write_cache(entry: Path, content: Mapping[str, object]) -> None:
    """Writes beside the entry and renames, so that a crash or a second writer never leaves half an entry."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=entry.parent, prefix=".calibration-", suffix=".tmp")
    try:
        with naming(entry), os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, entry)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

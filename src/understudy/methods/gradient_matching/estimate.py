"""Expected time and memory of a run: a few rows and a short matching of one batch are timed, and multiplied.

The rows are made up, of the run's public shape. The batch is as large as in the run, unless the gradient of all layers
is matched, which takes each text by itself: then one text stands for all. Memory is predicted (`memory`), for a run
has phases that nothing is timed of.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from understudy.data.private_rows import PrivateRows
from understudy.hardware import chosen
from understudy.methods.gradient_matching.config import GradientMatchingConfig, MatchingConfig
from understudy.methods.gradient_matching.loss import embed
from understudy.methods.gradient_matching.memory import phases
from understudy.methods.gradient_matching.optimise import match_shard, objectives
from understudy.methods.gradient_matching.queries import Asked, schedule_of
from understudy.methods.gradient_matching.release import Target, release_target
from understudy.methods.method import Promise
from understudy.models.loading import LoadedModel, load_base
from understudy.models.room import expected_mib
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.quantities import rounded_up

_ROWS, _ROWS_OF_ALL_LAYERS = 64, 32
_INNER_STEPS = 2
_SWEEPS = 1


def expected_cost(
    config: GradientMatchingConfig, promise: Promise, *, charged: GradientMatchingConfig
) -> dict[str, Any]:
    """Minutes of the release and of matching, and the expected peak of memory in MiB.

    Args:
        config: of the run.
        promise: what the run will promise; the rows are not read.
        charged: the settings that private rows meet.
    """
    base = load_base(config, chosen())
    peak = _peak(base, config, promise)
    began = time.perf_counter()
    rows = min(promise.n, _ROWS_OF_ALL_LAYERS if config.matching.gradient == "full" else _ROWS)
    target = _target_of_made_up_rows(base, charged, promise, rows)
    released = (time.perf_counter() - began) * promise.n / rows
    return {
        "expected_release_minutes": round(released / 60, 1),
        "expected_matching_minutes": round(_matching_seconds(base, target, config) / 60, 1),
        **peak,
    }


def _peak(base: LoadedModel, config: GradientMatchingConfig, promise: Promise) -> dict[str, int]:
    """The expected peak of memory; nothing where the model's files do not say its shape."""
    if base.shape is None:
        return {}
    return {"expected_peak_memory_mib": expected_mib(base.model, phases(config, base.shape, len(promise.label_names)))}


def short_matching(matching: MatchingConfig) -> MatchingConfig:
    """What is timed: two rounds, so that the first, which has the warm start, differs from the second by that alone."""
    fewer = {
        "rounds": 2,
        "inner_steps": min(_INNER_STEPS, matching.inner_steps),
        "swap_sweeps": min(_SWEEPS, matching.swap_sweeps),
    }
    return matching.model_copy(update=fewer)


def whole_seconds(seconds: tuple[float, float, float], matching: MatchingConfig) -> float:
    """Seconds of a batch's whole matching.

    Args:
        seconds: of the first round with the warm start, of the second, and of what comes after them (a projection and
            sweeps), all of `short_matching`.
        matching: of the run.
    """
    first, second, last = seconds
    short = short_matching(matching)
    minimisation = max(0.0, first - second)
    projection = max(0.0, second - minimisation)
    sweep = max(0.0, last - projection) / max(1, short.swap_sweeps)
    minimisation *= matching.inner_steps / short.inner_steps
    return (matching.rounds + 1) * (minimisation + projection) + matching.swap_sweeps * sweep


def _target_of_made_up_rows(base: LoadedModel, charged: GradientMatchingConfig, promise: Promise, rows: int) -> Target:
    few = schedule_of(promise.queries).model_copy(update={"n": rows})
    # Keys of no charge: the rows are made up, and the result is thrown away.
    mechanisms = Mechanisms.live(KeyMaterial(b"estimate" * 4, "estimate", b"estimate" * 4, few.queries))
    text, labels = "a text of the padded length " * charged.max_length, promise.label_names
    private = PrivateRows([text] * rows, [i % len(labels) for i in range(rows)], labels)
    return release_target(private, Asked(charged, few, mechanisms), base=base)


def _matching_seconds(base: LoadedModel, target: Target, config: GradientMatchingConfig) -> float:
    """Seconds of matching all texts, one batch after the other."""
    texts = rounded_up(config.samples * config.filter.oversample)
    if config.matching.gradient == "full":
        return texts * _seconds_of_a_text(base, target, config.matching)
    timed = min(texts, config.matching.batch_size)
    stamps = [time.perf_counter()]
    match_shard(
        base,
        target,
        config=config.model_copy(update={"matching": short_matching(config.matching)}),
        examples=[(0, i) for i in range(timed)],
        public_seed=0,
        progress=lambda _done, _steps: stamps.append(time.perf_counter()),
    )
    first, second, last = (after - before for before, after in pairwise(stamps))
    return whole_seconds((first, second, last), config.matching) * math.ceil(texts / timed)


def _seconds_of_a_text(base: LoadedModel, target: Target, matching: MatchingConfig) -> float:
    """Seconds of all values of f and of its gradient for one text, beside which a projection takes next to nothing."""
    device = next(base.model.parameters()).device
    f = objectives(base, target)(torch.zeros(1, dtype=torch.long, device=device))
    text = embed(base.model, torch.arange(target.length, device=device)[None])

    def slope() -> None:
        x = text.clone().requires_grad_()
        torch.autograd.grad(f(x).sum(), x)

    slope()  # the first also sets things up
    sweeps, tried = matching.swap_sweeps, min(matching.swap_width, target.length)
    slopes = (matching.rounds + 1) * matching.inner_steps + sweeps
    # Of each round's Z, of the last X's projection, of the first tokens to be swapped, of each swap, of the string.
    values = matching.rounds + 3 + sweeps * tried
    return slopes * _seconds(slope) + values * _seconds(lambda: f(text))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

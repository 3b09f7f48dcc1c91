"""Answers of an endpoint, each asked for once: kept by what was asked, at no more than so many requests a minute."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.durable import write_atomically
from understudy.generation.config import SamplingConfig
from understudy.generation.endpoints import complete
from understudy.progress import Progress

# Prompts that are asked for together; after each lot its answers are on the disk.
_TOGETHER = 8


@dataclass(frozen=True)
class Asking:
    """Where, and how often; an `endpoints.Endpoint`.

    Attributes:
        url: base of the endpoint.
        model: its name there.
        timeout_seconds: of one request.
        per_minute: most requests a minute; 0: no limit.
    """

    url: str | None
    model: str
    timeout_seconds: float = 60.0
    per_minute: int = 0


def asked_once(
    prompts: Sequence[str],
    seeds: Sequence[int],
    *,
    asking: Asking,
    sampling: SamplingConfig,
    kept: Path,
    sleep: Callable[[float], None] = time.sleep,
    progress: Progress | None = None,
) -> list[str]:
    """One continuation per prompt, in order; those that are kept are not asked for again.

    Args:
        prompts: public or released texts; the server sees them.
        seeds: one public seed per prompt.
        asking: endpoint and rate.
        sampling: how the server draws.
        kept: folder with a file for each answer.
        sleep: waits between lots and tries.
        progress: called with (texts there, texts).

    Raises:
        InputError: see `endpoints.complete`.
        UnderstudyError: no answer after several tries; what was answered before is kept.
    """
    places = [
        kept / _name(prompt, seed, asking=asking, sampling=sampling)
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    missing = [row for row, place in enumerate(places) if not place.is_file()]
    size = min(_TOGETHER, asking.per_minute) or _TOGETHER
    for start in range(0, len(missing), size):
        rows = missing[start : start + size]
        if start and asking.per_minute:
            sleep(60.0 * size / asking.per_minute)
        found = complete(
            [prompts[row] for row in rows],
            [seeds[row] for row in rows],
            sampling=sampling,
            endpoint=asking,
            sleep=sleep,
        )
        for row, text in zip(rows, found, strict=True):
            write_atomically(places[row], json.dumps(text).encode())
        if progress is not None:
            progress(len(prompts) - len(missing) + start + len(rows), len(prompts))
    return [str(json.loads(place.read_bytes())) for place in places]


def _name(prompt: str, seed: int, *, asking: Asking, sampling: SamplingConfig) -> str:
    described = [asking.url, asking.model, sampling.model_dump(mode="json"), seed, prompt]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

"""Claim: noise on the grid takes under a second for 2.6 million values, and a step or release at most 1.1 times floats.

All on one core; a DP training step and a target release are compared with the same on float sums and float noise. The
float side is what this project did before:
Box-Muller on 53-bit uniforms in float64, cast to float32 and added to a float32 sum; it tells neighbours apart (see
tests/contract/test_float_attack.py) and lives on here only to be compared with. Both sides alternate in one process.

The script also measures what the float32 sum of a micro-batch is off the float64 one, as a share of the clip norm, for
which 2^-11 is set aside.

    python benchmarks/grid_noise.py grid_noise.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from measuring import write_result
from torch import Tensor, nn
from torch.nn import functional

from understudy.data.private_rows import PrivateRows
from understudy.methods.gradient_matching import release
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.queries import Asked, queries_of, schedule_of
from understudy.models import lora
from understudy.models.loading import load_model
from understudy.privacy.dpsgd import training
from understudy.privacy.dpsgd.per_example import clipped_gradient_sum
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream
from understudy.privacy.dpsgd.training import Objective, train
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.noise import query_digest, uniform_words
from understudy.privacy.queries import Queries
from understudy.privacy.rounded_gaussian import rounded_gaussian

VALUES, BLOCK = 2_600_000, 1 << 16
TARGETS = {"noise_seconds": 1.0, "step_ratio": 1.1}
CLIP = 0.1


def float_noise(key: bytes, size: int, *, scale: float) -> Tensor:
    """N(0, scale^2) in float32, as it was drawn before."""
    out = np.empty(size, dtype=np.float32)
    for begin in range(0, size, BLOCK):
        words = uniform_words(key, BLOCK, start=begin)
        uniforms = ((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
        radius = np.sqrt(-2.0 * np.log(uniforms[: BLOCK // 2]))
        angle = uniforms[BLOCK // 2 :] * (2.0 * math.pi)
        normals = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
        out[begin : begin + BLOCK] = (normals * scale)[: size - begin]
    return torch.from_numpy(out)


class FloatMechanisms(Mechanisms):
    """A mechanism interface that adds float noise to float sums; everything else is the shipped one's."""

    def gaussian_sum(self, query: Any, **options: Any) -> dict[str, Tensor]:
        """The query in float32 plus noise in float32."""
        scale = options["noise_multiplier"] * options["sensitivity"]
        values = {name: value.float() for name, value in query.items()}
        # The noise was keyed by a digest of the query, as it is now.
        key = hashlib.sha256(query_digest(values, key=bytes(32))).digest()
        noise = float_noise(key, sum(value.numel() for value in values.values()), scale=scale)
        parts = torch.split(noise, [value.numel() for value in values.values()])
        return {name: values[name] + part.view(values[name].shape) for name, part in zip(values, parts, strict=True)}


class FloatSum:
    """Stands in for `GridSum`: a running float32 sum."""

    def __init__(self, *, sensitivity: float, like: Any = None) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, values: Any, *, units: int) -> None:
        """Add floats."""
        for name, value in values.items():
            self._sums[name] = value.float() if name not in self._sums else self._sums[name].add_(value)

    def steps(self) -> dict[str, Tensor]:
        """The sum, in no steps at all."""
        return self._sums


@contextmanager
def in_floats() -> Iterator[None]:
    """Sums of training and target as they were."""
    with mock.patch.object(training, "GridSum", FloatSum), mock.patch.object(release, "GridSum", FloatSum):
        yield


def material(queries: Queries) -> KeyMaterial:
    return KeyMaterial(b"benchmark" * 4, "none", b"salt" * 4, queries)


def losses(model: nn.Module, batch: training.Batch) -> Tensor:
    ids = batch["input_ids"]
    logits = model(input_ids=ids, position_ids=batch["position_ids"], use_cache=False).logits[:, :-1]
    tokens = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return tokens.view(len(ids), -1).mean(1)


def rows(batch: int, length: int) -> dict[str, Tensor]:
    ids = torch.randint(2, 4096, (batch, length), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(length)[None].repeat(batch, 1)
    return {"input_ids": ids, "position_ids": positions, "valid": torch.ones(batch, dtype=torch.bool)}


def build(rank: int) -> nn.Module:
    model: nn.Module = load_model("tiny-llama").model
    return lora.attach(model, rank=rank, alpha=16, generator=torch.Generator().manual_seed(0)) if rank else model


def training_step(rank: int, options: argparse.Namespace) -> Callable[[type[Mechanisms]], None]:
    """One step over every row, with a mechanism interface of the given class."""
    model, data = build(rank), rows(options.batch, options.length)
    stream = Stream(name="lm", l2_clip_norm=CLIP, noise_multiplier=1.0)
    plan = DpSgdPlan(n=options.batch, sampling_probability=1.0, steps=1, streams=(stream,))

    def step(mechanisms: type[Mechanisms]) -> None:
        train(
            model,
            plan=plan,
            objectives={"lm": Objective(losses, lora.trainable_parameters(model), 1e-4)},
            data=data,
            mechanisms=mechanisms.live(material(plan.queries)),
            micro_batch=16,
        )

    return step


def target_release(kind: str, options: argparse.Namespace) -> Callable[[type[Mechanisms]], None]:
    """One release of the target of two labels."""
    config = GradientMatchingConfig.model_validate({"target": {"kind": kind}, "max_length": options.length})
    texts = [f"row {row} of the benchmark says nothing of note" for row in range(options.rows)]
    queries, base = queries_of(config, n=len(texts), epsilon=1.0, delta=1e-5), load_model("tiny-llama")

    def once(mechanisms: type[Mechanisms]) -> None:
        release.release_target(
            PrivateRows(texts, [row % 2 for row in range(len(texts))], ("negative", "positive")),
            Asked(config, schedule_of(queries), mechanisms.live(material(queries))),
            base=base,
        )

    return once


def ratio(work: Callable[[type[Mechanisms]], None], repeats: int) -> dict[str, float]:
    """Median over pairs of processor time on the grid over processor time in floats; the first pair warms up."""
    pairs = []
    for _ in range(repeats + 1):
        began = time.process_time()
        work(Mechanisms)
        middle = time.process_time()
        with in_floats():
            work(FloatMechanisms)
        pairs.append((middle - began, time.process_time() - middle))
    grid, floats = zip(*pairs[1:], strict=True)
    each = sorted(one / other for one, other in pairs[1:])
    return {
        "ratio": statistics.median(each),
        "least": each[0],
        "most": each[-1],
        "grid_seconds": statistics.median(grid),
        "float_seconds": statistics.median(floats),
    }


def noise(repeats: int) -> dict[str, float]:
    """Seconds for the values of one call, on the grid of a sensitivity of 1 at noise multiplier 1, and in floats."""
    found = {"grid_seconds": [], "float_seconds": []}
    for repeat in range(repeats):
        key = repeat.to_bytes(32)
        began = time.process_time()
        rounded_gaussian(key, VALUES, scale=2.0**26)
        middle = time.process_time()
        float_noise(key, VALUES, scale=1.0)
        found["grid_seconds"].append(middle - began)
        found["float_seconds"].append(time.process_time() - middle)
    return {name: statistics.median(values) for name, values in found.items()} | {"values": VALUES}


def float32_error(rank: int, options: argparse.Namespace) -> float:
    """Distance of a micro-batch's float32 sum from the same sum in float64, over the clip norm."""
    sums = []
    for dtype in (torch.float32, torch.float64):
        model, data = build(rank).to(dtype), rows(options.batch, options.length)
        found = clipped_gradient_sum(
            model, lora.trainable_parameters(model), losses, data, l2_clip_norm=CLIP, valid=data["valid"]
        )
        sums.append(torch.cat([found[name].double().flatten() for name in sorted(found)]))
    return float((sums[0] - sums[1]).norm()) / CLIP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"noise": noise(options.repeats)}
    for name, rank in (("LoRA", 8), ("all weights", 0)):
        found[f"step, {name}"] = ratio(training_step(rank, options), options.repeats)
        found[f"float32 error, {name}"] = float32_error(rank, options)
    for kind in ("label_rows", "sketch", "head"):
        found[f"target, {kind}"] = ratio(target_release(kind, options), options.repeats)
    for name, value in found.items():
        print(
            f"{name:24}",
            json.dumps(value) if isinstance(value, dict) else f"{value:.3g} of the clip norm, {options.batch} rows",
        )
    print(f"targets: {TARGETS}")
    write_result(options.out, found)


if __name__ == "__main__":
    main()

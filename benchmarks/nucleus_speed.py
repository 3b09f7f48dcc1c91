"""Claim: a token of a vocabulary of 49,152 is drawn in at most half the time that sorting all of it takes.

The logits are those of the model's own texts, and both ways to draw give the same tokens, which is checked. A second
measure has no target: whole texts with more rows in flight than 64. Processor time of one thread; each figure is the
median, over tokens or over repeats, of a ratio of two timings side by side, with the least and the most.

    python benchmarks/nucleus_speed.py --model smollm2-135m-instruct --out nucleus.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measuring import arguments, chosen, spread, write_result

from understudy.generation import nucleus
from understudy.generation.config import SamplingConfig
from understudy.generation.prompts import build_prompts, special_token_ids
from understudy.generation.sampling import sample
from understudy.generation.step import Step
from understudy.models.loading import LoadedModel, load_model

TARGET = 0.5
LABELS, ABOUT = ("world", "sports", "business", "science"), "short news reports"
FLIGHTS = (128, 256)


def draw(base: LoadedModel, options: argparse.Namespace, *, rows: int, flight: int, hook: Any = None) -> float:
    """Processor seconds of so many texts, of the labels in turn."""
    prompts = build_prompts(base.tokenizer, LABELS, about=ABOUT)
    targets = torch.arange(rows) % len(LABELS)
    started = time.process_time()
    sample(
        base.model,
        (prompts.input_ids[targets], prompts.attention_mask[targets]),
        config=SamplingConfig(max_new_tokens=options.tokens),
        seeds=range(rows),
        eos=prompts.end,
        forbidden=special_token_ids(base.tokenizer),
        step_hook=hook,
        batch_size=flight,
    )
    return time.process_time() - started


def ratios_of_draws(base: LoadedModel, options: argparse.Namespace) -> list[float]:
    """Of each token but the first two: time of `draw_tokens` to that of sorting all."""
    config, found = SamplingConfig(), []

    def hook(_: Any, step: Step) -> torch.Tensor:
        logits = step.logits
        uniforms = torch.rand(len(logits), dtype=torch.float64, generator=torch.Generator().manual_seed(len(found)))
        times, tokens = [], []
        for way in (_of_likely(logits, uniforms, config), _of_all(logits, uniforms, config)):
            started = time.process_time()
            tokens.append(way())
            times.append(time.process_time() - started)
        if not torch.equal(*tokens):
            raise SystemExit("expected the same tokens of both ways to draw")
        found.append(times[0] / times[1])
        return logits

    draw(base, options, rows=options.rows, flight=options.rows, hook=hook)
    return found[2:]


def _of_likely(logits: torch.Tensor, uniforms: torch.Tensor, config: SamplingConfig) -> Callable[[], torch.Tensor]:
    return lambda: nucleus.draw_tokens(logits, uniforms, temperature=config.temperature, top_p=config.top_p)


def _of_all(logits: torch.Tensor, uniforms: torch.Tensor, config: SamplingConfig) -> Callable[[], torch.Tensor]:
    """By the definition, all rows at once; of tokens that are as probable as the last one all are taken."""

    def draw_all() -> torch.Tensor:
        rows = torch.softmax(logits / config.temperature, -1).numpy()
        descending = np.sort(rows, axis=1)[:, ::-1]
        last = (descending.cumsum(axis=1, dtype=np.float64) < config.top_p).sum(axis=1, keepdims=True)
        least = np.take_along_axis(descending, last, axis=1)
        sums = np.where(rows >= least, rows, 0).cumsum(axis=1, dtype=np.float64)
        return torch.from_numpy((sums <= uniforms.numpy()[:, None] * sums[:, -1:]).sum(axis=1))

    return draw_all


def main() -> int:
    options = arguments(__doc__, rows=64, tokens=32, repeats=3).parse_args()
    torch.set_num_threads(options.threads)
    base = load_model(options.model)
    drawing = spread(ratios_of_draws(base, options))
    many, against = max(FLIGHTS), {flight: [] for flight in FLIGHTS}
    for _ in range(options.repeats):
        few = draw(base, options, rows=many, flight=64)
        for flight, ratios in against.items():
            ratios.append(draw(base, options, rows=many, flight=flight) / few)
    flights = {str(flight): spread(ratios) for flight, ratios in against.items()}
    print(f"a token among likely ones, against sorting all: {drawing}, at most {TARGET:g} wanted")
    for flight, ratio in flights.items():
        print(f"{many} texts with {flight} rows in flight, against 64: {ratio}")
    met = drawing["median"] <= TARGET
    sizes = chosen(options, ("model", "rows", "tokens", "repeats", "threads"))
    write_result(options.out, {**sizes, "target": TARGET, "met": met, "drawing": drawing, "flights": flights})
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

"""Claim: PPLM steers 32 samples in a batch at least 8 times as fast as one after the other, to the same texts.

Both sides
run the shipped sampler with the same seeds on the same machine, alternating, so that a busy machine slows both;
the figures are ratios of medians. Texts agree token for token but for rounding: sums over another batch size move a
probability by up to about 1e-4, which now and then flips a token, so equal rows are counted and nine in ten required.

    python benchmarks/pplm_batched.py --out pplm_batched.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch
from measuring import arguments, write_result

from understudy.generation.config import SamplingConfig, SteeringConfig
from understudy.generation.prompts import build_prompts, row_seeds
from understudy.generation.sampling import sample
from understudy.generation.steering import steer_towards
from understudy.methods.conditional_generation.model import Discriminator
from understudy.models.loading import LoadedModel, load_model

TARGET = 8.0
MOST_ROWS = 0.9  # share of rows that must be equal
LABELS = ("negative", "positive")


def draw(loaded: LoadedModel, head: Discriminator, steer: str, rows: range, tokens: int) -> list[list[int]]:
    """Continuations of the given rows in one batch; odd rows are steered to the second label."""
    prompts = build_prompts(loaded.tokenizer, LABELS)
    targets = torch.tensor([row % 2 for row in rows])
    config = SteeringConfig.model_validate({"steer": steer})
    return sample(
        loaded.model,
        (prompts.input_ids[targets], prompts.attention_mask[targets]),
        config=SamplingConfig(max_new_tokens=tokens),
        seeds=row_seeds(0, rows, purpose="benchmark"),
        eos=int(loaded.tokenizer.eos_token_id),
        forbidden=loaded.tokenizer.all_special_ids,
        step_hook=steer_towards(targets, config=config, attribute=head, representation="mean"),
    )


def measure(loaded: LoadedModel, head: Discriminator, steer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Speed of both ways as a ratio, and how many of their rows agree."""
    batched, single = [], []
    draw(loaded, head, steer, range(2), options.tokens)  # warm up
    for _ in range(options.repeats):
        start = time.perf_counter()
        together = draw(loaded, head, steer, range(options.samples), options.tokens)
        batched.append(time.perf_counter() - start)
        start = time.perf_counter()
        alone = [draw(loaded, head, steer, range(row, row + 1), options.tokens)[0] for row in range(options.samples)]
        single.append(time.perf_counter() - start)
    tokens = sum(map(len, together))
    seconds = statistics.median(batched)
    return {
        "steer": steer,
        "samples": options.samples,
        "tokens": tokens,
        "batched_tokens_per_second": round(tokens / seconds, 1),
        "speed_up": round(statistics.median(single) / seconds, 1),
        "equal_rows": sum(one == other for one, other in zip(together, alone, strict=True)),
    }


def main() -> int:
    options = arguments(__doc__, samples=32, tokens=48, repeats=3).parse_args()
    torch.set_num_threads(options.threads)
    loaded = load_model(options.model)
    generator = torch.Generator().manual_seed(0)
    size = int(loaded.model.config.hidden_size)
    head = Discriminator(size, 64, len(LABELS), generator=generator).requires_grad_(False)
    rows = [measure(loaded, head, steer, options) for steer in ("none", "hidden", "key_value")]
    print(f"{'steer':>10} {'tokens':>7} {'tokens/s':>9} {'speed-up':>9} {'equal rows':>11}")
    for row in rows:
        print(
            f"{row['steer']:>10} {row['tokens']:>7} {row['batched_tokens_per_second']:>9} "
            f"{row['speed_up']:>8}x {row['equal_rows']:>7}/{row['samples']}"
        )
    for row in rows:
        row["met"] = row["speed_up"] >= TARGET and row["equal_rows"] >= MOST_ROWS * row["samples"]
    met = all(row["met"] for row in rows if row["steer"] != "none")
    result = {"model": options.model, "threads": options.threads, "target": TARGET, "met": met, "rows": rows}
    write_result(options.out, result)
    print(f"target {TARGET:g}x: {'met' if met else 'missed'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

"""Claim: no split of the work between ADMM rounds and sweeps of swaps reaches the default's loss in much less time.

The target is the exact sketch of rows of the shipped reviews. The same examples are matched to it with fewer and fewer
rounds, and the loss of their tokens is noted after each sweep of swaps. Passes count a value of f as one pass of the
model, its gradient as another, and a projection or a proposal of tokens as one.

    python benchmarks/gradient_matching_rounds.py --texts 32 --seeds 6 --out gradient_matching_rounds.json
"""

from __future__ import annotations

import time
from typing import Any

import torch
from gradient_matching_precision import NAMES, Yardstick
from measuring import arguments, chosen, spread, write_result

from understudy.compute import Compute
from understudy.data.readers import read_source
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.optimise import match_shard
from understudy.models.loading import load_model

ROUNDS, SWEEPS = (10, 3, 2), 16
AFTER = (8, 12, 16)


def configure(model: str, rounds: int) -> GradientMatchingConfig:
    sizes: dict[str, Any] = {"max_length": 32, "length": 20, "matching": {"rounds": rounds, "swap_sweeps": SWEEPS}}
    words = {"words": {"negative": "bad", "positive": "great"}}
    return GradientMatchingConfig.model_validate({"model": model, **sizes, "verbalizer": words})


def passes(config: GradientMatchingConfig, sweeps: int) -> int:
    """Of the model, for one text."""
    matching = config.matching
    per_round = 2 * matching.inner_steps + 2  # the projection, and f of what it gave
    per_sweep = 2 + 1 + matching.swap_width
    warm_start = 2 * matching.inner_steps
    return warm_start + matching.rounds * per_round + 2 + 1 + sweeps * per_sweep


def main() -> None:
    parser = arguments(__doc__, texts=32, seeds=6, rows=120)
    parser.set_defaults(model="tiny-llama")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    base = load_model(options.model, compute=Compute("cpu", "float32"))
    rows = read_source("sample:reviews").slice(0, options.rows)
    labels = torch.tensor([NAMES.index(label) for label in rows["label"].to_pylist()])
    examples = [(number % 2, number // 2) for number in range(options.texts)]
    least = passes(configure(options.model, ROUNDS[0]), AFTER[0])
    result: dict[str, Any] = {"settings": chosen(options, ("model", "texts", "seeds", "rows", "threads"))}
    for rounds in ROUNDS:
        config = configure(options.model, rounds)
        target = Yardstick(base, config, rows["text"].to_pylist(), labels).target
        seconds: list[float] = []
        losses: dict[int, list[float]] = {sweeps: [] for sweeps in AFTER}
        for seed in range(options.seeds):
            start = time.process_time()
            table = match_shard(base, target, config=config, examples=examples, public_seed=seed)
            seconds.append((time.process_time() - start) / len(examples))
            found = torch.tensor(table["swapped"].to_pylist()).mean(dim=0)
            for sweeps in AFTER:
                losses[sweeps].append(float(found[sweeps]))
        result[f"{rounds} rounds"] = {
            "seconds_per_text_with_all_sweeps": spread(seconds),
            "loss_of_seeds": {sweeps: [round(loss, 4) for loss in of_seeds] for sweeps, of_seeds in losses.items()},
            "passes": {sweeps: round(passes(config, sweeps) / least, 2) for sweeps in AFTER},
        }
        print(f"{rounds} rounds: {result[f'{rounds} rounds']}")
    write_result(options.out, result)


if __name__ == "__main__":
    main()

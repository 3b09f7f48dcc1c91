"""Claim: answers and scores in batches of 32 take at most an eighth of the time of one at a time.

Both run in this process, in turns, on the same instructions; every answer is of full length, so that none ends early.
Processor time of one thread is compared, because the machine is shared; each figure is the median over repeats.

    python benchmarks/pair_speed.py --model tiny-llama --rows 64 --out pair_speed.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from measuring import arguments, chosen, spread, write_result

from understudy.data.readers import read_source
from understudy.generation.config import SamplingConfig
from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.sampling import sample
from understudy.methods.knowledge_distillation.ranking import ifd_scores
from understudy.models.loading import load_model

TARGET = 8.0


def seconds(work: Callable[[], Any]) -> float:
    """Processor seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> int:
    parser = arguments(__doc__, rows=64, batch=32, tokens=32, repeats=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load_model(options.model)
    encoder = PairEncoder(model.tokenizer)
    rows = read_source("sample:instructions").slice(0, options.rows).to_pylist()
    pairs = [Pair(row["instruction"], row["response"]) for row in rows]
    ids, mask, _ = encoder.prompts(pairs, max_length=96)

    def answer(size: int) -> None:
        for start in range(0, len(ids), size):
            some = slice(start, start + size)
            sample(
                model.model,
                (ids[some], mask[some]),
                config=SamplingConfig(max_new_tokens=options.tokens),
                seeds=range(len(ids[some])),
                eos=-1,
                forbidden=[encoder.end],
            )

    def score(size: int) -> None:
        ifd_scores(pairs, model, encoder=encoder, max_length=128, batch_size=size)

    found = {}
    for name, work in (("answers", answer), ("scores", score)):
        work(options.batch)  # warm up
        ratios = [seconds(lambda: work(1)) / seconds(lambda: work(options.batch)) for _ in range(options.repeats)]  # noqa: B023
        found[name] = spread(ratios)
        print(
            f"{name}: {found[name]['median']:.1f} times as fast at {options.batch} ({found[name]['least']:.1f} to "
            f"{found[name]['most']:.1f})"
        )
    met = {name: ratio["median"] >= TARGET for name, ratio in found.items()}
    sizes = chosen(options, ("model", "rows", "batch", "tokens", "repeats", "threads"))
    write_result(options.out, {**sizes, "target": TARGET, "met": met, "speed_up": found})
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

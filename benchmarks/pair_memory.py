"""Claim: a step of preference training at 135 million parameters stays near 2.5 GiB above its model, and as fast.

One step of Direct Preference Optimization on pairs of 125 tokens each: all pairs at once, as it was before, beside the
parts that the method makes of it, and beside what it predicts for such a part. Weights are random. Every figure comes
from a process of its own; time is processor time and counts the reference's pass.

    python benchmarks/pair_memory.py --out docs/results/pair-memory.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from measuring import arguments, chosen, in_fresh_process, parse_side, peak_memory, write_result
from memory import base_of

from understudy.methods.preference_optimization import dpo_pairs
from understudy.methods.preference_optimization.config import PreferenceConfig
from understudy.methods.preference_optimization.dpo import train_round, trainer_class
from understudy.methods.preference_optimization.dpo_pairs import Pairs, encode_pairs, pairs_in_a_pass, step_bytes
from understudy.models.loading import LoadedModel

MODELS = ("llama-6M-lora", "llama-135M-lora")
SIDES = ("memory", "seconds")
LENGTH = 125


def pairs_of(base: LoadedModel, count: int) -> Pairs:
    """Pairs of one length, and no two texts alike."""
    words = base.tokenizer.decode(list(range(1000, 1000 + LENGTH // 2)))
    return Pairs(
        [f"{words} {number}" for number in range(count)],
        [f"{words} good {number}" for number in range(count)],
        [f"{words} bad {number}" for number in range(count)],
    )


def step(options: argparse.Namespace) -> Callable[[], object]:
    """One step, whole or in parts."""
    base = base_of(options.case)
    rows = encode_pairs(base, pairs_of(base, options.pairs))
    config = PreferenceConfig(batch_size=options.pairs, epochs=1)
    trainer_class()  # trl is slow to load
    if options.whole:
        dpo_pairs.AMPLE = sys.maxsize  # type: ignore[misc]

    def work() -> object:
        with TemporaryDirectory() as folder:
            return train_round(base, None, rows=rows, config=config, public_seed=0, round=0, folder=Path(folder))

    return work


def figure(options: argparse.Namespace) -> float:
    """What a process of its own measures: MiB, or seconds."""
    work = step(options)
    if options.side == "memory":
        return peak_memory(work)
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(case: str, options: argparse.Namespace) -> dict[str, float]:
    base = base_of(case)
    rows = encode_pairs(base, pairs_of(base, options.pairs))
    size = min(options.pairs, pairs_in_a_pass(base, rows, PreferenceConfig(batch_size=options.pairs)))
    longest = max(len(prompt) + len(text) for prompt, text in zip(rows["prompt_ids"], rows["chosen_ids"], strict=True))
    shape = base.shape
    assert shape is not None
    found = {"tokens": float(longest), "pairs_at_once": float(size)}
    found["predicted_mib"] = step_bytes(shape, longest=longest, pairs=size) / 2**20
    for name, whole in (("whole", 1), ("parts", 0)):
        for side in SIDES:
            asked = chosen(options, ("pairs", "threads")) | {"case": case, "whole": whole, "side": side}
            found[f"{name}_{side}"] = in_fresh_process(__file__, asked)
    for side in SIDES:
        found[f"{side}_ratio"] = found[f"parts_{side}"] / found[f"whole_{side}"]
    found["prediction_ratio"] = found["predicted_mib"] / found["parts_memory"]
    return found


def main() -> None:
    parser = arguments(__doc__, pairs=8, whole=0)
    parser.add_argument("--case", choices=MODELS, help=argparse.SUPPRESS)
    options = parse_side(parser, SIDES, figure)
    found = {case: compare(case, options) for case in MODELS}
    for case, one in found.items():
        print(case, {name: round(value, 2) for name, value in one.items()})
    write_result(options.out, {"settings": chosen(options, ("pairs", "threads")), "steps": found})


if __name__ == "__main__":
    main()

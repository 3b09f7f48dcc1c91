"""Claim: at the shape of SmolLM2-135M, steering costs at most twice unsteered sampling, 2.5 times with `key_value`.

The shape is 30 layers, hidden 576, 9 heads, 3 key/value heads, tied weights and 49,152 tokens; random weights cost what
trained ones do. All three kinds of sampling run in this process, in turns, with the same prompts and seeds; no row ends
early. The headline is processor time of one thread, because the machine is shared: each figure is the median over
repeats of the ratio to the unsteered run beside it, with the least and the most;
with `--device cuda` of seconds of the clock. `refill` is another measure, without
a target: unsteered texts of different lengths, in batches that take in a new row for each that ends.

    python benchmarks/generation_speed.py --out generation_speed.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import torch
from measuring import arguments, chosen, clock, described, on_device, prepare, spread, write_result

from understudy.generation.config import SamplingConfig, SteeringConfig
from understudy.generation.sampling import sample
from understudy.generation.steering import steer_towards
from understudy.methods.conditional_generation.model import Discriminator
from understudy.models.attention import implementation

TARGETS = {"hidden": 2.0, "key_value": 2.5}
PROMPT = 6  # tokens: BOS, label name, separator


def smollm2_135m(seed: int = 0) -> Any:
    """A model of SmolLM2-135M's shape with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
        initializer_range=0.04,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval().requires_grad_(False)


def draw(model: Any, discriminator: Discriminator, steer: str, options: argparse.Namespace) -> tuple[float, int]:
    """Seconds and tokens of one batch; rows want the two labels in turn."""
    device = options.device
    targets = torch.arange(options.rows, device=device) % 2
    prompts = 3 + torch.arange(2 * PROMPT, device=device).view(2, PROMPT)
    steering = SteeringConfig.model_validate({"steer": steer})
    start = clock(device)
    rows = sample(
        model,
        (prompts[targets], torch.ones_like(prompts[targets])),
        config=SamplingConfig(max_new_tokens=options.tokens),
        seeds=range(options.rows),
        eos=0,
        step_hook=steer_towards(targets, config=steering, attribute=discriminator, representation="mean"),
    )
    return clock(device) - start, sum(map(len, rows))


def measure(model: Any, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Seconds of each kind, and its ratio to the unsteered run of the same turn."""
    size = int(model.config.hidden_size)
    generator = torch.Generator().manual_seed(0)
    discriminator = Discriminator(size, 64, 2, generator=generator).requires_grad_(False).to(options.device)
    seconds: dict[str, list[float]] = {"none": [], "hidden": [], "key_value": []}
    counts = {}
    for steer in seconds:  # warm up
        draw(model, discriminator, steer, argparse.Namespace(rows=options.rows, tokens=2, device=options.device))
    for _ in range(options.repeats):
        for steer, taken in seconds.items():
            spent, counts[steer] = draw(model, discriminator, steer, options)
            taken.append(spent)
    return {
        steer: {
            "tokens": counts[steer],
            "seconds": round(statistics.median(taken), 3),
            "ratio": spread([one / plain for one, plain in zip(taken, seconds["none"], strict=True)]),
        }
        for steer, taken in seconds.items()
    }


def measure_refill(model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Batch after batch against rows that take the place of ended ones, for texts of 1 to `tokens` tokens."""
    count = 4 * options.rows
    lengths = torch.randint(1, options.tokens + 1, (count,), generator=torch.Generator().manual_seed(0))
    wanted = lengths.to(options.device)
    prompts = torch.arange(3, 3 + PROMPT, device=options.device).repeat(count, 1)

    def run(rows: range) -> float:
        def end(_: Any, step: Any) -> torch.Tensor:
            logits: torch.Tensor = step.logits
            logits[step.index + 1 >= wanted[rows.start : rows.stop][step.rows.to(wanted.device)], 0] = 1e9
            return logits

        start = clock(options.device)
        sample(
            model,
            (prompts[rows.start : rows.stop], torch.ones_like(prompts[rows.start : rows.stop])),
            config=SamplingConfig(max_new_tokens=options.tokens),
            seeds=rows,
            eos=0,
            step_hook=end,
            batch_size=options.rows,
        )
        return clock(options.device) - start

    ratios = []
    for _ in range(options.repeats):
        apart = sum(run(range(first, first + options.rows)) for first in range(0, count, options.rows))
        ratios.append(apart / run(range(count)))
    return {"rows": count, "speed_up": spread(ratios)}


def main() -> int:
    parser = on_device(arguments(__doc__, rows=32, tokens=16, repeats=3))
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"), help="of the model")
    options = parser.parse_args()
    prepare(options)
    dtype = getattr(torch, options.precision)
    model = smollm2_135m().to(device=options.device, dtype=dtype)
    model.set_attn_implementation(implementation("sdpa", dtype, options.device))
    kinds, refill = measure(model, options), measure_refill(model, options)
    print(f"{'steer':>10} {'tokens':>7} {'seconds':>12} {'ratio':>7} {'least':>7} {'most':>7}")
    for steer, row in kinds.items():
        ratio = row["ratio"]
        print(
            f"{steer:>10} {row['tokens']:>7} {row['seconds']:>12} {ratio['median']:>7} {ratio['least']:>7} "
            f"{ratio['most']:>7}"
        )
    met = {steer: kinds[steer]["ratio"]["median"] <= target for steer, target in TARGETS.items()}
    sizes = chosen(options, ("rows", "tokens", "repeats", "threads", "precision")) | {
        "device": described(options.device)
    }
    write_result(options.out, {**sizes, "targets": TARGETS, "met": met, "kinds": kinds, "refill": refill})
    print(f"refilled batches, {refill['rows']} rows: {refill['speed_up']['median']} times as fast as one after another")
    for steer, target in TARGETS.items():
        print(f"{steer} at most {target:g}: {'met' if met[steer] else 'missed'}")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

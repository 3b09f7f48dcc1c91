"""Claim: a DP step with LoRA has at least 0.8 times the throughput and at most 1.25 times the memory of a plain step.

Both are ratios to the same step without privacy. The DP side is the shipped trainer with mask, clipping, noise and
Adam; the plain side is ordinary peft training with AdamW over the same micro-batches. Timings alternate within one
process, so that a busy machine slows both; memory is the peak minus what was resident after loading, each side in a
fresh process.

    python benchmarks/dp_step.py --out dp_step.json
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from measuring import arguments, chosen, in_fresh_process, parse_side, peak_memory, write_result
from torch import Tensor, nn
from torch.nn import functional

from understudy.models import lora
from understudy.models.loading import load_model
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream
from understudy.privacy.dpsgd.training import Objective, train
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.progress import Course

SETTINGS = ("model", "batch", "length", "micro_batch", "threads")
TARGETS = {"throughput": 0.8, "memory": 1.25}
CLIP, NOISE, LEARNING_RATE = 0.1, 1.0, 1e-4


def build(options: argparse.Namespace) -> nn.Module:
    model: nn.Module = load_model(options.model).model
    if options.rank:
        generator = torch.Generator().manual_seed(0)
        model = lora.attach(model, rank=options.rank, alpha=2 * options.rank, generator=generator)
    return model


def rows(options: argparse.Namespace) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, 4096, (options.batch, options.length), generator=generator)
    positions = torch.arange(options.length)[None].repeat(options.batch, 1)
    return {"input_ids": ids, "position_ids": positions, "valid": torch.ones(options.batch, dtype=torch.bool)}


def losses(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    ids = batch["input_ids"]
    logits = model(input_ids=ids, position_ids=batch["position_ids"], use_cache=False).logits[:, :-1]
    tokens = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return tokens.view(len(ids), -1).mean(1)


def plain_step(model: nn.Module, data: Mapping[str, Tensor], size: int) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(lora.trainable_parameters(model).values(), lr=LEARNING_RATE)

    def step() -> None:
        count = len(data["valid"])
        for start in range(0, count, size):
            batch = {name: values[start : start + size] for name, values in data.items()}
            (losses(model, batch).sum() / count).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def dp_steps(
    model: nn.Module, data: dict[str, Tensor], options: argparse.Namespace, after_each: Callable[[], None]
) -> None:
    """Every row takes part in every step (q = 1), so both sides do the same work."""
    stream = Stream(name="lm", l2_clip_norm=CLIP, noise_multiplier=NOISE)
    plan = DpSgdPlan(n=options.batch, sampling_probability=1.0, steps=options.steps, streams=(stream,))
    train(
        model,
        plan=plan,
        objectives={"lm": Objective(losses, lora.trainable_parameters(model), LEARNING_RATE)},
        data=data,
        mechanisms=Mechanisms.live(KeyMaterial(b"benchmark", "none", b"", plan.queries)),
        micro_batch=options.micro_batch,
        course=Course(progress=lambda done, steps: after_each()),
    )


def time_ratio(options: argparse.Namespace) -> dict[str, float]:
    """Each DP step is followed by a plain one; the first pair warms up.

    The headline is processor time, which other users of the machine disturb least; on an idle machine wall time
    tells the same.
    """
    clocks = {"throughput_ratio": time.process_time, "wall_ratio": time.perf_counter}
    marks: list[dict[str, float]] = []
    data = rows(options)
    step = plain_step(build(options), data, options.micro_batch)

    def mark() -> None:
        marks.append({name: clock() for name, clock in clocks.items()})

    def alternate() -> None:
        mark()
        step()
        mark()

    dp_model = build(options)
    mark()
    dp_steps(dp_model, data, options, alternate)
    found = {}
    for name in clocks:
        times = [one[name] for one in marks]
        seconds = [after - before for before, after in itertools.pairwise(times)]
        dp, plain = seconds[2::2], seconds[3::2]
        found[name] = statistics.median(p / d for p, d in zip(plain, dp, strict=True))
        if name == "throughput_ratio":
            found["plain_seconds"], found["dp_seconds"] = statistics.median(plain), statistics.median(dp)
    return found


def memory_of_side(options: argparse.Namespace) -> float:
    """MiB that the steps of one side need beyond what is resident after loading, in this fresh process."""
    data, model = rows(options), build(options)
    if options.side == "dp":
        return peak_memory(lambda: dp_steps(model, data, options, lambda: None))

    def steps() -> None:
        step = plain_step(model, data, options.micro_batch)
        for _ in range(options.steps):
            step()

    return peak_memory(steps)


def measure(options: argparse.Namespace, rank: int) -> dict[str, float]:
    options.rank = rank
    same = chosen(options, SETTINGS) | {"rank": rank, "steps": 3}
    peaks = {side: in_fresh_process(__file__, same | {"side": side}) for side in ("plain", "dp")}
    found = time_ratio(options)
    return {
        **found,
        "memory_ratio": peaks["dp"] / peaks["plain"],
        "plain_mib": peaks["plain"],
        "dp_mib": peaks["dp"],
    }


def parse() -> argparse.Namespace:
    parser = arguments(__doc__, batch=64, length=128, micro_batch=16, rank=8, steps=8)
    parser.add_argument("--full", action="store_true", help="also measure full fine-tuning (no target)")
    return parse_side(parser, ("plain", "dp"), memory_of_side)


def main() -> None:
    options = parse()
    results = {f"lora r{options.rank}" if options.rank else "full": measure(options, options.rank)}
    if options.full:
        results["full"] = measure(options, 0)
    print(f"{options.model}, batch {options.batch} in micro-batches of {options.micro_batch}, length {options.length}")
    print(f"{'training':<12}{'throughput':>12}{'(wall)':>10}{'memory':>10}    targets >= 0.8, <= 1.25 (LoRA)")
    for name, found in results.items():
        ratios = f"{found['throughput_ratio']:>12.3f}{found['wall_ratio']:>10.3f}{found['memory_ratio']:>10.3f}"
        print(f"{name:<12}{ratios}")
    write_result(options.out, {"settings": chosen(options, SETTINGS), "targets": TARGETS, "results": results})


if __name__ == "__main__":
    main()

"""Claim: at the shape of SmolLM2-135M, bfloat16 makes a DP LoRA step 1.3 times and sampling twice as fast as float32.

Also claimed: a DP step takes at most 1.1 times a step without privacy with LoRA, and at most 1.6 times with all
weights. Weights are random, which costs the same. A DP step is the shipped trainer with mask, clipping, noise and Adam;
the plain side is AdamW over the same micro-batches and the same loss. The sides of a training take turns in this
process, the precisions follow each other, and sampling alternates between them. The headline is processor time of one
thread, each figure the median of the repeats with the least and the most; with
`--device cuda` it is seconds of the clock.

    python benchmarks/precision.py --out precision.json
    python benchmarks/precision.py --device cuda --batch 64 --micro-batch 64 --rows 128 --tokens 32
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from typing import Any

import torch
from generation_speed import smollm2_135m
from measuring import arguments, chosen, clock, described, on_device, prepare, spread, write_result
from torch import Tensor, nn

from understudy.compute import Compute
from understudy.generation.config import SamplingConfig
from understudy.generation.sampling import backbone, head, sample
from understudy.models import lora
from understudy.models.attention import implementation
from understudy.models.loading import load_model
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream
from understudy.privacy.dpsgd.token_losses import token_losses
from understudy.privacy.dpsgd.training import Objective, train
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.progress import Course

PARTS = ("lora", "all", "sampling")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def base(precision: str, device: str) -> Any:
    """With the attention that `load_model` gives it."""
    model = smollm2_135m().to(device=device, dtype=DTYPES[precision])
    model.set_attn_implementation(implementation("sdpa", DTYPES[precision], device))
    return model


def trainable(precision: str, rank: int, device: str) -> nn.Module:
    """LoRA of this rank over frozen weights in this precision; rank 0 trains every weight, in float32."""
    if not rank:
        return base("float32", device).requires_grad_(True)
    return lora.attach(base(precision, device), rank=rank, alpha=2 * rank, generator=torch.Generator().manual_seed(0))


def losses(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    ids = batch["input_ids"]
    hidden = backbone(model)(input_ids=ids, position_ids=batch["position_ids"], use_cache=False).last_hidden_state
    return token_losses(head(model), hidden[:, :-1], ids[:, 1:]).mean(1)


def rows(options: argparse.Namespace) -> dict[str, Tensor]:
    ids = torch.randint(2, 49_152, (options.batch, options.length), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(options.length)[None].repeat(options.batch, 1)
    return {"input_ids": ids, "position_ids": positions, "valid": torch.ones(options.batch, dtype=torch.bool)}


def step_seconds(precision: str, rank: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of DP and plain steps in turn; the first pair warms up."""
    data, device = rows(options), options.device
    private, plain = trainable(precision, rank, device), trainable(precision, rank, device)
    optimizer = torch.optim.AdamW(lora.trainable_parameters(plain).values(), lr=1e-4)

    def plain_step() -> None:
        for start in range(0, options.batch, options.micro_batch):
            part = {name: values[start : start + options.micro_batch].to(device) for name, values in data.items()}
            (losses(plain, part).sum() / options.batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    marks: list[float] = []

    def alternate(_done: int, _steps: int) -> None:
        marks.append(clock(device))
        plain_step()
        marks.append(clock(device))

    stream = Stream(name="lm", l2_clip_norm=0.1, noise_multiplier=1.0)
    plan = DpSgdPlan(n=options.batch, sampling_probability=1.0, steps=options.repeats + 1, streams=(stream,))
    marks.append(clock(device))
    train(
        private,
        plan=plan,
        objectives={"lm": Objective(losses, lora.trainable_parameters(private), 1e-4)},
        data=data,
        mechanisms=Mechanisms.live(KeyMaterial(b"benchmark", "none", b"", plan.queries)),
        micro_batch=options.micro_batch,
        course=Course(progress=alternate),
    )
    seconds = [after - before for before, after in itertools.pairwise(marks)]
    return {"dp": seconds[2::2], "plain": seconds[3::2]}


def sampled_from(options: argparse.Namespace, precision: str) -> Any:
    """The random model, or that of `--weights`: how many tokens a nucleus holds is a matter of weights."""
    if options.weights is None:
        return base(precision, options.device).requires_grad_(False).eval()
    return load_model(options.weights, compute=Compute(options.device, precision)).model.requires_grad_(False)


def sampling_seconds(options: argparse.Namespace) -> dict[str, list[float]]:
    models = {precision: sampled_from(options, precision) for precision in DTYPES}
    prompts = torch.arange(3, 9, device=options.device).repeat(options.rows, 1)
    found: dict[str, list[float]] = {precision: [] for precision in DTYPES}
    for _ in range(options.repeats + 1):
        for precision, model in models.items():
            began = clock(options.device)
            sample(
                model,
                (prompts, torch.ones_like(prompts)),
                config=SamplingConfig(max_new_tokens=options.tokens),
                seeds=range(options.rows),
                eos=0,
            )
            found[precision].append(clock(options.device) - began)
    return {precision: taken[1:] for precision, taken in found.items()}


def over(these: list[float], those: list[float]) -> dict[str, float]:
    """Spread of the ratios of pairs."""
    return spread([a / b for a, b in zip(these, those, strict=True)])


def ratios(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ratios of the chosen parts, and the seconds behind them."""
    found: dict[str, Any] = {}
    seconds: dict[str, Any] = {}
    if "lora" in options.parts:
        steps = seconds["steps"] = {precision: step_seconds(precision, options.rank, options) for precision in DTYPES}
        both = steps["float32"], steps["bfloat16"]
        found["DP LoRA step, float32 over bfloat16 (>= 1.3)"] = over(*(one["dp"] for one in both))
        found["plain LoRA step, float32 over bfloat16"] = over(*(one["plain"] for one in both))
        for precision, one in steps.items():
            found[f"LoRA, DP over plain, {precision} (<= 1.1)"] = over(one["dp"], one["plain"])
    if "all" in options.parts:
        full = seconds["all_weights"] = step_seconds("float32", 0, options)
        found["all weights, DP over plain, float32 (<= 1.6)"] = over(full["dp"], full["plain"])
    if "sampling" in options.parts:
        drawn = seconds["sampling"] = sampling_seconds(options)
        found["sampling, float32 over bfloat16 (>= 2)"] = over(drawn["float32"], drawn["bfloat16"])
    return found, seconds


def main() -> None:
    parser = on_device(arguments(__doc__, batch=16, length=48, micro_batch=8, rank=8, rows=32, tokens=8, repeats=3))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, help="what is measured")
    parser.add_argument("--weights", help="name or folder of a model to sample from in place of random weights")
    options = parser.parse_args()
    prepare(options)
    found, seconds = ratios(options)
    for name, ratio in found.items():
        print(f"{name:<50}{ratio}")
    names = ("batch", "length", "micro_batch", "rank", "rows", "tokens", "repeats", "threads", "weights")
    settings = chosen(options, names) | {"device": described(options.device)}
    kind = "processor_seconds" if options.device == "cpu" else "seconds"
    write_result(options.out, {"settings": settings, "ratios": found, kind: seconds})


if __name__ == "__main__":
    main()

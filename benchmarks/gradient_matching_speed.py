"""Claim: the matching loss in closed form is at least 5 times as fast as by double backward, in a tenth of its memory.

One evaluation gives the loss and its gradient by the text's embeddings. `double_backward` is what autograd does
with the logits that a model of transformers gives, one row per position: each text's gradient of the head, V x d, is
formed with a graph, and the cosine with the target is differentiated through it. `lean_double_backward` is the same
with the head applied at the last position only, text by text: the least that double backward can cost, of which the
transformer itself, needed by every side, is a large part for a model as small as the shipped one.

All sides alternate within one process and a ratio is that of their fastest repeats, so that other users of the machine
disturb no side alone. Memory is the peak minus what was resident after loading and one evaluation of one short text
(which brings code and buffers into memory), each side in a fresh process.

With `--whole-texts 1` the parts of a matched text are measured at the shape of SmolLM2-135M instead (random weights):
an evaluation of f, a projection and a sweep of swaps, each beside what the loop of the paper's authors does, one text
after the other by double backward with everything read anew. `end_to_end` adds them up by the counts of the `tiny`
profile, our swaps included, the loop's not. Every sweep counts the loss of the text that it begins with, which a run
takes once. `--batch 32 --length 20` are the method's defaults. The figures are ratios of processor time within a turn:
the median of the turns, with the least and the most. `--precision` is that of our side, which `auto` chooses by machine
and size; the loop stays in float32, as its authors wrote it. With `--device cuda` both run on a GPU, and seconds are of
the clock.

    python benchmarks/gradient_matching_speed.py --out gradient_matching_speed.json
    python benchmarks/gradient_matching_speed.py --whole-texts 1 --batch 32 --length 20 --repeats 3
    python benchmarks/gradient_matching_speed.py --whole-texts 1 --batch 32 --length 20 --repeats 3 --precision bfloat16
    python benchmarks/gradient_matching_speed.py --whole-texts 1 --batch 32 --length 20 --repeats 3 --device cuda
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from generation_speed import smollm2_135m
from gradient_projection_speed import loop
from measuring import (
    arguments,
    chosen,
    clock,
    described,
    in_fresh_process,
    on_device,
    parse_side,
    peak_memory,
    spread,
    write_result,
)
from torch import Tensor
from torch.nn import functional

from understudy.generation.prompts import Instruction
from understudy.generation.sampling import backbone, head
from understudy.methods.gradient_matching.config import (
    MatchingConfig,
    ProjectionConfig,
    TargetConfig,
    VerbalizerConfig,
)
from understudy.methods.gradient_matching.loss import Objective, embed, last_state, objective, surround
from understudy.methods.gradient_matching.optimise import instruction_prompts
from understudy.methods.gradient_matching.projection import allowed_tokens, top_k_projection
from understudy.methods.gradient_matching.swaps import likely_tokens, swap_tokens
from understudy.methods.gradient_matching.targets import TargetSpace, target_space
from understudy.methods.gradient_matching.verbalizer import Verbalizer, build_verbalizer
from understudy.models.attention import implementation
from understudy.models.loading import LoadedModel, load_model

TARGETS = {"time": 5.0, "memory": 0.1}
WORDS = {"negative": "bad", "positive": "great"}


@dataclass(frozen=True)
class Setting:
    """A public model with a random target in the space of its head's gradients."""

    model: Any
    words: Verbalizer
    space: TargetSpace
    target: Tensor


def build(loaded: LoadedModel) -> Setting:
    loaded.model.requires_grad_(False)
    words = build_verbalizer(loaded.tokenizer, list(WORDS), VerbalizerConfig(words=WORDS))
    space = target_space(loaded.model, words, TargetConfig(kind="head"), public_seed=0)
    target = torch.randn(len(WORDS), *space.shape, generator=torch.Generator().manual_seed(0))
    return Setting(loaded.model, words, space, target.to(loaded.model.device))


def texts(setting: Setting, *, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Embeddings of random tokens, and labels in turn."""
    ids = torch.randint(2, setting.space.vocabulary, (batch, length), generator=torch.Generator().manual_seed(1))
    device = setting.model.device
    return embed(setting.model, ids.to(device)), torch.arange(batch, device=device) % len(WORDS)


def closed_form(setting: Setting, labels: Tensor) -> Objective:
    return objective(setting.model, setting.space, setting.target, setting.words, labels)


def cosine_loss(setting: Setting, weight: Tensor, logits: Tensor, label: Tensor) -> Tensor:
    """1 - cosine of one text's gradient by the head's weight, `(V, d)` with a graph, and its target."""
    word = setting.words.token_ids.to(label.device)[label]
    loss = functional.cross_entropy(logits[None], word[None])
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    return 1 - functional.cosine_similarity(gradient.flatten(), setting.target[label].flatten(), dim=0)


def double_backward(setting: Setting, labels: Tensor) -> Objective:
    def losses(embeddings: Tensor) -> Tensor:
        weight = head(setting.model).weight.detach().requires_grad_()
        whole = surround(setting.model, embeddings, setting.words)
        logits = backbone(setting.model)(inputs_embeds=whole, use_cache=False).last_hidden_state @ weight.T
        rows = zip(logits[:, -1], labels, strict=True)
        return torch.stack([cosine_loss(setting, weight, row, label) for row, label in rows])

    return losses


def lean_double_backward(setting: Setting, labels: Tensor) -> Objective:
    def losses(embeddings: Tensor) -> Tensor:
        weight = head(setting.model).weight.detach().requires_grad_()
        hidden, _ = last_state(setting.model, embeddings, setting.words)
        rows = zip(hidden, labels, strict=True)
        return torch.stack([cosine_loss(setting, weight, row @ weight.T, label) for row, label in rows])

    return losses


SIDES: dict[str, Callable[[Setting, Tensor], Objective]] = {
    "closed_form": closed_form,
    "double_backward": double_backward,
    "lean_double_backward": lean_double_backward,
}


def evaluation(setting: Setting, side: str, *, batch: int, length: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Losses and their gradient by the embeddings, as one inner step of ADMM takes them."""
    embeddings, labels = texts(setting, batch=batch, length=length)
    embeddings.requires_grad_()
    loss = SIDES[side](setting, labels)

    def step() -> tuple[Tensor, Tensor]:
        values = loss(embeddings)
        return values.detach(), torch.autograd.grad(values.sum(), embeddings)[0]

    return step


def seconds(options: argparse.Namespace) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Fastest repeats of all sides, and how far each side's gradient is from the closed form's (from the warm-up)."""
    setting = build(load_model(options.model))
    steps = {side: evaluation(setting, side, batch=options.batch, length=options.length) for side in SIDES}
    slopes = {side: step()[1] for side, step in steps.items()}
    clocks = {"processor": time.process_time, "wall": time.perf_counter}
    fastest = {side: dict.fromkeys(clocks, float("inf")) for side in SIDES}
    for _ in range(options.repeats):
        for side, step in steps.items():
            before = {name: read() for name, read in clocks.items()}
            step()
            for name, read in clocks.items():
                fastest[side][name] = min(fastest[side][name], read() - before[name])
    own = slopes["closed_form"]
    return fastest, {side: float((slope - own).norm() / own.norm()) for side, slope in slopes.items()}


def memory_of_side(options: argparse.Namespace) -> float:
    """MiB that one side needs beyond what is resident after loading, in this fresh process."""
    setting = build(load_model(options.model))
    evaluation(setting, options.side, batch=1, length=1)()
    step = evaluation(setting, options.side, batch=options.batch, length=options.length)
    return peak_memory(lambda: [step() for _ in range(3)])


def measure_objective(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Every side, and its ratios to the closed form."""
    same = chosen(options, ("model", "batch", "length", "threads"))
    peaks = {side: in_fresh_process(__file__, same | {"side": side}) for side in SIDES}
    fastest, differences = seconds(options)
    ours = fastest["closed_form"]
    return {
        side: {
            "seconds": fastest[side]["processor"],
            "mib": peaks[side],
            "time_ratio": fastest[side]["processor"] / ours["processor"],
            "wall_ratio": fastest[side]["wall"] / ours["wall"],
            "memory_ratio": peaks["closed_form"] / peaks[side],
            "gradient_difference": differences[side],
        }
        for side in SIDES
    }


def print_objective(found: dict[str, dict[str, float]]) -> None:
    columns = ("seconds", "mib", "time_ratio", "wall_ratio", "memory_ratio")
    print(f"{'objective':<22}{''.join(f'{name:>14}' for name in columns)}    targets: time >= 5, memory <= 0.1")
    for side, values in found.items():
        print(f"{side:<22}{''.join(f'{values[name]:>14.3f}' for name in columns)}")


def seconds_of(work: Callable[[], object], device: str) -> float:
    start = clock(device)
    work()
    return clock(device) - start


def in_precision(loaded: LoadedModel, precision: str) -> LoadedModel:
    """A copy of the model in this precision, with the attention that `load_model` gives it."""
    if precision == "float32":
        return loaded
    dtype = getattr(torch, precision)
    model = copy.deepcopy(loaded.model).to(dtype)
    model.set_attn_implementation(implementation("sdpa", dtype, model.device.type))
    return replace(loaded, model=model)


def parts_of_a_text(options: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Work on a batch (ours) or on one text (`loop_...`) for each part of matching, at SmolLM2-135M's shape."""
    loaded = replace(load_model(options.model), model=smollm2_135m().to(options.device))
    authors, setting = build(loaded), build(in_precision(loaded, options.precision))
    embeddings, labels = texts(setting, batch=options.batch, length=options.length)
    allowed = allowed_tokens(loaded.tokenizer, "printable").to(options.device)
    ids, mask = instruction_prompts(loaded.tokenizer, list(WORDS), Instruction("Write a text. Label: {label}\nText:"))
    prompts, k = (ids.to(options.device)[labels], mask.to(options.device)[labels]), ProjectionConfig().k
    table = embed(setting.model, torch.arange(setting.space.vocabulary, device=options.device))
    wide, _ = texts(authors, batch=1, length=options.length)
    tokens = torch.randint(2, setting.space.vocabulary, (*labels.shape, options.length)).to(options.device)
    matching = MatchingConfig()

    def loop_projection() -> None:
        with torch.no_grad():
            loop(loaded, wide, (prompts[0][:1], prompts[1][:1]), allowed, k)

    def sweep() -> object:
        proposals = likely_tokens(setting.model, prompts, allowed=allowed, k=k)
        f = closed_form(setting, labels)
        return swap_tokens(f, proposals, tokens, table=table, sweeps=1, width=matching.swap_width)

    return {
        "evaluation": evaluation(setting, "closed_form", batch=options.batch, length=options.length),
        "projection": lambda: top_k_projection(setting.model, embeddings, prompts=prompts, allowed=allowed, k=k),
        "sweep": sweep,
        "loop_evaluation": evaluation(authors, "double_backward", batch=1, length=options.length),
        "loop_projection": loop_projection,
    }


def measure_texts(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds per text of every part, and how many times as long the loop takes."""
    parts, matching = parts_of_a_text(options), MatchingConfig()
    turns: list[dict[str, float]] = []
    for _ in range(options.repeats + 1):  # the first warms up
        turns.append({name: seconds_of(part, options.device) for name, part in parts.items()})
        for name in ("evaluation", "projection", "sweep"):
            turns[-1][name] /= options.batch
    turns = turns[1:]
    rounds = matching.rounds + 1  # the warm start has no projection, the end has one
    counts = {"evaluation": rounds * matching.inner_steps, "projection": rounds, "sweep": matching.swap_sweeps}
    ours = [sum(count * turn[name] for name, count in counts.items()) for turn in turns]
    plain = [sum(counts[name] * turn[f"loop_{name}"] for name in ("evaluation", "projection")) for turn in turns]
    return {
        "seconds_per_text": {name: spread([turn[name] for turn in turns]) for name in parts},
        "device": described(options.device),
        "counts": counts,
        "text_seconds": spread(ours),
        "evaluation": spread([turn["loop_evaluation"] / turn["evaluation"] for turn in turns]),
        "projection": spread([turn["loop_projection"] / turn["projection"] for turn in turns]),
        "end_to_end": spread([slow / fast for slow, fast in zip(plain, ours, strict=True)]),
        "targets": {"projection": 8.0, "end_to_end": 8.0},
    }


def main() -> None:
    parser = on_device(arguments(__doc__, batch=16, length=32, repeats=5, whole_texts=0))
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"), help="of our side of a text")
    options = parse_side(parser, tuple(SIDES), memory_of_side)
    if options.whole_texts:
        found = measure_texts(options)
        for name, values in found.items():
            print(f"{name}: {values}")
        write_result(options.out, found)
        return
    results = {"objective": measure_objective(options)}
    print(f"{options.model}, batch {options.batch}, length {options.length}, {options.threads} thread(s)")
    print_objective(results["objective"])
    settings = chosen(options, ("model", "batch", "length", "repeats", "threads"))
    write_result(options.out, {"settings": settings, "targets": TARGETS, "results": results})


if __name__ == "__main__":
    main()

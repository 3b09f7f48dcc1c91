"""Claim: the matching loss in closed form is at least 5 times as fast as by double backward, in a tenth of its memory.

One evaluation gives the loss and its gradient by the text's embeddings. `double_backward` is what autograd does
with the logits that a model of transformers gives, one row per position: each text's gradient of the head, V x d, is
formed with a graph, and the cosine with the target is differentiated through it. `lean_double_backward` is the same
with the head applied at the last position only, text by text: the least that double backward can cost, of which the
transformer itself, needed by every side, is a large part for a model as small as the shipped one.

All sides alternate within one process and a ratio is that of their fastest repeats, so that other users of the machine
disturb no side alone. Memory is the peak minus what was resident after loading and one evaluation of one short text
(which brings code and buffers into memory), each side in a fresh process.

    python benchmarks/gradient_matching_speed.py --out gradient_matching_speed.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from measuring import arguments, chosen, in_fresh_process, parse_side, peak_memory, write_result
from torch import Tensor
from torch.nn import functional

from understudy.generation.sampling import backbone, head
from understudy.methods.gradient_matching.config import TargetConfig, VerbalizerConfig
from understudy.methods.gradient_matching.loss import Objective, last_state, objective, surround
from understudy.methods.gradient_matching.targets import TargetSpace, target_space
from understudy.methods.gradient_matching.verbalizer import Verbalizer, build_verbalizer
from understudy.models.loading import load_model

TARGETS = {"time": 5.0, "memory": 0.1}
WORDS = {"negative": "bad", "positive": "great"}


@dataclass(frozen=True)
class Setting:
    """A public model with a random target in the space of its head's gradients."""

    model: Any
    words: Verbalizer
    space: TargetSpace
    target: Tensor


def build(model: str) -> Setting:
    loaded = load_model(model)
    loaded.model.requires_grad_(False)
    words = build_verbalizer(loaded.tokenizer, list(WORDS), VerbalizerConfig(words=WORDS))
    space = target_space(loaded.model, words, TargetConfig(kind="head"), public_seed=0)
    target = torch.randn(len(WORDS), *space.shape, generator=torch.Generator().manual_seed(0))
    return Setting(loaded.model, words, space, target)


def texts(setting: Setting, *, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Embeddings of random tokens, and labels in turn."""
    ids = torch.randint(2, setting.space.vocabulary, (batch, length), generator=torch.Generator().manual_seed(1))
    return setting.model.get_input_embeddings()(ids).detach(), torch.arange(batch) % len(WORDS)


def closed_form(setting: Setting, labels: Tensor) -> Objective:
    return objective(setting.model, setting.space, setting.target, setting.words, labels)


def cosine_loss(setting: Setting, weight: Tensor, logits: Tensor, label: Tensor) -> Tensor:
    """1 - cosine of one text's gradient by the head's weight, `(V, d)` with a graph, and its target."""
    loss = functional.cross_entropy(logits[None], setting.words.token_ids[label][None])
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
    setting = build(options.model)
    steps = {side: evaluation(setting, side, batch=options.batch, length=options.length) for side in SIDES}
    slopes = {side: step()[1] for side, step in steps.items()}
    clocks = {"processor": time.process_time, "wall": time.perf_counter}
    fastest = {side: dict.fromkeys(clocks, float("inf")) for side in SIDES}
    for _ in range(options.repeats):
        for side, step in steps.items():
            before = {name: clock() for name, clock in clocks.items()}
            step()
            for name, clock in clocks.items():
                fastest[side][name] = min(fastest[side][name], clock() - before[name])
    own = slopes["closed_form"]
    return fastest, {side: float((slope - own).norm() / own.norm()) for side, slope in slopes.items()}


def memory_of_side(options: argparse.Namespace) -> float:
    """MiB that one side needs beyond what is resident after loading, in this fresh process."""
    setting = build(options.model)
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


def main() -> None:
    options = parse_side(arguments(__doc__, batch=16, length=32, repeats=5), tuple(SIDES), memory_of_side)
    results = {"objective": measure_objective(options)}
    print(f"{options.model}, batch {options.batch}, length {options.length}, {options.threads} thread(s)")
    print_objective(results["objective"])
    settings = chosen(options, ("model", "batch", "length", "repeats", "threads"))
    write_result(options.out, {"settings": settings, "targets": TARGETS, "results": results})


if __name__ == "__main__":
    main()

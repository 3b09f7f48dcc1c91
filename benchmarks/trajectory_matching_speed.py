"""Claim: the student's steps are differentiated in the memory of one step, at 1.5 times the time of plain reverse mode.

One evaluation gives the matching loss and its gradient by the prompts of all N steps and by the step size. `adjoint` is
what the method does (`unroll.py`). `reverse_mode` keeps the graph of all N gradients, as autograd does by itself.
`rematerialised` is the usual remedy: `torch.utils.checkpoint` (not reentrant) around each whole inner step.

The sides alternate within one process; a ratio is that of processor time within a turn, and the median of the turns is
given with the least and the most. Memory is the peak minus what was resident after loading and one evaluation of a
single short row, each side and each N in a fresh process, in which freed blocks go back to the system at once: what the
C library would keep of them grows with the number of allocations and is not the method's. `adjoint` reads
`--rows-at-once` of a step's rows in one pass, or all of them with 0.

    python benchmarks/trajectory_matching_speed.py --out trajectory_matching_speed.json
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from measuring import arguments, chosen, in_fresh_process, parse_side, peak_memory, spread, write_result
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from understudy.methods.trajectory_matching.student import BatchLoss, Rows, Student
from understudy.methods.trajectory_matching.unroll import Segment, Weights, match_trajectory, squared_distance
from understudy.models.loading import load_model

TARGETS = {"time_ratio": 1.5, "memory_ratio": 0.5, "growth_per_doubling": 1.15}
N_OF_MEMORY = (1, 2, 4, 8)
RESPONSE, STEP_SIZE, RANK = 8, 0.1, 8
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h

Gradients = tuple[float, tuple[Tensor, ...], float]


@dataclass(frozen=True)
class Setting:
    """A student with random rows, prompts and an expert's segment."""

    loss: BatchLoss
    segment: Segment
    prompts: Sequence[Tensor]
    rows_at_once: int


def build(options: argparse.Namespace, *, steps: int, batch: int, length: int) -> Setting:
    generator = torch.Generator().manual_seed(0)
    student = Student(load_model(options.model).model, rank=RANK, alpha=2.0 * RANK, seed=0)
    vocabulary, width = student.vocabulary.shape
    start = {name: w + 0.02 * torch.randn(w.shape, generator=generator) for name, w in student.start.items()}
    target = {name: w + 0.01 * torch.randn(w.shape, generator=generator) for name, w in start.items()}
    ids = torch.randint(2, vocabulary, (steps, batch, length), generator=generator)
    answers = (torch.arange(length) >= length - RESPONSE).expand(batch, length)
    rows = [Rows(some, torch.ones_like(some), answers) for some in ids]
    prompts = [0.05 * torch.randn(batch, options.k, width, generator=generator) for _ in range(steps)]
    return Setting(BatchLoss(student, rows), Segment(start, target), prompts, options.rows_at_once or batch)


def adjoint(setting: Setting) -> Gradients:
    found = match_trajectory(
        setting.loss, setting.segment, setting.prompts, step_size=STEP_SIZE, rows_at_once=setting.rows_at_once
    )
    return found.loss, found.by_prompts, found.by_step_size


def reverse_mode(setting: Setting, *, rematerialise: bool = False) -> Gradients:
    prompts = [prompt.clone().requires_grad_() for prompt in setting.prompts]
    alpha = torch.tensor(STEP_SIZE, requires_grad=True)
    names = list(setting.segment.start)

    def one_step(step: int, prompt: Tensor, alpha: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        weights: Weights = dict(zip(names, values, strict=True))
        found = torch.autograd.grad(setting.loss(weights, prompt, step), values, create_graph=True)
        return tuple(value - alpha * g for value, g in zip(values, found, strict=True))

    values: tuple[Tensor, ...] = tuple(w.clone().requires_grad_() for w in setting.segment.start.values())
    with sdpa_kernel(SDPBackend.MATH):
        for step, prompt in enumerate(prompts):
            if rematerialise:
                values = checkpoint(one_step, step, prompt, alpha, *values, use_reentrant=False)
            else:
                values = one_step(step, prompt, alpha, *values)
        final = dict(zip(names, values, strict=True))
        loss = squared_distance(final, setting.segment.target) / setting.segment.length
        *by_prompts, by_alpha = torch.autograd.grad(loss, [*prompts, alpha])
    return float(loss.detach()), tuple(by_prompts), float(by_alpha)


SIDES: dict[str, Callable[[Setting], Gradients]] = {
    "adjoint": adjoint,
    "reverse_mode": reverse_mode,
    "rematerialised": lambda setting: reverse_mode(setting, rematerialise=True),
}


def memory_of_side(options: argparse.Namespace) -> float:
    """MiB that one side needs beyond what is resident after loading, in this fresh process."""
    return_freed_blocks()
    SIDES[options.side](build(options, steps=1, batch=1, length=2 * RESPONSE))
    setting = build(options, steps=options.steps, batch=options.batch, length=options.length)
    return peak_memory(lambda: SIDES[options.side](setting))


def return_freed_blocks() -> None:
    """Have glibc map every block of 64 KiB and more by itself; elsewhere nothing is changed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(_MMAP_THRESHOLD, 65_536)


def times(options: argparse.Namespace) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Processor seconds of every side, turn by turn, and how far each side's gradient is from reverse mode's."""
    setting = build(options, steps=options.steps, batch=options.batch, length=options.length)
    slopes = {side: torch.stack(work(setting)[1]) for side, work in SIDES.items()}
    turns = []
    for _ in range(options.repeats):
        turn = {}
        for side, work in SIDES.items():
            began = time.process_time()
            work(setting)
            turn[side] = time.process_time() - began
        turns.append(turn)
    exact = slopes["reverse_mode"]
    return turns, {side: float((slope - exact).norm() / exact.norm()) for side, slope in slopes.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    same = chosen(options, ("model", "batch", "length", "k", "rows_at_once", "threads"))
    turns, differences = times(options)
    peaks = {
        side: {
            n: in_fresh_process(__file__, {**same, "side": side, "steps": n})
            for n in sorted({*N_OF_MEMORY, options.steps})
        }
        for side in SIDES
    }
    return {
        side: {
            "seconds": spread([turn[side] for turn in turns]),
            "time_ratio": spread([turn[side] / turn["reverse_mode"] for turn in turns]),
            "memory_ratio": peaks[side][options.steps] / peaks["reverse_mode"][options.steps],
            "mib": peaks[side],
            "growth_per_doubling": [peaks[side][b] / peaks[side][a] for a, b in pairwise(N_OF_MEMORY)],
            "gradient_difference": differences[side],
        }
        for side in SIDES
    }


def main() -> None:
    parser = arguments(__doc__, steps=6, batch=8, length=64, k=2, rows_at_once=0, repeats=5)
    options = parse_side(parser, tuple(SIDES), memory_of_side)
    found = measure(options)
    for side, values in found.items():
        growth = " ".join(f"{value:.2f}" for value in values["growth_per_doubling"])
        print(
            f"{side:<16} time {values['time_ratio']}  memory {values['memory_ratio']:.2f} of reverse mode's, "
            f"MiB {values['mib']}, growth {growth}, gradient differs by {values['gradient_difference']:.1e}"
        )
    settings = chosen(options, ("model", "steps", "batch", "length", "k", "rows_at_once", "repeats", "threads"))
    write_result(options.out, {"settings": settings, "targets": TARGETS, "results": found})


if __name__ == "__main__":
    main()

"""Claim: the head in chunks takes at most a fifth of the memory and no more time, and peaks are predicted within 25 %.

Two parts. *Head*: losses and gradients through an output head of SmolLM2-135M's shape (hidden 576, vocabulary
49,152), in chunks, beside logits of the whole micro-batch as they were taken before; frozen, and trained with clipping
for each example. *Peaks*: two steps of conditional generation's training, above the loaded model, beside what
`--dry-run` predicts, for nine models and settings on 8,530 rows; the micro-batch is the one that `auto` gives. Steps
expect 64 rows, so that several float sums are added up. Weights are random. Every figure comes from a process
of its own; time is processor time. With `--device cuda` the peak is what torch allocated on the GPU.

    python benchmarks/memory.py --out docs/results/memory.json
    python benchmarks/memory.py --device cuda --parts peaks
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from measuring import arguments, chosen, in_fresh_process, on_device, parse_side, peak_memory, write_result
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from understudy.data.private_rows import PrivateRows
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.fitting import train_on_table
from understudy.methods.conditional_generation.memory import resolve_for, rows_per_pass, training_bytes
from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
from understudy.models.loading import LoadedModel, load_model
from understudy.privacy.dpsgd.chunks import ROWS_IN_FLOATS
from understudy.privacy.dpsgd.factors import Factors, add_weighted_sum, inner_product
from understudy.privacy.dpsgd.token_losses import TAP, HeadFactors, token_losses
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.settings import DeviceType

TARGETS = {"memory": 0.2, "time": 1.0, "prediction": 0.25, "run_mib": 3072}
HIDDEN, VOCABULARY = 576, 49_152
ROWS = 8530
LABELS = ("negative", "positive")
# name -> kind, layers, hidden, inner, heads, key heads, vocabulary, LoRA rank (0: every weight)
CASES: dict[str, tuple[Any, ...]] = {
    "gpt2-4M-lora": ("gpt2", 4, 224, 896, 4, 4, 4096, 8),
    "llama-6M-lora": ("llama", 5, 256, 688, 4, 4, 8192, 8),
    "llama-6M-full": ("llama", 5, 256, 688, 4, 4, 8192, 0),
    "llama-25M-lora": ("llama", 8, 384, 1024, 6, 3, 32_768, 8),
    "llama-60M-full": ("llama", 12, 512, 1408, 8, 4, 49_152, 0),
    "llama-135M-lora": ("llama", 30, 576, 1536, 9, 3, 49_152, 8),
    "llama-135M-full": ("llama", 30, 576, 1536, 9, 3, 49_152, 0),
    # The prediction's constants were set before these two were ever measured.
    "gpt2-30M-full": ("gpt2", 6, 512, 2048, 8, 8, 21_000, 0),
    "llama-90M-lora": ("llama", 16, 640, 1728, 10, 5, 32_768, 8),
}
SIDES = ("memory", "seconds", "peak")


def head_work(options: argparse.Namespace) -> Callable[[], Tensor]:
    """One pass through the head, forward and backward; trained: with the clipped sum of its per-example gradients."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator) * 0.02
    hidden = torch.randn(options.rows, options.length, HIDDEN, generator=generator)
    targets = torch.randint(0, VOCABULARY, (options.rows, options.length), generator=generator)
    return functools.partial(CHUNKED[options.head] if options.chunked else WHOLE[options.head], weight, hidden, targets)


def whole_frozen(weight: Tensor, hidden: Tensor, targets: Tensor) -> Tensor:
    states = hidden.clone().requires_grad_()
    logits = functional.linear(states, weight)
    functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1).sum().backward()
    return states


def whole_trained(weight: Tensor, hidden: Tensor, targets: Tensor) -> Tensor:
    logits = functional.linear(hidden.clone().requires_grad_(), weight)
    logits.retain_grad()
    functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1).sum().backward()
    assert logits.grad is not None
    return clipped(weight, Factors(logits.grad, hidden))


def chunked_frozen(weight: Tensor, hidden: Tensor, targets: Tensor) -> Tensor:
    states = hidden.clone().requires_grad_()
    token_losses(head_of(weight), states, targets).mean(1).sum().backward()
    return states


def chunked_trained(weight: Tensor, hidden: Tensor, targets: Tensor) -> Tensor:
    head, found = head_of(weight), list[HeadFactors]()
    vars(head)[TAP] = found.append
    token_losses(head, hidden.clone().requires_grad_(), targets).mean(1).sum().backward()
    return clipped(weight, found[0])


def head_of(weight: Tensor) -> nn.Linear:
    head = nn.Linear(HIDDEN, VOCABULARY, bias=False, device="meta")
    head.weight = nn.Parameter(weight, requires_grad=False)
    return head


def clipped(weight: Tensor, factors: Factors | HeadFactors) -> Tensor:
    squares, _ = inner_product(factors, factors)
    total = torch.zeros_like(weight)
    add_weighted_sum(total, [factors], squares.rsqrt().float(), None)
    return total


WHOLE = {"frozen": whole_frozen, "trained": whole_trained}
CHUNKED = {"frozen": chunked_frozen, "trained": chunked_trained}


def base_of(case: str) -> LoadedModel:
    """A model of random weights with a shipped tokenizer."""
    kind, layers, hidden, inner, heads, keys, vocabulary, _ = CASES[case]
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "vocab_size": vocabulary}
    torch.manual_seed(0)
    if kind == "gpt2":
        no_dropout = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
        sizes = {"n_embd": hidden, "n_inner": inner, "n_layer": layers, "n_head": heads}
        model: Any = GPT2LMHeadModel(GPT2Config(**sizes, **special, **no_dropout))
    else:
        sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
        attention = {"num_attention_heads": heads, "num_key_value_heads": keys}
        model = LlamaForCausalLM(LlamaConfig(**sizes, **attention, **special, tie_word_embeddings=True))
    tokenizer = load_model(f"tiny-{kind}").tokenizer
    return LoadedModel(model=model.eval(), tokenizer=tokenizer, digest=case, name=case, notes=())


def config_of(case: str, base: LoadedModel, device: DeviceType) -> tuple[ConditionalGenerationConfig, float]:
    """The default settings with what `auto` gives for this model, and the predicted peak in MiB."""
    shape = base.shape
    assert shape is not None
    case_of = {"model": f"tiny-{CASES[case][0]}", "lora": {"rank": CASES[case][-1]}}
    plain = ConditionalGenerationConfig(**case_of, selection={"draws": 1})
    rows = rows_per_pass(plain, ROWS, shape, device=device)
    config = resolve_for(plain, shape)
    config = config.model_copy(update={"train": config.train.model_copy(update={"micro_batch": rows})})
    return config, training_bytes(config, shape, rows, device=device) / 2**20


def training(case: str, device: DeviceType) -> Callable[[], object]:
    """Two steps that expect 64 of 8,530 rows."""
    base = base_of(case)
    base.model.to(device)
    config, _ = config_of(case, base, device)
    schedule = schedule_of(queries_of(config, n=ROWS, epsilon=8.0, delta=1e-5))
    assert config.train.micro_batch != "auto"
    short = {"steps": 2, "sampling_probability": 2 * ROWS_IN_FLOATS / ROWS}
    few = schedule.model_copy(update={"trainings": tuple(t.model_copy(update=short) for t in schedule.trainings)})
    texts = ["a text of the padded length " * config.train.max_length] * ROWS
    private = PrivateRows(texts, [row % 2 for row in range(ROWS)], LABELS)
    asked = Asked(config, few, Mechanisms.live(KeyMaterial(b"benchmark", "none", b"", few.queries)))
    return lambda: train_on_table(private, asked, base=base)


def figure(options: argparse.Namespace) -> float:
    """What a process of its own measures: MiB, or seconds."""
    if options.side == "peak":
        return peak_memory(training(options.case, options.device), options.device)
    work = head_work(options)
    if options.side == "memory":
        return peak_memory(work)
    work()
    began = time.process_time()
    work()
    return time.process_time() - began


def compare_heads(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    found = {}
    for head in WHOLE:
        same = chosen(options, ("rows", "length", "threads")) | {"head": head}
        sides: dict[str, float] = {}
        for name, chunked in (("whole", 0), ("chunked", 1)):
            for side in ("memory", "seconds"):
                sides[f"{name}_{side}"] = in_fresh_process(__file__, same | {"chunked": chunked, "side": side})
        for side in ("memory", "seconds"):
            sides[f"{side}_ratio"] = sides[f"chunked_{side}"] / sides[f"whole_{side}"]
        found[head] = sides
    return found


def compare_peaks(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    found = {}
    for case in options.cases.split(","):
        base = base_of(case)
        config, predicted = config_of(case, base, options.device)
        parameters = base.model.num_parameters()
        del base
        measured = in_fresh_process(
            __file__, {"case": case, "side": "peak", "threads": options.threads, "device": options.device}
        )
        found[case] = {
            "parameters": parameters,
            "micro_batch": float(config.train.micro_batch),
            "measured_mib": measured,
            "predicted_mib": predicted,
            "ratio": predicted / measured,
        }
        print(case, found[case], file=sys.stderr, flush=True)
    return found


def parse() -> argparse.Namespace:
    parser = on_device(arguments(__doc__, rows=64, length=47, chunked=0))
    parser.add_argument("--parts", nargs="+", default=["heads", "peaks"], choices=("heads", "peaks"))
    parser.add_argument("--head", choices=tuple(WHOLE), default="frozen", help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=tuple(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--cases", default=",".join(CASES), help="which models, separated by commas")
    return parse_side(parser, SIDES, figure)


def main() -> None:
    options = parse()
    heads = compare_heads(options) if "heads" in options.parts else {}
    peaks = compare_peaks(options) if "peaks" in options.parts else {}
    print(f"{'head':<18}{'whole MiB':>10}{'chunked':>9}{'ratio':>7}{'whole s':>9}{'chunked':>9}{'ratio':>7}")
    for name, one in heads.items():
        memory = f"{one['whole_memory']:>10.0f}{one['chunked_memory']:>9.0f}{one['memory_ratio']:>7.2f}"
        print(
            f"{name:<18}{memory}{one['whole_seconds']:>9.2f}{one['chunked_seconds']:>9.2f}{one['seconds_ratio']:>7.2f}"
        )
    print(f"{'training':<18}{'rows':>10}{'measured MiB':>14}{'predicted':>11}{'ratio':>7}")
    for name, one in peaks.items():
        sizes = f"{one['micro_batch']:>10.0f}{one['measured_mib']:>14.0f}{one['predicted_mib']:>11.0f}"
        print(f"{name:<18}{sizes}{one['ratio']:>7.2f}")
    settings = chosen(options, ("rows", "length", "threads", "device"))
    write_result(options.out, {"settings": settings, "targets": TARGETS, "heads": heads, "peaks": peaks})


if __name__ == "__main__":
    main()

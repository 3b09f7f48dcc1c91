"""Claim: answers and scores in batches of 32 take at most an eighth of the time of one at a time.

Both run in this process, in turns, on the same instructions; every answer has the length that the method's answers have
by default, so that none ends early.
Processor time of one thread is compared, because the machine is shared; each figure is the median over repeats.

Scores have a bound that no batching passes: the multiplications of their passes at the rate of a large matrix product
in the same process. It is measured, and said as a speed-up over one at a time.

A step of full fine-tuning is timed too, with logits at the positions of responses and with logits at all of them.

    python benchmarks/pair_speed.py --model tiny-llama --rows 64 --out pair_speed.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from measuring import arguments, chosen, spread, write_result

from understudy.data.readers import read_source
from understudy.generation.config import SamplingConfig
from understudy.generation.instructions import EncodedPairs, Pair, PairEncoder
from understudy.generation.sampling import sample
from understudy.generation.scoring import response_losses, sparse_response_losses
from understudy.methods.knowledge_distillation.ranking import ifd_scores
from understudy.models.loading import load_model

TARGET = 8.0


def seconds(work: Callable[[], Any]) -> float:
    """Processor seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


def timed(work: Callable[[int], None], size: int) -> float:
    """Processor seconds of work in batches of a size."""
    return seconds(lambda: work(size))


def product_rate(size: int = 1024, repeats: int = 5) -> float:
    """Multiplications a second of a large matrix product; the best of some."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    return size**3 / min(seconds(lambda: left @ right) for _ in range(repeats))


def multiplications(model: Any, rows: list[EncodedPairs]) -> int:
    """Of a pass over pairs: one for each weight of a linear layer and each token, attention's own left out.

    The output head reads responses only.
    """
    head = model.get_output_embeddings()
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not head]
    tokens, counted = (sum(int(getattr(one, name).sum()) for one in rows) for name in ("attention_mask", "loss_mask"))
    return tokens * sum(layer.weight.numel() for layer in layers) + counted * head.weight.numel()


def step_ratio(model: Any, rows: EncodedPairs, repeats: int) -> dict[str, float]:
    """Time of a step with logits at all positions over one with logits at those of responses."""
    batch = {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask, "loss_mask": rows.loss_mask}

    def step(losses_of: Any) -> None:
        torch.autograd.backward(losses_of(model, batch).mean())
        model.zero_grad(set_to_none=True)

    model.requires_grad_(True)
    step(sparse_response_losses)  # warm up
    kinds = (response_losses, sparse_response_losses)
    runs = [[seconds(partial(step, losses_of)) for losses_of in kinds] for _ in range(repeats)]
    model.requires_grad_(False)
    return spread([dense / sparse for dense, sparse in runs])


def main() -> int:
    parser = arguments(__doc__, rows=64, batch=32, tokens=48, repeats=3)
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
        runs = [(timed(work, 1), timed(work, options.batch)) for _ in range(options.repeats)]
        found[name] = spread([alone / together for alone, together in runs])
        print(
            f"{name}: {found[name]['median']:.1f} times as fast at {options.batch} ({found[name]['least']:.1f} to "
            f"{found[name]['most']:.1f})"
        )
    passes = multiplications(model.model, [encode(pairs, max_length=128) for encode in (encoder.encode, encoder.alone)])
    # The last of the loop: scores.
    bound = spread([alone * product_rate() / passes for alone, _ in runs])
    print(f"scores, at the rate of a large matrix product: {bound['median']:.1f} times as fast as one at a time")
    steps = step_ratio(model.model, encoder.encode(pairs[:16], max_length=64), options.repeats)
    print(f"steps: {steps['median']:.2f} times as fast with logits at the positions of responses only")
    met = {name: ratio["median"] >= TARGET for name, ratio in found.items()}
    sizes = chosen(options, ("model", "rows", "batch", "tokens", "repeats", "threads"))
    write_result(
        options.out,
        {**sizes, "target": TARGET, "met": met, "speed_up": found, "bound_of_scores": bound, "steps": steps},
    )
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Claim: texts matched in bfloat16 come as near to their target as texts matched in float32, in half the time.

The target is the exact gradient of the label's rows of the output head, of rows of the shipped reviews, in float32. The
same examples are matched to it in both precisions, and the strings that come out are tokenised again and judged in
float32. Texts differ, since a rounded loss leads the search elsewhere: so the claim is about the mean over texts.

    python benchmarks/gradient_matching_precision.py --texts 8 --seeds 4 --out gradient_matching_precision.json
"""

from __future__ import annotations

import time
from typing import Any

import torch
from measuring import arguments, chosen, spread, write_result
from torch import Tensor

from understudy.compute import Compute
from understudy.data.readers import read_source
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.loss import row_states, text_losses
from understudy.methods.gradient_matching.optimise import match_shard
from understudy.methods.gradient_matching.release import Target
from understudy.methods.gradient_matching.targets import clipped_sum, factors, target_space
from understudy.methods.gradient_matching.verbalizer import build_verbalizer, encode_rows
from understudy.models.loading import LoadedModel, load_model

NAMES = ("negative", "positive")
PRECISIONS = ("float32", "bfloat16")


def configure(model: str) -> GradientMatchingConfig:
    words = {"words": {"negative": "bad", "positive": "great"}}
    sizes: dict[str, Any] = {"max_length": 32, "length": 20, "matching": {"batch_size": 8}}
    return GradientMatchingConfig.model_validate(
        {"model": model, **sizes, "verbalizer": words, "target": {"kind": "label_rows"}}
    )


class Yardstick:
    """The target, and how far strings are from it; in float32."""

    def __init__(self, base: LoadedModel, config: GradientMatchingConfig, texts: list[str], labels: Tensor) -> None:
        self.base, self.length = base, config.max_length
        self.words = build_verbalizer(base.tokenizer, NAMES, config.verbalizer)
        self.space = target_space(base.model, self.words, config.target, public_seed=config.public_seed)
        rows = encode_rows(texts, tokenizer=base.tokenizer, verbalizer=self.words, max_length=self.length)
        left, right = factors(self.space, *row_states(base.model, rows.input_ids, rows.last), labels)
        valid = torch.ones(len(labels), dtype=torch.bool)
        sums = clipped_sum(self.space, left, right, labels, valid, config.target.l2_clip_norm).float()
        self.target = Target(dict(zip(NAMES, sums, strict=True)), config.length, base.digest, config)

    def distances(self, texts: list[str], labels: list[int]) -> list[float]:
        """Of the texts that are not empty."""
        kept = [(text, label) for text, label in zip(texts, labels, strict=True) if text.strip()]
        with torch.no_grad():
            found: list[float] = text_losses(
                [text for text, _ in kept],
                torch.tensor([label for _, label in kept]),
                model=self.base.model,
                tokenizer=self.base.tokenizer,
                space=self.space,
                target=self.target.stacked,
                verbalizer=self.words,
                max_length=self.length,
            ).tolist()
        return found


def main() -> None:
    parser = arguments(__doc__, texts=8, seeds=4, rows=120)
    parser.set_defaults(model="smollm2-135m-instruct")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config, bases = configure(options.model), {}
    for precision in PRECISIONS:
        bases[precision] = load_model(options.model, compute=Compute("cpu", precision))
    rows = read_source("sample:reviews").slice(0, options.rows)
    labels = torch.tensor([NAMES.index(label) for label in rows["label"].to_pylist()])
    yardstick = Yardstick(bases["float32"], config, rows["text"].to_pylist(), labels)
    examples = [(number % 2, number // 2) for number in range(options.texts)]
    seconds: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    losses: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    for seed in range(options.seeds):
        for precision, base in bases.items():
            start = time.process_time()
            table = match_shard(base, yardstick.target, config=config, examples=examples, public_seed=seed)
            seconds[precision].append((time.process_time() - start) / len(examples))
            distances = yardstick.distances(table["text"].to_pylist(), [label for label, _ in examples])
            losses[precision].append(sum(distances) / len(distances))
            print(f"seed {seed}, {precision}: {seconds[precision][-1]:.1f} s a text, loss {losses[precision][-1]:.4f}")
    result = {
        "settings": chosen(options, ("model", "texts", "seeds", "rows", "threads")),
        "loss": {precision: spread(found) for precision, found in losses.items()},
        "loss_of_seeds": losses,
        "seconds_per_text": {precision: spread(found) for precision, found in seconds.items()},
        "speed_up": spread([one / other for one, other in zip(*seconds.values(), strict=True)]),
    }
    print({name: result[name] for name in ("loss", "seconds_per_text", "speed_up")})
    write_result(options.out, result)


if __name__ == "__main__":
    main()

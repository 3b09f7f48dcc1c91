"""Claim: names of training texts can be guessed after non-private training, and hardly after training at epsilon 8.

The shipped clinic messages are the pairs: "Write a message to the clinic about TOPIC." and the message. Before training
each message gets one of its own 64 candidate names at random, so chance is exactly 1/64. Both models are trained by the
method's own code, with the same steps: once without noise and clipping that binds, once at the stated epsilon. The
attacker has the model and the message without its name, and takes the candidate with the lowest loss. The non-private
model is the positive control. Every message that is trained on is attacked.

    python benchmarks/reconstruction.py --out reconstruction.json
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from typing import Any

import numpy as np
import torch
from measuring import arguments, chosen, write_result

from understudy.auditing.reconstruction import Planted, Reconstruction, plant_names, reconstruct
from understudy.data.readers import read_source
from understudy.data.sample_texts import FIRST_NAMES, LAST_NAMES
from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.scoring import mean_response_losses
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.method import charged_settings
from understudy.methods.knowledge_distillation.queries import Asked, queries_of, schedule_of
from understudy.methods.knowledge_distillation.train import PrivatePairs, train_on_pairs
from understudy.models.adapters import with_adapter
from understudy.models.loading import LoadedModel, load_model
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms

NAMES = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
# A clip norm that no gradient of these messages reaches.
NEVER_MET = 1e4
_NAME = re.compile("|".join(re.escape(name) for name in NAMES))


def planted_messages(seed: int) -> tuple[list[Planted], list[str]]:
    """The clinic's messages with names planted, and what each is about."""
    table = read_source("sample:clinic")
    templates = [_NAME.sub("{name}", text, count=1) for text in table["text"].to_pylist()]
    rows = [row for row, template in enumerate(templates) if "{name}" in template]
    topics = table["label"].to_pylist()
    return plant_names([templates[row] for row in rows], NAMES, seed=seed), [topics[row] for row in rows]


def asked(topic: str) -> str:
    """The instruction of a message."""
    return f"Write a message to the clinic about {topic}."


def trained(pairs: list[Pair | None], *, epsilon: float, seed: int, options: argparse.Namespace) -> LoadedModel:
    """The model after training at an epsilon; infinity: without noise, and with a clip norm that no gradient meets."""
    clip = NEVER_MET if math.isinf(epsilon) else options.clip
    settings = {
        "model": options.model,
        "public_seed": seed,
        "lora": {"rank": 16, "alpha": 32.0, "targets": "all-linear"},
        "train": {
            "max_length": 96,
            "batch_size": options.batch,
            "epochs": float(options.epochs),
            "l2_clip_norm": clip,
            "micro_batch": 16,
            "learning_rate": options.rate,
        },
    }
    config = charged_settings(KnowledgeDistillationConfig.model_validate(settings))
    delta = 1 / (len(pairs) * math.log(len(pairs)))
    queries = queries_of(config, n=len(pairs), epsilon=epsilon, delta=delta)
    base = load_model(options.model)
    mechanisms = Mechanisms(KeyMaterial(b"b" * 32, f"benchmark-{seed}", b"t" * 32, queries))
    adapter = train_on_pairs(PrivatePairs(pairs), Asked(config, schedule_of(queries), mechanisms), base=base)
    return with_adapter(load_model(options.model), adapter, alpha=config.lora.alpha, targets="all-linear")


def attack(model: LoadedModel, planted: list[Planted], topics: list[str]) -> Reconstruction:
    """Guess the names of messages that were trained on."""
    encoder, topic_of = PairEncoder(model.tokenizer), dict(zip((one.template for one in planted), topics, strict=True))

    def losses(texts: Any) -> Any:
        topic = topic_of[template_of[texts[0]]]
        rows = encoder.encode([Pair(asked(topic), text) for text in texts], max_length=96)
        # The sum over tokens, not their mean: names differ in length.
        return mean_response_losses(model.model, rows) * rows.loss_mask.sum(1).numpy()

    template_of = {one.with_name(name): one.template for one in planted for name in one.candidates}
    return reconstruct(planted, losses)


def main() -> int:
    parser = arguments(__doc__, epochs=30, batch=32, texts=100, epsilon=8, seeds=1)
    parser.add_argument("--clip", type=float, default=1.0, help="clip norm at the stated epsilon")
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate of both")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, list[dict[str, Any]]] = {"inf": [], str(options.epsilon): []}
    for seed in range(options.seeds):
        every, subjects = planted_messages(seed)
        some = np.random.default_rng(seed).permutation(len(every))[: options.texts].tolist()
        planted, topics = [every[row] for row in some], [subjects[row] for row in some]
        pairs: list[Pair | None] = [Pair(asked(t), one.text) for one, t in zip(planted, topics, strict=True)]
        for epsilon in (math.inf, float(options.epsilon)):
            began = time.process_time()
            model = trained(pairs, epsilon=epsilon, seed=seed, options=options)
            print(f"trained: {time.process_time() - began:.0f} s CPU", flush=True)
            guessed = attack(model, planted, topics)
            key = "inf" if math.isinf(epsilon) else str(options.epsilon)
            interval = [round(end, 4) for end in guessed.interval]
            found[key].append({"rate": round(guessed.rate, 4), "interval": interval, "texts": guessed.texts})
            spent = time.process_time() - began
            print(
                f"seed {seed}, epsilon {key}: {guessed.rate:.3f} {interval}, chance {1 / 64:.4f}, {spent:.0f} s CPU",
                flush=True,
            )
    caught = all(one["interval"][0] > 1 / 64 for one in found["inf"])
    hidden = all(one["interval"][0] <= 1 / 64 for one in found[str(options.epsilon)])
    sizes = chosen(options, ("model", "epochs", "batch", "texts", "epsilon", "clip", "rate", "seeds"))
    write_result(options.out, {**sizes, "chance": 1 / 64, "found": found, "caught": caught, "hidden": hidden})
    print(f"non-private training above chance: {'met' if caught else 'missed'}")
    print(f"epsilon {options.epsilon} compatible with chance: {'met' if hidden else 'missed'}")
    return 0 if caught and hidden else 1


if __name__ == "__main__":
    sys.exit(main())

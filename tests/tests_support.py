"""What several test folders share: settings of short runs, words for two labels, a random base model on disk."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from understudy.methods.gradient_matching.config import VerbalizerConfig
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.models.checkpoints import export_model
from understudy.models.loading import load_model
from understudy.privacy import mechanisms

# A round of preference optimisation of a second or two on the random model.
SMALL_ROUND = (
    "candidates.prompts=4",
    "candidates.per_prompt=4",
    "candidates.seeds_per_prompt=2",
    "candidates.seed_tokens=4",
    "candidates.sampling.max_new_tokens=12",
    "preferences.rejected_rank=3",
    "preferences.lora_rank=2",
    "preferences.epochs=1",
    "preferences.learning_rate=1e-3",
)

# A run of knowledge distillation of a few seconds on a random model of 128 positions.
SMALL_DISTILLATION = (
    "lora.rank=2",
    "train.max_length=56",
    "train.batch_size=20",
    "train.epochs=2",
    "train.checkpoint_every=1",
    "instructions.shots=1",
    "instructions.sampling.max_new_tokens=8",
    "instructions.least_words=1",
    "filters.judge=none",
    "professional.sampling.max_new_tokens=8",
    "tune.steps=3",
    "tune.batch_size=2",
    "tune.max_length=56",
    "tune.checkpoint_every=1",
    "measure.most_pairs=4",
    "measure.win_pairs=1",
)

# A run of a few seconds on the random model.
SMALL = (
    "lora.rank=2",
    "discriminator.width=8",
    "train.max_length=24",
    "train.l2_clip_norm=0.1",
    "train.learning_rate=2e-3",
    "train.discriminator_learning_rate=2e-3",
    "train.batch_size=20",
    "train.epochs=2",
    "train.micro_batch=8",
    "train.checkpoint_every=2",
    "generate.sampling.max_new_tokens=12",
    "selection.draws=2",
)

# Of conditional generation: settings of each variant and of each way to update.
VARIANTS = {
    "alternating": {"variant": "multitask", "update": "alternating"},
    "joint": {"variant": "multitask", "update": "joint"},
    "naive": {"variant": "naive"},
    "naive_filter": {"variant": "naive_filter"},
    "naive_pplm": {"variant": "naive_pplm"},
}

SENTIMENTS = ("negative", "positive")
# What a target model says for each of them, once there is a tokenizer.
SENTIMENT_WORDS = partial(
    build_verbalizer, label_names=SENTIMENTS, config=VerbalizerConfig(words={"negative": "bad", "positive": "great"})
)


def write_random_model(folder: Path, *, positions: int = 64) -> Path:
    """Save a GPT-2 of two layers, 16 wide, random weights, with the tokenizer of the shipped tiny-gpt2."""
    tokenizer = load_model("tiny-gpt2").tokenizer
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=positions,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
    folder.mkdir(parents=True)
    export_model(model, tokenizer, folder)
    return folder


def without_drawing(patch: pytest.MonkeyPatch) -> None:
    """An empty picture stands for every figure of the report, which takes longer to draw than a small run.

    The report lies in the folder `internal`, which no replay compares; its own tests draw.
    """
    drawn = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'
    patch.setattr("understudy.reporting.drawing.painted", lambda *_: drawn)


def scheduled_by(queries: ModuleType) -> Callable[..., Any]:
    """Makes the list of queries of a config, as the method whose module `queries` this is reads it."""
    return lambda config, **options: queries.schedule_of(queries.queries_of(config, **options))


def scale_noise(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """The mechanisms' Gaussian noise becomes `factor` times what is declared: a planted fault."""
    exact = mechanisms.each_block
    monkeypatch.setattr(
        mechanisms, "each_block", lambda key, size, *, scale, use: exact(key, size, scale=scale * factor, use=use)
    )

"""A tiny random model with a small tokenizer, and a few labelled rows."""

import pytest
import torch
from random_models import random_model

from understudy.data.private_rows import PrivateRows
from understudy.generation.prompts import build_prompts
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.conditional_generation.model import Discriminator, MultitaskModel, TrainedModel
from understudy.models.loading import LoadedModel

LABEL_NAMES = ("negative", "positive", "rather undecided")


@pytest.fixture(autouse=True)
def small_tensors(one_thread):
    """A second thread would only wait."""


@pytest.fixture(scope="session")
def tokenizer(small_tokenizer):
    return small_tokenizer


@pytest.fixture
def make_base(tokenizer):
    """A fresh base model per call, for `fit` changes it."""

    def make(kind: str = "llama", *, layers: int = 2) -> LoadedModel:
        ends = {"bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.1, "tie_word_embeddings": True}
        model = random_model(kind, vocabulary=len(tokenizer), width=16, positions=64, layers=layers, **ends)
        return LoadedModel(model, tokenizer, digest="0" * 64, name=f"random-{kind}", notes=())

    return make


def _config(**changes) -> ConditionalGenerationConfig:
    """Small settings; sections are merged."""
    data = {
        "lora": {"rank": 2},
        "discriminator": {"width": 8},
        "train": {"max_length": 20, "batch_size": 10, "epochs": 1.0, "micro_batch": 8},
        "generate": {"batch_size": 7, "sampling": {"max_new_tokens": 8}},
        "filter": {"lora_rank": 2},
        "samples": 9,
    }
    for section, value in changes.items():
        known = data.get(section)
        data[section] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return ConditionalGenerationConfig.model_validate(data)


def _rows(count: int = 40) -> tuple[list[str | None], list[int | None]]:
    """Labelled texts of very different lengths; slot 5 is the null row."""
    words = ["bad", "good", "unsure", "film", "plot", "the", "slowly"]
    texts: list[str | None] = [" ".join(words[(i * j) % 7] for j in range(1, 2 + i % 13)) for i in range(count)]
    labels: list[int | None] = [i % 3 for i in range(count)]
    texts[5] = labels[5] = None
    return texts, labels


@pytest.fixture
def label_names() -> tuple[str, ...]:
    return LABEL_NAMES


@pytest.fixture
def make_config():
    return _config


@pytest.fixture
def make_rows():
    return _rows


@pytest.fixture
def encoded(tokenizer):
    """The rows of `make_rows`, encoded under small settings."""
    texts, labels = _rows()
    return encode(PrivateRows(texts, labels, LABEL_NAMES), tokenizer=tokenizer, config=_config())


@pytest.fixture
def untrained(make_base) -> TrainedModel:
    """A model of random weights with a discriminator that tells states apart."""
    base = make_base()
    head = Discriminator(16, 8, 3, generator=torch.Generator().manual_seed(1))
    for parameter in head.parameters():
        parameter.data.mul_(4)
    model = MultitaskModel(base.model, discriminator=head).requires_grad_(False).eval()
    return TrainedModel(model, base.tokenizer, LABEL_NAMES, build_prompts(base.tokenizer, LABEL_NAMES))

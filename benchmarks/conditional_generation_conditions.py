"""How the conditions of the conditional-generation benchmark make their rows, and what is measured of them.

The embeddings of real rows in the cache are internal: nothing made here is exported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from cells import temporary
from conditional_generation_data import Cell, Settings
from evaluation_models import right_by_words
from simulation import charge, noise_facts, register

from understudy.data.private_rows import PrivateRows
from understudy.evaluation.config import ClassifierConfig
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.texts import fidelity
from understudy.evaluation.texts.encoder import embed, load_encoder
from understudy.evaluation.utility import accuracy
from understudy.methods.conditional_generation.class_sizes import sizes_of
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.conditional_generation.fitting import train_on_table
from understudy.methods.conditional_generation.losses import lm_loss
from understudy.methods.conditional_generation.method import resolve
from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
from understudy.methods.conditional_generation.states import label_log_probabilities
from understudy.methods.conditional_generation.synthesis import synthesize_stored, synthesize_untrained
from understudy.privacy.accounting import default_delta, epsilon_rdp
from understudy.privacy.queries import event_of

LABELS = ("negative", "positive")
Made = tuple[list[str], list[int], dict[str, Any]]  # texts, labels, and public facts of how they were made


@lru_cache(maxsize=2)
def read(settings: Settings, split: str) -> tuple[list[str], list[int]]:
    """Texts and labels of a split; of the training rows as many as are asked for."""
    table = pq.read_table(settings.data / f"{split}.parquet")
    if split == "train" and settings.rows is not None:
        table = table.slice(0, settings.rows)
    return table["text"].to_pylist(), table["label"].to_pylist()


def register_source(settings: Settings) -> None:
    """The training table as the ledger knows it."""
    n = len(read(settings, "train")[0])
    register("benchmark", unit="example", n=n, label_names=LABELS, share=0.5)


def embedded(settings: Settings, split: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Sentence embeddings of a split, from the cache or now."""
    rows = "" if split != "train" or settings.rows is None else f"-{settings.rows}"
    path = settings.cache / f"{split}{rows}-embedded.npy"
    if not path.exists():
        with temporary(path) as part, part.open("wb") as file:
            np.save(file, embed(read(settings, split)[0], load_encoder()))
    found: np.ndarray[Any, np.dtype[np.float32]] = np.load(path)
    return found


def configure(
    settings: Settings, cell: Cell, conditions: Mapping[str, Mapping[str, Any]]
) -> ConditionalGenerationConfig:
    """The method's settings of a condition."""
    given = {"selection": {"draws": 1}, **conditions.get(cell.condition, conditions["naive"])}
    steered = given.pop("steered", True)
    if settings.model:
        given["model"] = settings.model
    config = ConditionalGenerationConfig(**given, samples=settings.samples, public_seed=cell.seed, about=settings.about)
    if not steered:
        steering = config.generate.steering.model_copy(update={"steer": "none"})
        config = config.model_copy(update={"generate": config.generate.model_copy(update={"steering": steering})})
    return config


def synthesize(settings: Settings, cell: Cell, conditions: Mapping[str, Mapping[str, Any]]) -> Made:
    """The rows of one condition."""
    texts, labels = read(settings, "train")
    if cell.condition == "real":
        return texts, labels, {}
    config = configure(settings, cell, conditions)
    if cell.condition == "prompt-only":
        made = synthesize_untrained(config, LABELS, sizes=sizes_of(config, LABELS, None))
        return made.table["text"].to_pylist(), made.table["label"].to_pylist(), made.report()
    n, delta = len(texts), default_delta(len(texts))
    if settings.about:
        config = resolve(config, n, LABELS, cell.epsilon)
    queries = queries_of(config, n=n, epsilon=cell.epsilon, delta=delta, cache=settings.cache / "calibrations")
    schedule = schedule_of(queries)
    mechanisms = charge(
        "benchmark",
        unit="example",
        n=n,
        epsilon=cell.epsilon,
        queries=queries,
        request=(str((cell.condition, cell.epsilon, cell.seed)), config.model_dump_json()),
    )
    began = time.perf_counter()
    stored = train_on_table(PrivateRows(texts, labels, LABELS), Asked(config, schedule, mechanisms))
    trained = time.perf_counter() - began
    made = synthesize_stored(stored, config)
    facts = made.report() | {
        "training_seconds": trained,
        "generation_seconds": time.perf_counter() - began - trained,
        "steps": schedule.steps,
        **noise_facts(queries, n=n, epsilon=cell.epsilon),
        "epsilon_rdp": epsilon_rdp(event_of(queries), delta) if cell.epsilon != float("inf") else None,
        "test_loss": test_loss(settings, stored, config),
        "discriminator_accuracy": head_accuracy(settings, stored, config),
    }
    return made.table["text"].to_pylist(), made.table["label"].to_pylist(), facts


def test_loss(settings: Settings, stored: Any, config: ConditionalGenerationConfig) -> float:
    """Nats per token of test texts under their own prompt (the paper's Table 4)."""
    texts, labels = read(settings, "test")
    rows = encode(PrivateRows(texts, labels, LABELS), tokenizer=stored.trained.tokenizer, config=config)
    total = tokens = 0.0
    with torch.no_grad():
        for start in range(0, len(texts), 64):
            part = slice(start, start + 64)
            batch = {k: getattr(rows, k)[part] for k in ("input_ids", "attention_mask", "loss_mask", "label", "valid")}
            counts = batch["loss_mask"].sum(1)
            total += float((lm_loss(stored.trained.model, batch, prompts=rows.prompts) * counts).sum())
            tokens += float(counts.sum())
    return total / tokens


def head_accuracy(settings: Settings, stored: Any, config: ConditionalGenerationConfig) -> float | None:
    """How often the steering head or the filter is right about real test texts; None where there is none."""
    if stored.trained.model.classifier is None:
        return None
    texts, labels = read(settings, "test")
    found = label_log_probabilities(stored.trained, texts, config=config).argmax(-1).tolist()
    return sum(a == b for a, b in zip(found, labels, strict=True)) / len(labels)


def measure(settings: Settings, cell: Cell, made: Made) -> dict[str, Any]:
    """What the rows are worth and how near they are to real ones."""
    texts, labels, facts = made
    test_texts, test_labels = read(settings, "test")
    real, test = embedded(settings, "train"), embedded(settings, "test")
    mine = real if cell.condition == "real" else embed(texts, load_encoder())
    correct = accuracy.score(accuracy.fit_probe(mine, labels)(test), test_labels).correct
    result: dict[str, Any] = facts | {"correct": correct.astype(int).tolist(), "rows": len(texts)}
    result["words_accuracy"] = float(right_by_words(texts, labels, test_texts, test_labels).mean())
    if cell.condition != "real":
        judge = accuracy.fit_probe(real, read(settings, "train")[1])
        result["label_fidelity"] = float(accuracy.label_fidelity(mine, labels, judge).share)
        result["mauve"] = float(fidelity.mauve(mine[: len(test)], test, seed=0))
        result["texts"] = [[label, text] for text, label in zip(texts, labels, strict=True)]
    if settings.transformer and cell.seed == 0:
        rows, tested = (LabelledTexts(*pair, LABELS) for pair in ((texts, labels), (test_texts, test_labels)))
        scored = accuracy.transformer_accuracy(rows, tested, config=ClassifierConfig(profile="tiny"), seed=0)
        result["transformer_accuracy"] = float(scored.accuracy)
    return result

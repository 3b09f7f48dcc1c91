"""Everything of this method that private rows meet: encoding, histograms and class means, DP training.

What goes in is private rows and a charged mechanism interface, what comes out is a function of the mechanisms' outputs
and public values; the record-and-replay proof wraps this one function.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from understudy.data.private_rows import PrivateRows
from understudy.evaluation.texts import encoder
from understudy.methods.conditional_generation.class_means import Vectors, release_class_means
from understudy.methods.conditional_generation.class_sizes import count_labels
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import count_topics, encode, prompts_of
from understudy.methods.conditional_generation.memory import check_fits
from understudy.methods.conditional_generation.model import MultitaskModel, build_model
from understudy.methods.conditional_generation.queries import CLASS_MEANS, CLASS_SIZES, TOPICS, Asked, trainings_of
from understudy.methods.conditional_generation.storage import StoredModel
from understudy.methods.conditional_generation.train import Checkpoints, check_trainable, fit, objectives_of
from understudy.models.loading import LoadedModel, load_base
from understudy.privacy.dpsgd.trial import check_gradients
from understudy.progress import Course, Progress

# Digest of a model, labels and settings that this process has taken gradients with.
_GAVE_GRADIENTS: set[tuple[str, tuple[str, ...], str]] = set()


def train_on_table(
    private: PrivateRows,
    asked: Asked,
    *,
    base: LoadedModel | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
    embeddings: Path | None = None,
) -> StoredModel:
    """Train on private rows as charged.

    *Guarantee*: that of the charge (`privacy.charged`); unit example, relation replace_special.

    Args:
        private: the rows.
        asked: what was charged.
        base: public base model, changed in place, on the device to be used; None loads `config.model` to the CPU.
        checkpoints: training name, or that of the class means -> sink of its state, under the private root.
        progress: called with (rows done, rows) of the class means, then with (steps done, steps in all).
        embeddings: directory under the private root where the rows' embeddings are left for the evaluation.
    """
    loaded = base or load_base(asked.config)
    device = str(next(loaded.model.parameters()).device)
    # A row's topic and its class's mean are made of the same embedding.
    embedded: dict[str, Vectors] | None = {} if asked.schedule.means_noise is not None else None
    rows = encode(private, tokenizer=loaded.tokenizer, config=asked.config, device=device, embedded=embedded)
    counts, sigma = None, asked.schedule.histogram_sigma
    if sigma is not None:
        counts = _noised(asked, count_labels(rows.label, rows.valid, len(rows.label_names)), CLASS_SIZES, sigma)
    topic_counts, sigma = None, asked.schedule.topics_sigma
    if sigma is not None:
        topic_counts = _noised(asked, count_topics(rows), TOPICS, sigma)
    means = None
    if asked.schedule.means_noise is not None:
        sentences = encoder.load_encoder(device=device)
        kept = None if checkpoints is None else checkpoints(CLASS_MEANS)
        course = Course(kept, progress)
        means = release_class_means(private, asked, sentences, course=course, embeddings=embeddings, embedded=embedded)
    del embedded  # training needs the memory
    trained = fit(loaded, rows, asked, checkpoints=checkpoints, progress=progress)
    return StoredModel(trained, asked.config, counts, means, topic_counts)


def _noised(asked: Asked, exact: Tensor, purpose: str, sigma: float) -> tuple[int, ...]:
    return tuple(int(count) for count in asked.mechanisms.histogram(exact, sigma=sigma, purpose=purpose))


def check_model(config: ConditionalGenerationConfig, label_names: Sequence[str]) -> LoadedModel:
    """Load the base model and refuse, before anything is charged, what would fail later.

    Raises:
        InputError: the model is unknown, cannot tell the labels apart, has too short a context, or has a trainable
            layer that cannot give per-example gradients, or the machine's memory is too small.
    """
    loaded = load_base(config)
    prompts = prompts_of(loaded.tokenizer, label_names, config)
    model = build_model(loaded.model, label_names=label_names, config=config)
    check_trainable(model, config=config, prompts=prompts)
    if config.trains:
        check_fits(config, loaded.shape)
        _check_gradients(loaded, model, label_names, config)
    return loaded


def _check_gradients(
    base: LoadedModel, model: MultitaskModel, label_names: Sequence[str], config: ConditionalGenerationConfig
) -> None:
    """Take the clipped gradients of two made-up rows in every stream of the run, once per process and model.

    A first run looks before it chooses clip norm and learning rates, and again with those that it has chosen: whether
    a layer gives gradients does not depend on them.

    Raises:
        InputError: a layer raises on them, or mixes them.
    """
    chosen = {"l2_clip_norm", "learning_rate", "discriminator_learning_rate"}
    settings = config.model_dump_json(exclude={"train": chosen, "model_digest": True})
    key = (base.digest, tuple(label_names), settings)
    if key in _GAVE_GRADIENTS:
        return
    rows = encode(PrivateRows(["a", "b"], [0, 1], label_names), tokenizer=base.tokenizer, config=config)
    batch = {name: getattr(rows, name) for name in ("input_ids", "attention_mask", "loss_mask", "label", "valid")}
    batch |= {"slot": torch.arange(2, device="cpu"), "step": torch.tensor(0, device="cpu")}
    objectives = objectives_of(model, rows, config)
    for training in trainings_of(config, 2, 0.0):
        for stream in training.streams:
            check_gradients(
                model,
                objectives[stream.name].parameters,
                objectives[stream.name].loss,
                batch,
                valid=rows.valid,
                l2_clip_norm=stream.l2_clip_norm,
                name=base.name,
                advice="train adapters (lora.rank above 0), name other lora.targets, or choose another model",
            )
    _GAVE_GRADIENTS.add(key)

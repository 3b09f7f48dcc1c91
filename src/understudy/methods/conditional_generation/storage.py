"""The trained model as files: what an artifact holds and what may leave. Rebuilt from an allow-list, never copied.

model.safetensors config.json tokenizer.json ...   the language model, loadable by transformers alone
heads.safetensors                                  discriminator and filter head
class-means.safetensors                            released class means, where texts are selected by them
filter/                                            variant naive_filter: the classifier's own transformer
understudy.json                                    settings, labels, released counts of classes and topics
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from understudy.compute import ON_CPU, Compute
from understudy.errors import InputError
from understudy.frozen import Frozen
from understudy.methods.conditional_generation.class_means import ClassMeans
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import prompts_of
from understudy.methods.conditional_generation.model import Classifier, Discriminator, MultitaskModel, TrainedModel
from understudy.models.checkpoints import export_model
from understudy.models.loading import load_model
from understudy.privacy.naming import without_model_place
from understudy.tensor_files import load_tensors, save_tensors

SETTINGS_FILE = "understudy.json"
HEADS_FILE = "heads.safetensors"
MEANS_FILE = "class-means.safetensors"
_WITH_HEADS = ("multitask", "naive_pplm", "naive_filter")
_FILTERED = ("naive_filter",)


class _Description(Frozen):
    settings: ConditionalGenerationConfig  # the base model by name
    label_names: tuple[str, ...]
    class_counts: tuple[int, ...] | None
    encoder: str = ""  # digest, where there are class means
    topic_counts: tuple[int, ...] | None = None


@dataclass(frozen=True)
class StoredModel:
    """A trained model with the settings it was trained under.

    Attributes:
        trained: ready to generate.
        settings: the charged settings; once stored, without the place of the base model.
        class_counts: released noisy histogram, in the order of the labels; None unless as_in_data.
        class_means: released class means; None unless texts are selected by them.
        topic_counts: released noisy histogram over labels and topics, label by label; None without topics.
    """

    trained: TrainedModel
    settings: ConditionalGenerationConfig
    class_counts: tuple[int, ...] | None
    class_means: ClassMeans | None = None
    topic_counts: tuple[int, ...] | None = None


def save_trained(stored: StoredModel, folder: Path) -> None:
    """Write a merged model into an empty folder; the same model gives the same bytes."""
    model = stored.trained.model
    export_model(model.lm, stored.trained.tokenizer, folder)  # type: ignore[arg-type]
    heads = {f"{name}.{key}": value for name, head in _heads(model).items() for key, value in head.state_dict().items()}
    if heads:
        save_tensors(folder / HEADS_FILE, heads)
    if (means := stored.class_means) is not None:
        tensors = {"noise": torch.from_numpy(means.noise), "vectors": torch.from_numpy(means.vectors)}
        save_tensors(folder / MEANS_FILE, tensors)
    if model.filter is not None:
        (folder / "filter").mkdir()
        export_model(model.filter.lm, stored.trained.tokenizer, folder / "filter")  # type: ignore[arg-type]
    description = _Description(
        settings=without_model_place(stored.settings),
        label_names=stored.trained.label_names,
        class_counts=stored.class_counts,
        encoder=means.encoder if means is not None else "",
        topic_counts=stored.topic_counts,
    )
    text = json.dumps(description.model_dump(mode="json"), indent=2, sort_keys=True)
    (folder / SETTINGS_FILE).write_text(text + "\n")


def load_trained(folder: Path, compute: Compute = ON_CPU) -> StoredModel:
    """Read a model that `save_trained` wrote, to the device and in the precision of `compute`; heads are float32.

    Raises:
        InputError: when the folder holds no such model, or a file of it is missing.
    """
    description = _described(folder)
    _check_whole(folder, description)
    loaded = load_model(folder, compute=compute)
    heads = load_tensors(folder / HEADS_FILE) if (folder / HEADS_FILE).is_file() else {}
    own = {name: _head(heads, name) for name in ("discriminator", "filter") if f"{name}.inner.weight" in heads}
    filter_head = own.get("filter")
    classifier = Classifier(load_model(folder / "filter", compute=compute).model, filter_head) if filter_head else None
    model = MultitaskModel(loaded.model, discriminator=own.get("discriminator"), filter=classifier)
    trained = TrainedModel(
        model=model.requires_grad_(False).eval().to(torch.device(compute.device)),
        tokenizer=loaded.tokenizer,
        label_names=description.label_names,
        prompts=prompts_of(loaded.tokenizer, description.label_names, description.settings),
    )
    means = _means(folder, description)
    return StoredModel(trained, description.settings, description.class_counts, means, description.topic_counts)


def _means(folder: Path, description: _Description) -> ClassMeans | None:
    if not (folder / MEANS_FILE).is_file():
        return None
    found = {name: tensor.numpy() for name, tensor in load_tensors(folder / MEANS_FILE).items()}
    return ClassMeans(found["vectors"], found["noise"], description.encoder)


def _check_whole(folder: Path, description: _Description) -> None:
    """Without these files texts would be drawn all the same, and be steered, filtered or selected no more."""
    variant = description.settings.variant
    needed = {HEADS_FILE: variant in _WITH_HEADS, MEANS_FILE: bool(description.encoder), "filter": variant in _FILTERED}
    missing = [name for name, is_needed in needed.items() if is_needed and not (folder / name).exists()]
    if missing:
        raise InputError(
            f"{folder}: expected {', '.join(missing)} beside {SETTINGS_FILE}, as this model was exported with, found "
            "none; restore the exported folder, or run again"
        )


def released_counts(folder: Path) -> tuple[int, ...] | None:
    """The noised class histogram that a model was released with, None without one; the model itself is not read.

    Raises:
        InputError: when the folder holds no such model.
    """
    return _described(folder).class_counts


def released_means(folder: Path) -> ClassMeans | None:
    """The class means that a model was released with, None without them; the model itself is not read.

    Raises:
        InputError: when the folder holds no such model, or a file of it is missing.
    """
    description = _described(folder)
    _check_whole(folder, description)
    return _means(folder, description)


def _described(folder: Path) -> _Description:
    path = folder / SETTINGS_FILE
    if not path.is_file():
        raise InputError(f"{folder}: expected a released model with {SETTINGS_FILE}, found none")
    try:
        return _Description.model_validate_json(path.read_text())
    except ValidationError as error:
        raise InputError(f"{path}: {error.errors()[0]['msg']}; restore the exported file") from None


def _heads(model: MultitaskModel) -> dict[str, nn.Module]:
    found = {"discriminator": model.discriminator, "filter": model.filter and model.filter.discriminator}
    return {name: head for name, head in found.items() if head is not None}


def _head(tensors: Mapping[str, Tensor], name: str) -> Discriminator:
    state = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    width, hidden = state["inner.weight"].shape
    head = Discriminator(hidden, width, state["outer.bias"].shape[0], generator=torch.Generator())
    head.load_state_dict(state)
    return head

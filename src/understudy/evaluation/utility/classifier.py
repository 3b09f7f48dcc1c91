"""A transformer fine-tuned as a text classifier: the evaluation model that measures utility.

Paper: "Differentially Private Conditional Text Generation for Synthetic Data", section 6.2 and Table 5 (batch 32, 5
epochs, learning rate 1e-4, decaying). The classifier is the same for every training set, so only the data differ.
*Deviations*: the paper fine-tunes DistilBERT with all six transformer layers frozen; here the base is a config
value (a shipped tiny causal model by default; any hub id or folder, DistilBERT too), pooled over the text's
tokens, and frozen layers are a parameter with default none: with six frozen, tiny-llama trained on 600 film
reviews reached 0.54 on validation rows instead of 0.68. Dropout is off: no global random state is used, and two
runs of one seed on one machine give the same bytes.

A classifier trained or tested on real rows is an evaluation model: neither its weights nor its verdicts may
influence anything exported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.compute import copied_to
from understudy.errors import InputError, RowError
from understudy.evaluation.config import ClassifierConfig
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.texts.encoder import quietly
from understudy.evaluation.texts.language_model import encode_texts, pad, pad_token_of
from understudy.models.folders import model_folder
from understudy.models.loading import load_model

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TextClassifier:
    """A fine-tuned classifier; make it with `fit_classifier`, use it through `predict`."""

    backbone: Any
    head: nn.Linear
    tokenizer: Any
    config: ClassifierConfig


def fit_classifier(rows: LabelledTexts, *, config: ClassifierConfig, seed: int, device: str = "cpu") -> TextClassifier:
    """Fine-tune a fresh copy of the base on labelled texts.

    Args:
        rows: to train on; declared labels without a row are allowed.
        config: base model and constants.
        seed: of the head's initial weights and the order of rows.
        device: torch device to train on.

    Returns:
        The trained classifier. It carries the label of its training rows.

    Raises:
        InputError: when the base is unknown, there is no row, or texts and labels do not match.
    """
    targets = check_labels(rows.texts, rows.labels, classes=len(rows.label_names))
    generator = torch.Generator().manual_seed(seed)
    classifier = _untrained(len(rows.label_names), config, generator, device)
    encoded = encode_texts(classifier.tokenizer, rows.texts, max_length=config.max_length)
    weights = [p for p in classifier.backbone.parameters() if p.requires_grad] + [*classifier.head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=config.weight_decay)
    steps = config.epochs * math.ceil(len(encoded) / config.batch_size)
    step = 0
    for _ in range(config.epochs):
        order = torch.randperm(len(encoded), generator=generator)
        for batch in torch.split(order, config.batch_size):
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * (1 - step / steps)
            logits = _logits(classifier, [encoded[i] for i in batch.tolist()])
            loss = functional.cross_entropy(logits, copied_to(torch.from_numpy(targets)[batch], logits.device))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            step += 1
    return classifier


def predict(classifier: TextClassifier, texts: Sequence[str]) -> Labels:
    """Most probable label of each text, (n,) int64."""
    encoded = encode_texts(classifier.tokenizer, texts, max_length=classifier.config.max_length)
    size = 4 * classifier.config.batch_size
    with torch.no_grad():
        found = [
            _logits(classifier, encoded[i : i + size]).argmax(-1).cpu().numpy() for i in range(0, len(encoded), size)
        ]
    return np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)


def check_labels(texts: Sequence[str], labels: Sequence[int] | Labels, *, classes: int) -> Labels:
    """The labels as an int64 array.

    Raises:
        InputError: when there is no row, the lengths differ, or a label is outside [0, classes).
    """
    targets = np.asarray(labels, dtype=np.int64)
    if len(texts) == 0 or targets.shape != (len(texts),):
        raise InputError(
            f"expected one label per text and at least one, found {len(texts)} texts, {targets.size} labels"
        )
    wrong = np.flatnonzero((targets < 0) | (targets >= classes))
    if wrong.size:
        raise RowError(f"row {wrong[0]}: expected a label in 0..{classes - 1}, found label={targets[wrong[0]]}")
    return targets


def _untrained(classes: int, config: ClassifierConfig, generator: torch.Generator, device: str) -> TextClassifier:
    backbone, tokenizer = _load_backbone(config.base)
    backbone.requires_grad_(True).to(device)
    if config.frozen_layers:
        for layer in _layers_of(backbone)[-config.frozen_layers :]:
            layer.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):  # the default initialisation, replaced below, draws from it
        head = nn.Linear(backbone.config.hidden_size, classes)
    with torch.no_grad():
        head.weight.copy_(0.02 * torch.randn(head.weight.shape, generator=generator, device="cpu"))
        head.bias.zero_()
    return TextClassifier(backbone=backbone, head=head.to(device), tokenizer=tokenizer, config=config)


def _load_backbone(name: str) -> tuple[Any, Any]:
    """The transformer without its head, in eval mode (dropout off), and its tokenizer."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    folder = model_folder(name)
    config = AutoConfig.from_pretrained(folder)
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    # Encoders of such a type are stored without the head that a causal model must have.
    if causal is not None and causal in (config.architectures or [causal]):
        loaded = load_model(name)
        return loaded.model.base_model, loaded.tokenizer
    try:
        with quietly(), torch.random.fork_rng(devices=[]):
            backbone = AutoModel.from_pretrained(
                folder, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
            )
            return backbone.eval(), AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"base={name!r}: expected a transformers encoder or causal model with safetensors weights and a "
            "tokenizer, found one that does not load"
        ) from error


def _layers_of(backbone: nn.Module) -> list[nn.Module]:
    stacks = [module for module in backbone.modules() if isinstance(module, nn.ModuleList)]
    if not stacks:
        raise InputError("frozen_layers > 0: expected a base with a stack of layers, found none; set it to 0")
    return list(stacks[0])


def _logits(classifier: TextClassifier, sequences: Sequence[Sequence[int]]) -> Tensor:
    """(batch, classes) logits of token sequences."""
    ids, mask = pad(sequences, pad_id=pad_token_of(classifier.tokenizer), device=classifier.head.weight.device)
    states = classifier.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
    if classifier.config.pooling == "last":
        pooled = states[torch.arange(len(ids), device=ids.device), mask.sum(1) - 1]
    else:
        weights = mask[..., None].to(states.dtype)
        pooled = (states * weights).sum(1) / weights.sum(1)
    logits: Tensor = classifier.head(pooled)
    return logits

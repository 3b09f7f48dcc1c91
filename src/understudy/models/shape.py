"""The shape of a causal language model, read from its folder without loading it: public, and cheap to look up."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.models.folders import has_chat_template, model_folder


@dataclass(frozen=True)
class ModelShape:
    """What memory depends on.

    Attributes:
        layers: transformer blocks.
        hidden: width d of the hidden states.
        queries: width of all query heads together.
        keys: width of all key heads together, as of the values.
        inner: width of the feed-forward layers.
        gated: whether a feed-forward layer has a gate beside its first matrix (Llama), or not (GPT-2).
        vocabulary: rows of the embedding.
        parameters: stored numbers; tied weights count once.
        chat: whether its tokenizer has a chat template, by which prompts are longer.
    """

    layers: int
    hidden: int
    queries: int
    keys: int
    inner: int
    gated: bool
    vocabulary: int
    parameters: int
    chat: bool = False

    @property
    def layer_parameters(self) -> int:
        """Numbers in the matrices of one block."""
        attention = 2 * self.hidden * (self.queries + self.keys)
        return attention + (3 if self.gated else 2) * self.hidden * self.inner

    @property
    def kept_per_token(self) -> int:
        """Numbers that one block's backward pass reads of a token: norms, projections, attention, feed-forward."""
        return 4 * self.hidden + 3 * self.queries + 2 * self.keys + 4 * self.inner

    def adapter_parameters(self, rank: int) -> int:
        """Numbers in adapters of this rank on all linear layers but the head."""
        attention = 4 * self.hidden + 2 * self.queries + 2 * self.keys
        return rank * self.layers * (attention + (3 if self.gated else 2) * (self.hidden + self.inner))


def model_shape(name_or_path: str | Path) -> ModelShape | None:
    """The shape of a shipped model, a folder or a hub id; None where its files do not say it in known words."""
    folder = model_folder(name_or_path)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        numbers = sum(_numbers(path) for path in folder.glob("*.safetensors"))
        return shape_of(config, parameters=numbers, chat=has_chat_template(folder))
    # Loading the model says what is wrong with its files.
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, MemoryError):
        return None


def shape_of(config: Mapping[str, Any], *, parameters: int, chat: bool = False) -> ModelShape | None:
    """The shape that a configuration of transformers describes; None where it does not say it in known words."""
    layers = _first(config, "num_hidden_layers", "n_layer")
    hidden = _first(config, "hidden_size", "n_embd")
    heads = _first(config, "num_attention_heads", "n_head")
    vocabulary = _first(config, "vocab_size")
    if layers is None or hidden is None or heads is None or vocabulary is None:
        return None
    width = _first(config, "head_dim") or hidden // heads
    return ModelShape(
        layers=layers,
        hidden=hidden,
        queries=heads * width,
        keys=(_first(config, "num_key_value_heads") or heads) * width,
        inner=_first(config, "intermediate_size", "n_inner") or 4 * hidden,
        gated="intermediate_size" in config,
        vocabulary=vocabulary,
        parameters=parameters,
        chat=chat,
    )


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    return next((value for name in names if isinstance(value := config.get(name), int) and value > 0), None)


def _numbers(path: Path) -> int:
    """Numbers in a safetensors file, from its header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")

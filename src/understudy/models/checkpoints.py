"""Checkpoints of a training, and the folder of a model that may leave."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save
from torch import Tensor

from understudy.durable import write_atomically
from understudy.tensor_files import load_tensors, save_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EXPORTED_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
_STEP = re.compile(r"step-(\d{9})\.safetensors")

# Of work between two checkpoints; what a kill costs is at most this much and the step that it hit.
APART_S = 25.0


class TrainingCheckpoint:
    """The checkpoints of one training run: a folder in which only the newest step is kept."""

    def __init__(self, directory: Path, *, every: int | None = 1, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep checkpoints in `directory`, one each `every` steps, sooner where steps are slow, and one after the last.

        Args:
            directory: made if missing; one process at a time holds it.
            every: steps; None goes by the time alone.
            clock: in seconds.
        """
        self._directory = directory
        self._every = every
        self._clock = clock
        self._saved = self._asked = clock()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def due(self, step: int) -> bool:
        """Whether to keep the state after `step` steps; ask once after each step.

        By time, a step is kept when the next one, as long as this one was, would end more than `APART_S` seconds after
        the last that was kept. When a checkpoint is written changes no byte of the result.
        """
        now = self._clock()
        took, self._asked = now - self._asked, now
        by_number = self._every is not None and step % self._every == 0
        return by_number or now - self._saved + took > APART_S

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        """The newest (step, tensors), or None at the start of a run.

        Raises:
            ArtifactDamaged: when the newest file is not whole; deleting it costs time, not privacy.
        """
        steps = self._steps()
        if not steps:
            return None
        step = max(steps)
        return step, load_tensors(steps[step])

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep `tensors` as the state after `step` steps and remove older ones."""
        save_tensors(self._directory / f"step-{step:09d}.safetensors", tensors)
        for other, path in self._steps().items():
            if other < step:
                path.unlink(missing_ok=True)
        # What a killed process left half-written; only one process at a time holds this folder.
        for path in self._directory.glob(".writing-*"):
            path.unlink(missing_ok=True)
        self._saved = self._asked = self._clock()

    def _steps(self) -> dict[int, Path]:
        found = ((_STEP.fullmatch(path.name), path) for path in self._directory.iterdir())
        return {int(match[1]): path for match, path in found if match}


def export_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write a model that may leave: rebuilt from its tensors and configuration, never a copied folder.

    Exactly `EXPORTED_FILES` are written, free of local paths; equal weights give equal bytes. Tied weights
    are stored once.

    Args:
        model: a plain transformers model (merge adapters first), weights of any device.
        tokenizer: a fast tokenizer.
        directory: made if missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    weights = _untied(model)
    _write(directory / "model.safetensors", save(weights, {"format": "pt"}))
    config = model.config.to_diff_dict()
    config.pop("_name_or_path", None)
    config["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", _token_ids(model))
    _write_json(directory / "tokenizer.json", _tokenizer_file(tokenizer))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(tokenizer))


def _untied(model: PreTrainedModel) -> dict[str, Tensor]:
    """The state dict on the CPU, without names that transformers ties again when loading."""
    tied = set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()
    state = model.state_dict()
    return {
        name: state[name].detach().cpu().clone().contiguous()
        for name in sorted(state)
        if name not in tied or not _shares(name, state, tied)
    }


def _shares(name: str, state: Mapping[str, Tensor], tied: set[str]) -> bool:
    return any(other not in tied and state[other].data_ptr() == state[name].data_ptr() for other in state)


def _token_ids(model: PreTrainedModel) -> dict[str, object]:
    kept = ("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version")
    source = (model.generation_config or model.config).to_dict()
    return {key: source[key] for key in kept if source.get(key) is not None}


def _tokenizer_file(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    """The tokenizer itself, without the padding and truncation that its last use left in it."""
    content: dict[str, object] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {**content, "padding": None, "truncation": None}


def _tokenizer_config(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    kept = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
    config: dict[str, object] = {key: str(v) for key in kept if (v := getattr(tokenizer, key)) is not None}
    config["model_max_length"] = int(min(tokenizer.model_max_length, 10**9))
    config["clean_up_tokenization_spaces"] = False
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(tokenizer.chat_template, str):
        config["chat_template"] = tokenizer.chat_template
    return config


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    # Keys keep their order: a tokenizer's vocabulary and merges mean something by it.
    _write(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, content)
    path.chmod(0o644)  # what is exported is meant to be handed over

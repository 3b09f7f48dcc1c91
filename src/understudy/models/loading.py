"""Loading causal language models: by name, from a folder, or from the hub's cache.

Only safetensors weights are read and code from a repository is never run. Weights load in the precision and to the
device that the caller's `Compute` names, with every dropout set to zero, so that training and evaluation compute the
same function and no global random state is used.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from understudy.compute import ON_CPU, Compute
from understudy.cores import memory_limit
from understudy.errors import InputError
from understudy.models.attention import Attention, implementation
from understudy.models.causality import reads_ahead
from understudy.models.folders import folder_digest, model_folder, parameter_count
from understudy.models.output_head import alters_logits
from understudy.models.shape import ModelShape, shape_of
from understudy.models.stored import WANTED_TOKENIZER

DEFAULT_MODEL = "tiny-llama"

_FALLBACK_TOKEN = "<|endoftext|>"

# Digests of files whose weights were found finite in this process.
_FINITE: set[str] = set()
# Digests of files whose model was found to be causal in this process.
_CAUSAL: set[str] = set()
# Digests of files whose model's logits were found to be its head's in this process.
_OF_THE_HEAD: set[str] = set()
# Digest of files -> one more than the greatest number of a token of their tokenizer, as it was found in this process.
_NUMBERS: dict[str, int] = {}


@dataclass(frozen=True)
class LoadedModel:
    """A public base model as every method gets it.

    Attributes:
        model: in eval mode, dropout zero, on the device and in the precision that it was loaded with.
        tokenizer: has bos, eos and pad tokens.
        digest: sha256 (hex) over configuration, weights and tokenizer files as stored.
        name: the name the caller gave; a path is shortened to its last part.
        notes: what had to be fixed, in plain words, to be shown to the user.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    digest: str
    name: str
    notes: tuple[str, ...]

    @property
    def shape(self) -> ModelShape | None:
        """What memory depends on; None where the configuration does not say it in known words."""
        config = self.model.config.to_dict()
        return shape_of(config, parameters=self.model.num_parameters(), chat=bool(self.tokenizer.chat_template))


class NamesBase(Protocol):
    """Settings that name a public base model."""

    @property
    def model(self) -> str:
        """Shipped name, folder or hub id."""

    @property
    def model_digest(self) -> str:
        """Of the files that are meant; empty takes any."""


def load_base(config: NamesBase, compute: Compute = ON_CPU) -> LoadedModel:
    """Load the base model of a run, as `load_model`."""
    return load_model(config.model, digest=config.model_digest, compute=compute)


def load_model(
    name_or_path: str | Path = DEFAULT_MODEL,
    *,
    digest: str = "",
    attention: Attention = "sdpa",
    compute: Compute = ON_CPU,
) -> LoadedModel:
    """Load a public causal language model and its tokenizer.

    Args:
        name_or_path: a named model (`understudy models list`), a folder, or a hub id; nothing is fetched.
        digest: of the files that are meant; empty takes any.
        attention: `eager` where double backward or attention weights are needed, else `sdpa`.
        compute: where the weights go, and in which precision.

    Returns:
        The model, deterministic for the same files.

    Raises:
        InputError: when the model is unknown, not on this machine, incomplete, not the one that is meant, needs
            code of its own, is an encoder or an encoder-decoder, has logits that are not its output head's, or has
            larger weights than this machine has memory.
    """
    folder, name, found = _meant(name_or_path, digest)
    try:
        with quietly_loading(), torch.random.fork_rng(devices=[]):
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            _check_kind(config, name)
            _silence_dropout(config)
            dtype = compute.dtype_of(numbers := parameter_count(folder))
            _check_room(name, numbers * dtype.itemsize)
            model, loading = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=implementation(attention, dtype, compute.device),
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                # They are refused below, by name; transformers would log a table and raise without one.
                ignore_mismatched_sizes=True,
            )
            _check_tokenizer_files(folder)
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except InputError:
        raise
    # Whatever a library raises on files that somebody made: SafetensorError, for one, is a plain Exception.
    except Exception as error:
        raise InputError(
            f"model={name!r} cannot be loaded as a causal language model: {_in_one_line(error)}; expected a "
            "folder with config.json, safetensors weights and tokenizer files of an architecture that "
            "transformers knows"
        ) from error
    check_weights(model, loading, name=name, digest=found)
    _check_positions(model, name)
    _check_causal(model, name=name, digest=found)
    _check_logits(model, name=name, digest=found)
    notes = (*_fix_tokenizer(model, tokenizer), *_fix_embeddings(model, tokenizer, digest=found))
    model.eval().to(torch.device(compute.device))
    return LoadedModel(model=model, tokenizer=tokenizer, digest=found, name=name, notes=notes)


def load_tokenizer(config: NamesBase) -> Any:
    """The tokenizer of a run's base model alone, for whoever counts tokens.

    Raises:
        InputError: when the model is not on this machine or not the one that is meant.
    """
    folder, _, _ = _meant(config.model, config.model_digest)
    with quietly_loading():
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _meant(name_or_path: str | Path, digest: str) -> tuple[Path, str, str]:
    """Folder, short name and digest of a model's files, if they are those that are meant."""
    folder = model_folder(name_or_path)
    name = Path(name_or_path).name if Path(name_or_path).is_dir() else str(name_or_path)
    found = folder_digest(folder)
    if digest not in ("", found):
        raise InputError(
            f"model={name!r}: expected the files that the run began with, {digest[:12]}, found {found[:12]}; bring "
            "them back, or run the command again to begin with these, which is a charge of its own"
        )
    return folder, name, found


def check_weights(model: PreTrainedModel, loading: Mapping[str, Any], *, name: str, digest: str) -> None:
    """Refuse weights that are not those of the configuration, or not finite.

    transformers loads such a folder all the same: what is missing it fills with random numbers.

    Args:
        model: as loaded.
        loading: `missing_keys`, `mismatched_keys` and `unexpected_keys`, as transformers found them.
        name: of the model, for the message.
        digest: of the files; weights are looked at once per process and digest.

    Raises:
        InputError: naming the first tensor that is wrong.
    """
    expected = "expected the safetensors files that belong to its config.json; fetch both again from one place"
    missing = sorted(loading["missing_keys"])
    if missing:
        raise InputError(f"model={name!r}: the weights lack {_some(missing)}; {expected}")
    mismatched = sorted(str(entry[0]) for entry in loading["mismatched_keys"])
    if mismatched:
        raise InputError(f"model={name!r}: {_some(mismatched)} has another shape than config.json says; {expected}")
    beyond = _of_further_layers(model, loading["unexpected_keys"])
    if beyond:
        raise InputError(f"model={name!r}: config.json has no place for {_some(beyond)} of the weights; {expected}")
    if digest in _FINITE:
        return
    for tensor, values in model.named_parameters():
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            raise InputError(f"model={name!r}: {tensor} holds values that are not finite numbers; {expected}")
    _FINITE.add(digest)


def _of_further_layers(model: PreTrainedModel, unexpected: Iterable[str]) -> list[str]:
    """Stored tensors that differ from the model's own only in a number: layers that the configuration leaves out.

    Other tensors, such as a second head, do not make the model a wrong one, unless most of what is stored is unused.
    """
    left = sorted(unexpected)
    own = {re.sub(r"\d+", "#", key) for key in model.state_dict()}
    prefix = f"{model.base_model_prefix}."
    shapes = own | {key.removeprefix(prefix) for key in own}
    further = [key for key in left if re.sub(r"\d+", "#", key) in shapes]
    return further or (left if len(left) > len(model.state_dict()) else [])


def _check_positions(model: PreTrainedModel, name: str) -> None:
    """Refuse a context that is shorter than its configuration says: how long a private text is would end a run.

    Raises:
        InputError: positions begin behind the number of the padding token, and the table has no rows more for that.
    """
    said = getattr(model.config, "max_position_embeddings", None)
    for place, layer in model.named_modules():
        if not (place.endswith("position_embeddings") and isinstance(layer, torch.nn.Embedding)):
            continue
        if layer.padding_idx is not None and said is not None and layer.num_embeddings - layer.padding_idx - 1 < said:
            raise InputError(
                f"model={name!r}: expected a context of the {said} tokens that config.json names, found "
                f"{layer.num_embeddings - layer.padding_idx - 1}, as of RoBERTa, an encoder whose positions begin "
                "behind its padding token; choose a model that writes"
            )


def _check_room(name: str, weights: int) -> None:
    """Refuse weights that the memory cannot hold, on whichever device: they are read by the processor."""
    limit = memory_limit()
    if weights > limit:
        raise InputError(
            f"model={name!r} has weights of {weights / 2**30:.1f} GiB, this machine allows {limit / 2**30:.1f}: "
            "expected a model that fits; choose a smaller one, or a machine with more memory"
        )


def _check_kind(config: Any, name: str) -> None:
    # Of such a model transformers loads the decoder alone, whose layers wait for an encoder's states.
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"model={name!r}: expected a causal language model, found an encoder-decoder ({config.model_type}), whose "
            "decoder writes nothing of its own; choose a model that writes, such as GPT-2 or Llama"
        )


def _check_causal(model: PreTrainedModel, *, name: str, digest: str) -> None:
    """Refuse a model that sees the token that it should predict; looked at once per process and digest.

    Raises:
        InputError: later tokens change what it predicts.
    """
    if digest in _CAUSAL:
        return
    if reads_ahead(model):
        raise InputError(
            f"model={name!r}: expected a causal language model, found {type(model).__name__} that reads later tokens "
            "to predict a token, as encoders such as BERT do; choose a model that writes, such as GPT-2 or Llama"
        )
    _CAUSAL.add(digest)


def _check_logits(model: PreTrainedModel, *, name: str, digest: str) -> None:
    """Refuse a model whose distribution would be read wrongly; looked at once per process and digest.

    Raises:
        InputError: logits are not the output head's at the last hidden states.
    """
    if digest in _OF_THE_HEAD:
        return
    if alters_logits(model):
        raise InputError(
            f"model={name!r}: expected logits that are the output head's at the last hidden states, found "
            f"{type(model).__name__} that scales, caps or transforms them, as Granite and Cohere do; choose "
            "another model, such as GPT-2 or Llama"
        )
    _OF_THE_HEAD.add(digest)


def _check_tokenizer_files(folder: Path) -> None:
    # Without any, transformers makes an empty tokenizer.
    if not any(path.is_file() for pattern in WANTED_TOKENIZER for path in folder.glob(pattern)):
        raise FileNotFoundError("there are no tokenizer files")


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _silence_dropout(config: Any) -> None:
    for key, value in vars(config).items():
        if re.search(r"drop", key) and isinstance(value, float | int) and not isinstance(value, bool):
            setattr(config, key, 0.0)


def _fix_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Give the tokenizer the eos, bos and pad tokens it lacks; returns what was done."""
    notes = []
    if tokenizer.eos_token is None:
        found = tokenizer.bos_token or tokenizer.sep_token
        if found is None:
            found = _FALLBACK_TOKEN
            tokenizer.add_special_tokens({"eos_token": found})
            _make_room(model, len(tokenizer))
        else:
            tokenizer.eos_token = found
        notes.append(f"the tokenizer has no end-of-text token: {found!r} is used")
    if tokenizer.bos_token is None:
        tokenizer.bos_token = tokenizer.eos_token
        notes.append(f"the tokenizer has no begin-of-text token: {tokenizer.eos_token!r} is used")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        notes.append(f"the tokenizer has no padding token: {tokenizer.eos_token!r} is used, masked by attention")
    return tuple(notes)


def _fix_embeddings(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, digest: str) -> tuple[str, ...]:
    """Give every token of the tokenizer an embedding; returns what was done.

    A private text may hold any of them: one without an embedding would end the training that is paid for by then.
    """
    if digest not in _NUMBERS:
        _NUMBERS[digest] = 1 + max(tokenizer.get_vocab().values())
    missing = _NUMBERS[digest] - model.get_input_embeddings().weight.shape[0]
    if missing <= 0:
        return ()
    _make_room(model, _NUMBERS[digest])
    return (f"the model has no embeddings for {missing} of the tokenizer's tokens: the mean of all others is used",)


def _make_room(model: PreTrainedModel, size: int) -> None:
    """Grow the embeddings to `size` rows; new rows are the mean of the others: nothing random."""
    rows = model.get_input_embeddings().weight.shape[0]
    if size <= rows:
        return
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model.resize_token_embeddings(size, mean_resizing=False)
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            if layer is not None:
                layer.weight[rows:] = layer.weight[:rows].mean(0)


def _in_one_line(error: BaseException) -> str:
    words = str(error).split() or [type(error).__name__]
    return textwrap.shorten(" ".join(words), width=200, placeholder=" ...")


@contextmanager
def quietly_loading() -> Iterator[None]:
    """No progress bars or advice of transformers in the user's terminal."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()

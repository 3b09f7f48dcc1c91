"""A sentence encoder for flows that is read once in a process, and has one of the six layers of the shipped one.

What a flow's report says of texts is judged where its parts are tested, by the shipped encoder. A flow that another
process goes on with reads texts by that one, too: a test of it asks for `real_encoder`.
"""

import dataclasses
import functools
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from understudy.evaluation.texts import encoder


def read_once(patch: pytest.MonkeyPatch) -> None:
    """An encoder is read from the disk once, and encodes the same texts in one call once."""
    load = encoder.load_encoder

    @functools.cache
    def loaded(_folder: Path, name: str, **given: int) -> encoder.Encoder:
        found = load(name, **given)
        encode = functools.lru_cache(maxsize=4096)(found.encode)
        return dataclasses.replace(found, encode=lambda texts: encode(tuple(texts)).copy())

    def load_encoder(name: str = encoder.DEFAULT_ENCODER, **given: int) -> encoder.Encoder:
        return loaded(encoder._folder_of(name, given.get("offline", True)), name, **given)

    patch.setattr(encoder, "load_encoder", load_encoder)


def make_small(folder: Path) -> None:
    """Store the first layer of the shipped encoder, its tokenizer and its pooling; it reads 48 tokens of a text."""
    model = SentenceTransformer(str(_folder_of(encoder.DEFAULT_ENCODER, offline=True)), device="cpu")
    bert = model[0].model
    bert.encoder.layer, bert.config.num_hidden_layers = bert.encoder.layer[:1], 1
    model.max_seq_length = 48
    model.save(str(folder), create_model_card=False)


def take_small(patch: pytest.MonkeyPatch, small: Path) -> None:
    """Put the encoder of `make_small` in the place of the shipped one."""

    def folder_of(name: str, offline: bool) -> Path:
        return small if name == encoder.DEFAULT_ENCODER else _folder_of(name, offline)

    patch.setattr(encoder, "_folder_of", folder_of)


_folder_of = encoder._folder_of

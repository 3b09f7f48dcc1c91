"""Texts for the contract of preference optimisation, and what stands in for the sentence encoder."""

import zlib
from collections.abc import Sequence

import numpy as np

from understudy.evaluation.texts.encoder import Encoder

DIMENSION = 16
_WORDS = [
    "a",
    "dull",
    "bright",
    "little",
    "film",
    "song",
    "river",
    "stone",
    "night",
    "clear",
    "loud",
    "small",
    "green",
    "house",
    "tale",
    "of",
    "rain",
    "and",
    "smoke",
]
SEEDS = tuple(f"{_WORDS[i]} {_WORDS[-1 - i]}" for i in range(8))


def text_of(number: int, words: int = 7) -> str:
    """A text of its own for each number."""
    return " ".join(_WORDS[zlib.crc32(f"{number}/{place}".encode()) % len(_WORDS)] for place in range(words))


def hashed_words(texts: Sequence[str]) -> np.ndarray:
    """(texts, 16) float32 unit counts of hashed words: each row a function of its text alone."""
    out = np.zeros((len(texts), DIMENSION))
    for row, text in enumerate(texts):
        for word in text.split():
            code = zlib.crc32(word.encode())
            out[row, code % DIMENSION] += 1 if code & 0x100 else -1
    norms = np.linalg.norm(out, axis=1, keepdims=True)
    return (out / np.where(norms > 0, norms, 1)).astype(np.float32)


def stand_in_encoder(*, device: str = "cpu") -> Encoder:
    """In the place of the sentence encoder."""
    return Encoder(
        name="hashed words",
        digest="public",
        dimension=DIMENSION,
        encode=lambda texts: hashed_words(texts),
        device=device,
    )

"""Clients and texts for the contract of preference optimisation, and what stands in for the sentence encoder."""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from understudy.evaluation.encoder import Encoder
from understudy.preference_optimization.config import PreferenceOptimizationConfig

DIMENSION = 16
CLIENTS = 12
SLOT = 3
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
_KINDS = {
    "federated": ("plain", "extreme", "repeated", "copy"),
    "central": ("plain", "extreme", "repeated", "copy"),
    "central_conditional": ("plain", "extreme", "rare class", "copy"),
}
SEEDS = tuple(f"{_WORDS[i]} {_WORDS[-1 - i]}" for i in range(8))

Columns = dict[str, tuple]
Pair = tuple[str, int, Columns, Columns]


def text_of(number: int, words: int = 7) -> str:
    """A text of its own for each number."""
    return " ".join(_WORDS[zlib.crc32(f"{number}/{place}".encode()) % len(_WORDS)] for place in range(words))


def small_preferences(model: Path, **given) -> PreferenceOptimizationConfig:
    """Two rounds of 16 candidates, one epoch; `given` adds to a section's settings."""
    seeds = model.parent / "seeds.csv"
    seeds.write_text("\n".join(["text", *SEEDS]) + "\n")
    data = {
        "model": str(model),
        "samples": 4,
        "public_seed": 5,
        "rounds": 2,
        "seeds": str(seeds),
        "clients": {"sample_tokens": 16},
        "candidates": {
            "prompts": 4,
            "per_prompt": 4,
            "seeds_per_prompt": 1,
            "seed_tokens": 6,
            "instruction": "Texts, {label}:" if given.get("variant") == "central_conditional" else "",
            "sampling": {"max_new_tokens": 6, "top_p": 1.0},
        },
        "preferences": {"rejected_rank": 3, "lora_rank": 2, "epochs": 1, "batch_size": 4},
    }
    for name, value in given.items():
        data[name] = data.get(name, {}) | value if isinstance(value, dict) else value
    return PreferenceOptimizationConfig.model_validate(data)


def base_rows(variant: str) -> Columns:
    """Twelve units: clients with one to three documents, or one text each; two labels of three are in use."""
    if variant == "federated":
        owners = [client for client in range(CLIENTS) for _ in range(1 + client % 3)]
        return {
            "client_id": tuple(f"client {owner}" for owner in owners),
            "text": tuple(text_of(row, words=8 + 4 * (row % 4)) for row in range(len(owners))),
        }
    texts = {"text": tuple(text_of(row) for row in range(CLIENTS))}
    return texts | ({"label": tuple(row % 2 for row in range(CLIENTS))} if variant == "central_conditional" else {})


def neighbours(variant: str, slot: int, *, copied: str = "") -> Iterator[Pair]:
    """(kind, slot, D, D'): a unit of each kind against the null unit in its slot; `copied` is a public candidate."""
    for kind in _KINDS[variant]:
        texts = {
            "plain": None,
            "rare class": None,
            "extreme": ("zzyzx " * 400,) * 3,
            "repeated": (text_of(40),) * 3,
            "copy": (copied or text_of(41),) * 2,
        }[kind]
        data = with_unit(variant, slot, texts, label=2 if kind == "rare class" else None)
        yield kind, slot, data, without_unit(variant, slot)


def with_unit(variant: str, slot: int, texts: Sequence[str] | None, *, label: int | None = None) -> Columns:
    """The base rows with another unit in a slot; a client takes all of the texts, a row the first."""
    rows = {name: list(values) for name, values in base_rows(variant).items()}
    if texts is not None and variant == "federated":
        places = [row for row, owner in enumerate(rows["client_id"]) if owner == f"client {slot}"]
        for values, fresh in ((rows["client_id"], [f"client {slot}"] * len(texts)), (rows["text"], list(texts))):
            values[places[0] : places[-1] + 1] = fresh
    elif texts is not None:
        rows["text"][slot] = texts[0]
    if label is not None:
        rows["label"][slot] = label
    return {name: tuple(values) for name, values in rows.items()}


def without_unit(variant: str, slot: int) -> Columns:
    """The base rows with the null unit in a slot: a null text and label or, for a client, empty documents only.

    No table that passes admission holds the null client, which is why it can stand for a client that is not there.
    """
    rows = {name: list(values) for name, values in base_rows(variant).items()}
    if variant == "federated":
        rows["text"] = ["" if owner == f"client {slot}" else text for owner, text in zip(*rows.values(), strict=True)]
    else:
        for values in rows.values():
            values[slot] = None
    return {name: tuple(values) for name, values in rows.items()}


def unrelated(variant: str) -> Columns:
    """As many units, with wholly different texts, and of one label."""
    rows = {"text": tuple(f"quux {'plugh ' * (3 + row)}" for row in range(CLIENTS))}
    if variant == "federated":
        rows["client_id"] = tuple(f"client {row}" for row in range(CLIENTS))
    return rows | ({"label": (0,) * CLIENTS} if variant == "central_conditional" else {})


def hashed_words(texts: Sequence[str]) -> np.ndarray:
    """(texts, 16) float32 unit counts of hashed words: each row a function of its text alone."""
    out = np.zeros((len(texts), DIMENSION))
    for row, text in enumerate(texts):
        for word in text.split():
            code = zlib.crc32(word.encode())
            out[row, code % DIMENSION] += 1 if code & 0x100 else -1
    norms = np.linalg.norm(out, axis=1, keepdims=True)
    return (out / np.where(norms > 0, norms, 1)).astype(np.float32)


def stand_in_encoder() -> Encoder:
    """In the place of the sentence encoder."""
    return Encoder(name="hashed words", digest="public", dimension=DIMENSION, encode=lambda texts: hashed_words(texts))

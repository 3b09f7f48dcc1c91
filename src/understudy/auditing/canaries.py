"""Canaries: units of made-up text, each put into the private rows or left out of them by a coin of its own.

A canary has a slot of its own (of clients, an identifier of its own). Put in, it stands there; left out, there is the
null record, as the relation of the promise has it: no other unit is moved by a coin.

Its text is a word of the base model's vocabulary, over and over, that no other canary has, and two words at random. It
says nothing about anybody and resembles no row. All that a unit may contribute goes into one direction that no other
canary shares, which shows more than random words do (Panda et al. 2025, "Privacy Auditing of Large Language Models",
arXiv 2503.06808: canaries of tokens that nothing else has). The last word at random is its secret, which only the
ledger's key knows (`canary_secrets.py`).

But for the secret, texts are public functions of the source's name and a seed, and so are slots, once it is known which
are held out. No row has a part in them: tables that differ in one row still do with canaries in them. The coins come
from the ledger's key: whoever guesses them must not be able to compute them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from understudy.data.tables import INSTRUCTION_SCHEMA, RowKind
from understudy.errors import InputError

Coin = Callable[[bytes], bytes]  # what names a canary -> at least one byte, under a key of the source

# A canary's own word, so many times, and so many words at random, so that two sources share no canary.
REPEATS, FURTHER = 10, 2
# Column of the coins in the stored canaries.
INCLUDED = "included"
_LEAST_WORDS = 200


@dataclass(frozen=True)
class Canaries:
    """The canaries of an audit, private for their coins and secrets.

    Attributes:
        rows: (m,) as rows of the checked table, one for each canary, with its secret.
        slots: (m,) where they stand among the rows; of clients, empty.
        included: (m,) their coins.
        candidates: (m,) the words that the secret may be.
        secrets: (m,) which of them it is.
    """

    rows: pa.Table = field(repr=False)
    slots: tuple[int, ...] = field(repr=False)
    included: npt.NDArray[np.bool_] = field(repr=False)
    candidates: Sequence[Sequence[str]] = field(default=(), repr=False)
    secrets: Sequence[int] = field(default=(), repr=False)


def vocabulary(tokenizer: Any) -> list[str]:
    """The words that stand in a tokenizer's vocabulary whole: at least three small Latin letters behind a space.

    The rarest come first: a vocabulary learned them last and gave them the highest numbers.

    Raises:
        InputError: there are too few.
    """
    # The mark of a space before a word, of byte-level and of SentencePiece vocabularies.
    marked = re.compile(r"[\u0120\u2581]([a-z]{3,})")
    found = {match[1]: number for token, number in tokenizer.get_vocab().items() if (match := marked.fullmatch(token))}
    if len(found) < _LEAST_WORDS:
        raise InputError(
            f"model: expected a vocabulary with at least {_LEAST_WORDS} whole words of Latin letters, to make canaries "
            f"of, found {len(found)}; audit with another base model"
        )
    return sorted(found, key=lambda word: (-found[word], word))


def canary_rows(
    kind: RowKind, count: int, *, words: Sequence[str], labels: int, named: str, schema: pa.Schema
) -> pa.Table:
    """Rows of canaries, without their secrets, in the columns of a checked table; public.

    Args:
        kind: of the rows.
        count: of canaries.
        words: to draw from, the rarest first.
        labels: number of labels; of rows without, 0.
        named: what the words are a function of. Another source needs other canaries: a row has one source.
        schema: of the checked table.

    Raises:
        InputError: there are fewer words than texts.
    """
    texts = count * (len(INSTRUCTION_SCHEMA.names) if kind == "instructions" else 1)
    if texts > len(words):
        raise InputError(
            f"--canaries {count}: expected at most as many as there are words for, found {len(words)} whole words "
            f"in the base model's vocabulary for {texts} texts; ask for fewer"
        )
    seed = int.from_bytes(hashlib.sha256(f"canaries\0{named}".encode()).digest()[:8])
    random = np.random.default_rng(seed)

    # Of the rarer half, where it is large enough.
    rare = len(words) // 2 if len(words) // 2 >= texts else len(words)
    own = iter(random.permutation(rare)[:texts].tolist())

    def text() -> str:
        further = (words[place] for place in random.integers(len(words), size=FURTHER))
        return " ".join([*[words[next(own)]] * REPEATS, *further])

    def row(number: int) -> dict[str, Any]:
        if kind == "instructions":
            return {name: text() for name in INSTRUCTION_SCHEMA.names}
        if kind == "clients":
            return {"client_id": "", "text": text()}
        return {"text": text(), **({"label": number % labels} if kind == "labelled" else {})}

    rows = [row(number) for number in range(count)]
    empty = {name: "" for name in schema.names if name == "system"}
    return pa.Table.from_pylist([empty | one for one in rows], schema=schema)


def toss(names: Sequence[bytes], coin: Coin) -> npt.NDArray[np.bool_]:
    """A fair coin for each canary; a function of what names it and the key alone."""
    return np.array([coin(name)[0] & 1 for name in names], dtype=np.bool_)


def chosen_slots(candidates: Sequence[int], count: int, *, named: str) -> list[int]:
    """Which slots canaries stand in, of all that may be trained on, whatever they hold; a function of these alone."""
    seed = int.from_bytes(hashlib.sha256(f"slots\0{named}".encode()).digest()[:8])
    drawn = np.random.default_rng(seed).choice(len(candidates), size=count, replace=False)
    return sorted(candidates[place] for place in drawn)


def placed(whole: pa.Table, canaries: Canaries, *, included: Sequence[bool], units: int) -> pa.Table:
    """All slots of the table, with these canaries in theirs, and the null record in those of the others.

    Args:
        whole: of at most `units` rows; what is missing at its end are null records.
        canaries: with their slots.
        included: which of them stand there.
        units: slots that were declared.
    """
    null = dict.fromkeys(whole.schema.names)
    rows: list[Mapping[str, Any]] = [*whole.to_pylist(), *[null] * (units - whole.num_rows)]
    for slot, row, is_in in zip(canaries.slots, canaries.rows.to_pylist(), included, strict=True):
        rows[slot] = row if is_in else null
    return pa.Table.from_pylist(rows, schema=whole.schema)


def joined(whole: pa.Table, canaries: Canaries, *, included: Sequence[bool], leaving: set[str]) -> pa.Table:
    """The clients without some of them, and these canaries as clients; one that is left out is no client at all."""
    stay = whole.filter(pa.array([client not in leaving for client in whole["client_id"].to_pylist()]))
    return pa.concat_tables([stay, canaries.rows.filter(pa.array(list(included)))]).combine_chunks()

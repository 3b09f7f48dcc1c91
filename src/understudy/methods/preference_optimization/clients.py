"""Who takes part: documents to clients to samples, and one mean embedding per client.

Paper: POPri, section 4 and appendix F (LargeFedBench: every document is cut into consecutive samples of 64 tokens),
algorithm 1 line 4; central variants: algorithms 2 and 3, where the unit is one text.
*Deviations*: samples are slices of the text at token boundaries, not decoded tokens, so that together they are the
document letter for letter; samples do not reach over the end of a document.

A client is a slot, in the order in which clients first appear in the table; slots without a client come last. Which
slots there are is public (n is); a null client has no sample. Everything else here is private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from understudy.data.columns import blank
from understudy.data.tables import UNIT_ID, UNIT_ID_BYTES
from understudy.errors import InputError, RowError
from understudy.methods.preference_optimization.client_vectors import unit_rows
from understudy.progress import UNKEPT, Course

Embeddings = npt.NDArray[np.floating[Any]]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

LEAST_TOKENS = 8
"""A last piece with fewer tokens is left out, unless it is all that the document has."""

_DOCUMENTS = 256  # tokenised at a time
_EMBEDDED = "embeddings"


@dataclass(frozen=True)
class Clients:
    """The clients' samples, slot after slot; private but for the number of slots.

    Attributes:
        slots: n.
        samples: (N,) texts.
        owner: (N,) int64 slot of each sample, ascending.
        dropped_tokens: (n,) int64 tokens of last pieces left out; internal.
    """

    slots: int
    samples: tuple[str, ...] = field(repr=False)
    owner: IntArray = field(repr=False)
    dropped_tokens: IntArray = field(repr=False)

    @property
    def counts(self) -> IntArray:
        """(n,) samples per client; internal."""
        return np.bincount(self.owner, minlength=self.slots).astype(np.int64)

    def by_slot(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Each slot with its client's samples; a null client has none."""
        ends = np.searchsorted(self.owner, np.arange(self.slots + 1))
        for slot in range(self.slots):
            yield slot, self.samples[ends[slot] : ends[slot + 1]]


def build_clients(table: pa.Table, tokenizer: Any, sample_tokens: int, *, slots: int | None = None) -> Clients:
    """Cut every client's documents into consecutive samples of `sample_tokens` tokens.

    A document's last piece is shorter; with fewer than `LEAST_TOKENS` tokens it is left out and counted, unless the
    document has no other. A document of white space has no sample; nothing else is lost.

    Args:
        table: checked columns `client_id` and `text`, one row per document; private. `records.check_clients` has seen
            to it that every client has a text and stands under one identifier.
        tokenizer: whose tokens count; special tokens are not among them.
        sample_tokens: tokens of a sample, at least 2.
        slots: declared number of clients, public; None: as many as the table has.

    Raises:
        InputError: sample_tokens is too small, or the tokenizer does not say where its tokens stand.
        RowError: the table has more clients than declared.
    """
    if sample_tokens < 2:
        raise InputError(f"sample_tokens={sample_tokens}: expected at least 2")
    identifiers, texts = table["client_id"].to_pylist(), table["text"].to_pylist()
    slot_of_row = _slots(identifiers)
    found = max(slot_of_row, default=-1) + 1
    if slots is not None and found > slots:
        raise RowError(f"{found} clients: expected at most slots={slots}, the declared number; declare more")
    pieces: list[list[str]] = [[] for _ in range(found if slots is None else slots)]
    dropped = np.zeros(len(pieces), dtype=np.int64)
    for slot, (cut, left_out) in zip(slot_of_row, _cut(texts, tokenizer, sample_tokens), strict=True):
        pieces[slot] += cut
        dropped[slot] += left_out
    return _clients(pieces, dropped)


def unit_ids(table: pa.Table, *, slots: int) -> ByteArray | None:
    """(slots, 16) the id by which the client of each slot takes part, zeros where there is none; private.

    Args:
        table: as for `build_clients`; None is returned where it has no column `unit_id`.
        slots: declared number of clients, public.
    """
    if UNIT_ID not in table.column_names:
        return None
    own = dict(zip(table["client_id"].to_pylist(), table[UNIT_ID].to_pylist(), strict=True))
    out = np.zeros((slots, UNIT_ID_BYTES), dtype=np.uint8)
    for slot, client in enumerate(own):
        out[slot] = np.frombuffer(own[client], dtype=np.uint8)
    return out


def build_texts(texts: Sequence[str | None]) -> Clients:
    """The central variants: a unit is one text, whole, in one slot; None is the null text.

    Raises:
        RowError: a text is white space; with the row's index.
    """
    for row, text in enumerate(texts):
        if text is not None and not text.strip():
            raise RowError(f"column 'text', row {row}: expected a text, found {blank(text)}; fill or remove the row")
    return _clients([[] if text is None else [text] for text in texts], np.zeros(len(texts), dtype=np.int64))


def embed_samples(
    clients: Clients,
    encode: Callable[[Sequence[str]], Embeddings],
    *,
    dimension: int,
    course: Course = UNKEPT,
) -> Embeddings:
    """Embeddings of all samples, computed client by client, as each client would on its own device.

    One batch never holds two clients: what else is in a batch may move the last bits of an embedding, and then one
    client's absence would move all the others' scores.

    Args:
        clients: private.
        encode: texts -> (texts, d), for example `Encoder.encode`.
        dimension: d.
        course: keeps its private state slot by slot, and tells of tenths of the samples: how long a client takes is
            seen of none.

    Returns:
        (N, d) float32, in the order of the samples; private.
    """
    out = np.zeros((len(clients.samples), dimension), dtype=np.float32)
    keeping, slots, rows = replace(course, progress=None), 0, 0
    if (found := course.resumed()) is not None:
        slots, rows = found[0], len(found[1][_EMBEDDED])
        out[:rows] = found[1][_EMBEDDED].numpy()

    def kept() -> dict[str, torch.Tensor]:
        return {_EMBEDDED: torch.from_numpy(out[:rows])}

    for slot, samples in islice(clients.by_slot(), slots, None):
        if samples:
            out[rows : rows + len(samples)] = encode(samples)
            rows += len(samples)
        keeping.stepped(slot + 1, clients.slots, kept)
        if course.progress is not None and samples:
            for tenth in range(10 * (rows - len(samples)) // len(out) + 1, 10 * rows // len(out) + 1):
                course.progress(tenth, 10)
    return out


def client_means(
    embeddings: Embeddings,
    owner: IntArray,
    *,
    slots: int,
    labels: IntArray | None = None,
    classes: int = 1,
) -> FloatArray:
    """Mean of each client's embeddings, every embedding scaled to norm 1 first and the mean not scaled again.

    With labels, the means of the classes stand side by side, to be clipped as one vector; a class of which the client
    has no sample is zero. Where a unit is one text, all but its own label's block is zero. A mean is a function of its
    client's rows alone, to the last bit.

    Args:
        embeddings: (N, d), private.
        owner: (N,) int64 slots, ascending.
        slots: n.
        labels: (N,) int64 classes of the samples, private; None: no classes.
        classes: C, public.

    Returns:
        (n, C * d) float64; the row of a null client is zero, that of a client with a non-finite embedding is not
        finite, which scoring takes as zero.

    Raises:
        ValueError: sizes differ, slots are not ascending, or a class is not below C.
    """
    of = np.zeros_like(owner) if labels is None else labels
    if not len(embeddings) == len(owner) == len(of) or np.any(np.diff(owner) < 0):
        raise ValueError(f"expected N rows, ascending owners and labels, found {len(embeddings)}, {len(owner)}")
    if len(owner) and not (owner[0] >= 0 and owner[-1] < slots and of.min() >= 0 and of.max() < classes):
        raise ValueError(f"expected owners below {slots} and labels below {classes}")
    means = np.zeros((slots * classes, embeddings.shape[1]))
    keys = owner * classes + of
    order = np.argsort(keys, kind="stable")
    found, starts = np.unique(keys[order], return_index=True)
    for key, rows in zip(found, np.split(order, starts[1:]), strict=False):
        means[key] = unit_rows(embeddings[rows]).mean(axis=0)
    return means.reshape(slots, classes * embeddings.shape[1])


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse a tokenizer with which documents cannot be cut.

    Raises:
        InputError: it does not say where its tokens stand in the text.
    """
    if not tokenizer.is_fast:
        raise InputError(
            "expected a tokenizer that knows where its tokens stand in the text, found one without offsets; use a "
            "model that ships a tokenizer.json"
        )


def _slots(identifiers: Sequence[str]) -> list[int]:
    """The slot of each row, counted from 0 in the order of first appearance."""
    slots: dict[str, int] = {}
    return [slots.setdefault(identifier, len(slots)) for identifier in identifiers]


def _cut(texts: Sequence[str], tokenizer: Any, sample_tokens: int) -> Iterator[tuple[list[str], int]]:
    """Each document's samples and how many tokens were left out."""
    check_tokenizer(tokenizer)
    for start in range(0, len(texts), _DOCUMENTS):
        batch = texts[start : start + _DOCUMENTS]
        offsets = tokenizer(
            batch,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            truncation=False,
            verbose=False,
        )["offset_mapping"]
        for text, spans in zip(batch, offsets, strict=True):
            yield _pieces(text, [begin for begin, _ in spans], sample_tokens)


def _pieces(text: str, begins: Sequence[int], sample_tokens: int) -> tuple[list[str], int]:
    """Slices of the text at every `sample_tokens`-th token, and the tokens of a last one left out.

    A letter of several tokens belongs to the later piece.
    """
    if not text.strip():
        return [], 0
    edges = [0, *begins[sample_tokens::sample_tokens], len(text)]
    cut = [text[begin:end] for begin, end in pairwise(edges)]
    last = len(begins) - sample_tokens * (len(cut) - 1)
    whole = [piece for piece in cut[:-1] if piece.strip()]
    if whole and last < min(LEAST_TOKENS, sample_tokens):
        return whole, last
    return [*whole, cut[-1]] if cut[-1].strip() else whole, 0


def _clients(pieces: Sequence[Sequence[str]], dropped: IntArray) -> Clients:
    owner = np.repeat(np.arange(len(pieces), dtype=np.int64), [len(found) for found in pieces])
    return Clients(len(pieces), tuple(piece for found in pieces for piece in found), owner, dropped)

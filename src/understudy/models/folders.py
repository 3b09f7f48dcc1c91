"""The files of a base model: where they are, and the digest that tells one set of files from another. No torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from functools import lru_cache
from pathlib import Path

from understudy.errors import InputError
from understudy.shipped import MODELS

# What a model folder may hold for us; everything else in it is neither read nor hashed.
WANTED = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")
WANTED_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.model")


def model_folder(name_or_path: str | Path) -> Path:
    """The folder that holds the files of a model; downloads from the hub where that is possible.

    Raises:
        InputError: when there is no such shipped model, folder or reachable hub id.
    """
    name = str(name_or_path)
    if re.fullmatch(r"[\w.-]+", name) and (MODELS / name / "config.json").is_file():
        return MODELS / name
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"model={name!r}: the folder has no config.json; expected a saved transformers model")
        return path
    shipped = ", ".join(sorted(p.name for p in MODELS.iterdir() if (p / "config.json").is_file()))
    known = f"expected one of the shipped models ({shipped}), a folder, or a Hugging Face id"
    if isinstance(name_or_path, Path) or name.startswith((".", "/", "~")):
        raise InputError(f"unknown model={name!r}: no such folder; {known}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    quiet = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        wanted = [*WANTED, *WANTED_TOKENIZER]
        return Path(str(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["*/*"])))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        raise InputError(
            f"unknown model={name!r}: not shipped, no folder of that name, and not found on the hub or in "
            f"its local cache ({type(error).__name__}; the hub may be unreachable from here); {known}"
        ) from error
    finally:
        if not quiet:
            enable_progress_bars()


def folder_digest(folder: Path) -> str:
    """Sha256 (hex) over the names and bytes of the model files in a folder.

    The result is remembered as long as names, sizes and modification times stay the same.
    """
    patterns = (*WANTED, *WANTED_TOKENIZER)
    files = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    stamps = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return _digest_of(stamps)


def parameter_count(folder: Path) -> int:
    """How many numbers the safetensors files of a folder hold, from their headers; 0 where they cannot be read."""
    return sum(map(_numbers_in, sorted(folder.glob("*.safetensors"))))


def _numbers_in(path: Path) -> int:
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    # Loading the file says what is wrong with it.
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, MemoryError):
        return 0


@lru_cache(maxsize=64)
def _digest_of(stamps: tuple[tuple[str, int, int], ...]) -> str:
    whole = hashlib.sha256()
    for name, _, _ in stamps:
        with Path(name).open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
        whole.update(hashlib.sha256(Path(name).name.encode()).digest() + content.digest())
    return whole.hexdigest()

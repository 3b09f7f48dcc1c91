"""The files of a base model: where they are, and the digest that tells one set of files from another.

No torch, and no network: only `understudy models get` fetches.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

from understudy.errors import InputError
from understudy.models.digests import file_digest
from understudy.models.named import NAMED_MODELS
from understudy.models.stored import find_named, hub_cached, wanted_files


def model_folder(name_or_path: str | Path) -> Path:
    """The folder that holds the files of a model; nothing is fetched.

    Raises:
        InputError: when there is no such model on this machine, or its files are not the ones that were fetched.
    """
    name = str(name_or_path)
    if name in NAMED_MODELS:
        found = find_named(NAMED_MODELS[name])
        if found is None:
            raise InputError(f"model={name!r} is not on this machine; run: understudy models get {name}")
        return found[0]
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"model={name!r}: the folder has no config.json; expected a saved transformers model")
        return path
    known = f"expected one of {', '.join(sorted(NAMED_MODELS))}, a folder, or a Hugging Face id"
    if isinstance(name_or_path, Path) or name.startswith((".", "/", "~")):
        raise InputError(f"unknown model={name!r}: no such folder; {known}")
    return _of_hub_cache(name, known)


def _of_hub_cache(name: str, known: str) -> Path:
    try:
        cached = hub_cached(name)
    except ValueError as error:
        raise InputError(f"unknown model={name!r}: not a Hugging Face id either; {known}") from error
    if cached is None or not is_complete(cached):
        raise InputError(
            f"unknown model={name!r}: no named model, no folder of that name, and not whole in the hub's cache; "
            f"{known}; a model of the hub is fetched by: understudy models get {name}"
        )
    return cached


def is_complete(folder: Path) -> bool:
    """Whether a folder has a configuration and all its safetensors files, by their names."""
    index = folder / "model.safetensors.index.json"
    try:
        listed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else set()
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False
    there = {path.name for path in folder.glob("*.safetensors")}
    return (folder / "config.json").is_file() and bool(there) and listed <= there


def has_chat_template(folder: Path) -> bool:
    """Whether a model's tokenizer brings a chat template, by its files alone: then it was tuned to follow requests."""
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool(config.get("chat_template"))


def folder_digest(folder: Path) -> str:
    """Sha256 (hex) over the names and bytes of the model files in a folder."""
    whole = hashlib.sha256()
    for path in wanted_files(folder):
        whole.update(hashlib.sha256(path.name.encode()).digest() + bytes.fromhex(file_digest(path)))
    return whole.hexdigest()


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

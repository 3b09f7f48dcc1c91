"""The files of a base model: where they are, and the digest that tells one set of files from another.

No torch, and no network: only `understudy models get` fetches.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from understudy.errors import InputError
from understudy.models.digests import file_digest
from understudy.models.named import NAMED_MODELS
from understudy.models.stored import find_named, hub_cached, wanted_files

ADAPTER = "adapter_config.json"


def model_folder(name_or_path: str | Path) -> Path:
    """The folder that holds the files of a model; nothing is fetched.

    Raises:
        InputError: when there is no such model on this machine, or its files are not the ones that were fetched.
    """
    name = str(name_or_path)
    folder = _folder_of(name, name_or_path)
    _check_is_whole_model(folder, name)
    return folder


def _folder_of(name: str, name_or_path: str | Path) -> Path:
    if name in NAMED_MODELS:
        found = find_named(NAMED_MODELS[name])
        if found is None:
            raise InputError(f"model={name!r} is not on this machine; run: understudy models get {name}")
        return found[0]
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path
    known = f"expected one of {', '.join(sorted(NAMED_MODELS))}, a folder, or a Hugging Face id"
    if isinstance(name_or_path, Path) or name.startswith((".", "/", "~")):
        raise InputError(f"unknown model={name!r}: no such folder; {known}")
    return _of_hub_cache(name, known)


def _check_is_whole_model(folder: Path, name: str) -> None:
    """Refuse a folder without a model, and one of which transformers would read what no digest covers."""
    if (folder / ADAPTER).is_file():
        raise InputError(
            f"model={name!r}: expected a whole model, found an adapter ({ADAPTER}); merge it into its base model "
            "(peft: merge_and_unload, then save_pretrained) and give that folder"
        )
    if not (folder / "config.json").is_file():
        raise InputError(f"model={name!r}: the folder has no config.json; expected a saved transformers model")
    below = sorted(file for file in _named_weights(folder) if Path(file).name != file)
    if below:
        raise InputError(
            f"model={name!r}: expected all weights beside config.json, found {below[0]!r} among them; save the model "
            "again with save_pretrained"
        )


def _named_weights(folder: Path) -> set[str]:
    """Files of weights that the folder names itself."""
    named = _json(folder / "config.json").get("transformers_weights")
    shards = [_json(index).get("weight_map") for index in folder.glob("*.safetensors.index.json")]
    listed = {file for shard in shards if isinstance(shard, dict) for file in shard.values()}
    return {file for file in (named, *listed) if isinstance(file, str)}


def _json(path: Path) -> dict[str, Any]:
    """A JSON object of a file, empty where there is none: loading the model says what is wrong with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


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
    return bool(_json(folder / "tokenizer_config.json").get("chat_template"))


def folder_digest(folder: Path) -> str:
    """Sha256 (hex) over the names and bytes of the model files in a folder."""
    whole = hashlib.sha256()
    for path in wanted_files(folder):
        name = path.relative_to(folder).as_posix()
        whole.update(hashlib.sha256(name.encode()).digest() + bytes.fromhex(file_digest(path)))
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

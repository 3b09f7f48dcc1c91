"""Plans of finished runs: what a run that repeats one need not work out again.

A plan is kept in the private root, under the key of its charge, its settings and the program that made it. It holds
public values only. It is asked for only when that charge is released, so that nothing unchecked is ever charged.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

import understudy
from understudy.methods.method import Description
from understudy.privacy.queries import Queries
from understudy.runs.run_plan import RunPlan
from understudy.settings import private_directory, settings


class FinishedPlan(BaseModel):
    """The part of a run plan that takes a model or a calibration to make."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    queries: Queries
    description: Description
    notes: tuple[str, ...]


_ADAPTER = TypeAdapter(FinishedPlan)


def remember(key: str, plan: RunPlan) -> None:
    """Keep the plan of a run whose charge is released.

    Args:
        key: `run_plan.key_of`.
        plan: of the run.
    """
    kept = FinishedPlan(queries=plan.queries, description=plan.description, notes=plan.model_notes)
    path = _place(key, plan.config)
    temporary = path.with_name(f".{path.name}.new")
    temporary.touch(mode=0o600)
    temporary.write_bytes(_ADAPTER.dump_json(kept))
    temporary.replace(path)


def recall(key: str, config: BaseModel) -> FinishedPlan | None:
    """The plan that was kept, or None; one that is damaged is made again.

    Args:
        key: `run_plan.request_key`.
        config: the run's settings, with the base model's digest.
    """
    try:
        return _ADAPTER.validate_json(_place(key, config).read_bytes())
    except (OSError, ValidationError):
        return None


def _place(key: str, config: BaseModel) -> Path:
    name = hashlib.sha256(f"{key} {config.model_dump_json()} {_program()}".encode()).hexdigest()
    return private_directory(settings().private_root / "plans") / f"{name}.json"


@lru_cache(maxsize=1)
def _program() -> str:
    """Digest of the package's own files: another version may say something else of the same run."""
    whole = hashlib.sha256()
    for path in sorted(Path(understudy.__file__).parent.rglob("*.py")):
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()

"""What the tracking store is told of a task: plain values, built without MLflow.

Everything here is public or a reference. A private artifact appears as `source:NAME@CHARGE`, or as
`source:NAME` where nothing was released: without id, digest, count or size.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from understudy.artifacts.access import ArtifactRef
from understudy.artifacts.manifest import CONTENT_ID
from understudy.tasks.engine.cache_key import references

State = Literal["FINISHED", "FAILED", "KILLED"]

# Tags of runs, and of a run's data sets.
KEY, RUN_KEY, TASK = "understudy.key", "understudy.run_key", "understudy.task"
SOURCES, LABELS, CACHED = "understudy.sources", "understudy.labels", "understudy.cached"
NOTE = "mlflow.note.content"  # what MLflow shows as the description of a run
CHARGE, RELEASED, SYNTHETIC, OUT = "understudy.charge", "understudy.released", "understudy.synthetic", "understudy.out"
# What a charge's epsilon is a bound for: without them it is a number that promises nobody anything.
UNIT, RELATION, ACCOUNTANT = "understudy.unit", "understudy.relation", "understudy.accountant"
EVALUATED = "understudy.evaluated"  # id of the artifact that an evaluated file names
PURGED = "understudy.purged"  # ids that a run names and that were removed since
FLOW_RUN, FLOW_URL, PARENT = "prefect.flow_run_id", "prefect.flow_run_url", "mlflow.parentRunId"
CONTEXT, FULL_ID = "mlflow.data.context", "understudy.id"
UNKNOWN_KIND = "artifact"

# Of a run's key its name shows as many characters as Git does of a commit's.
KEY_SHOWN = 7

# MLflow allows 6000 characters in a parameter and 8000 in a tag.
LONGEST = 5000


@dataclass(frozen=True)
class TaskRecord:
    """One task run that has ended."""

    key: str
    name: str
    zone: str
    state: State
    started_ms: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    result: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    cached: bool = False
    failure: str = ""
    flow_run_id: str | None = None
    task_run_id: str | None = None

    @property
    def inputs(self) -> list[ArtifactRef]:
        """The artifacts it was given, in the order of the arguments."""
        return list(references(dict(self.arguments)))

    @property
    def outputs(self) -> list[ArtifactRef]:
        """The artifacts it returned."""
        return list(references(self.result))


def flatten(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Public parameters under dotted names; references are left out, they are inputs.

    >>> flatten({"config": {"train": {"steps": 3}}, "names": ["a", "b"]})
    {'config.train.steps': '3', 'names': '["a", "b"]'}
    """
    flat: dict[str, str] = {}
    for name, value in parameters.items():
        if isinstance(value, BaseModel | dict) and not isinstance(value, ArtifactRef):
            flat |= flatten(dict(value), f"{prefix}{name}.")
        elif not any(True for _ in references(value)):
            text = json.dumps(value, default=str) if isinstance(value, list | tuple) else str(value)
            flat[tracked_name(f"{prefix}{name}")] = text[:LONGEST]
    return flat


def run_name(name: str, run_key: str) -> str:
    """The name of a flow's run in a list of runs, by which two that were asked for differently are told apart.

    It holds no epsilon, which says nothing without its unit, relation, delta and accountant.

    >>> run_name("gradient-matching reviews", "5f0c1e7a" * 8)
    'gradient-matching reviews 5f0c1e7'
    """
    return f"{name} {run_key[:KEY_SHOWN]}"


def tracked_name(name: str) -> str:
    """A name that MLflow takes: other characters, in the keys of a dict for example, become underscores."""
    return re.sub(r"[^\w.\- :]", "_", name)[:250]


def source_names(inputs: Iterable[ArtifactRef], outputs: Iterable[ArtifactRef]) -> list[str]:
    """The private sources behind a task, each with the charges that the outputs name for it.

    A released output also says which sources its own parents are.
    """
    inputs, outputs = list(inputs), list(outputs)
    charges: dict[str, set[str]] = {}
    for guarantee in (guarantee for ref in outputs for guarantee in ref.label.guarantees):
        charges.setdefault(guarantee.source, set()).add(guarantee.charge_id)
    names = {parent for ref in outputs for parent in ref.parents if parent.startswith("source:")}
    for source in {source for ref in [*inputs, *outputs] for source in ref.label.sources}:
        names |= {f"source:{source}@{charge}" for charge in charges.get(source, ())} or {f"source:{source}"}
    return sorted(names)


def public_artifacts(refs: Iterable[ArtifactRef]) -> dict[str, str]:
    """Id -> kind of the artifacts that may be named, distinct, in order."""
    return {ref.id: ref.kind for ref in refs if not ref.is_private}


def found_parents(refs: Iterable[ArtifactRef]) -> dict[str, str]:
    """Id -> kind, which is not known, of what artifacts that may be named were made from; private ones are left out."""
    parents = (parent for ref in refs if not ref.is_private for parent in ref.parents)
    return {parent: UNKNOWN_KIND for parent in parents if CONTENT_ID.fullmatch(parent)}  # no source, nothing private


def labels_of(refs: Iterable[ArtifactRef]) -> str:
    """The distinct labels of `refs`."""
    return "; ".join(sorted({str(ref.label) for ref in refs}))[:LONGEST]

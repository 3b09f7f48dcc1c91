"""Where an artifact comes from, read from the recorded runs."""

import json
from typing import Any, Protocol

from pydantic import BaseModel

from understudy.tasks.engine.run_record import (
    CACHED,
    CONTEXT,
    FLOW_URL,
    FULL_ID,
    LABELS,
    PARENT,
    PURGED,
    SOURCES,
    TASK,
    UNKNOWN_KIND,
)


class LineageNode(BaseModel):
    """One artifact or `source:NAME@CHARGE`, the task that made it, and what that was made from."""

    id: str
    kind: str
    task: str | None = None
    run_id: str | None = None
    flow_run_url: str | None = None
    label: str | None = None
    purged: bool = False
    parents: tuple["LineageNode", ...] = ()


class Runs(Protocol):
    """What is asked of a tracking store."""

    def runs_with(self, ref_id: str) -> list[Any]:
        """Runs that read or made the artifact."""

    def tags_of(self, run_id: str) -> dict[str, str]:
        """The tags of one run."""


def trace(runs: Runs, ref_id: str, seen: frozenset[str] = frozenset()) -> LineageNode:
    """The lineage of one artifact; an artifact among its own ancestors is not followed again.

    Args:
        runs: the tracking store.
        ref_id: a content address.
        seen: the artifacts on the way to this one.
    """
    makers = [run for run in runs.runs_with(ref_id) if ref_id in _artifacts(run, "output")]
    if not makers or ref_id in seen:
        return LineageNode(id=ref_id, kind=UNKNOWN_KIND)
    # The run that computed it comes before those that found it.
    run = min(makers, key=lambda maker: (CACHED in maker.data.tags, maker.info.start_time))
    tags = run.data.tags
    inputs = [trace(runs, name, seen | {ref_id}) for name in _artifacts(run, "input")]
    sources = [LineageNode(id=name, kind="source") for name in json.loads(tags.get(SOURCES, "[]"))]
    return LineageNode(
        id=ref_id,
        kind=_artifacts(run, "output")[ref_id],
        task=tags.get(TASK),
        run_id=run.info.run_id,
        flow_run_url=runs.tags_of(tags[PARENT]).get(FLOW_URL) if PARENT in tags else None,
        label=tags.get(LABELS),
        purged=ref_id in json.loads(tags.get(PURGED, "[]")),
        parents=(*inputs, *sources),
    )


def _artifacts(run: Any, context: str) -> dict[str, str]:
    """Id -> kind of a run's artifacts in one role."""
    found = {}
    for entry in run.inputs.dataset_inputs:
        tags = {tag.key: tag.value for tag in entry.tags}
        if tags.get(CONTEXT) == context:
            found[tags[FULL_ID]] = str(entry.dataset.name)
    return found

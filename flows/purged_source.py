"""What a run says whose source was purged while it was on: not that a file is missing, but why and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from understudy.artifacts.reference import locate
from understudy.errors import SourcePurged
from understudy.runs.run_plan import RunPlan


@contextmanager
def unless_purged(plan: RunPlan) -> Iterator[None]:
    """Whatever a block fails with after a purge of its source leaves as the word of that purge.

    Raises:
        SourcePurged: the block failed, and the source was purged.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, SourcePurged) or not is_purged(plan):
            raise
    else:
        return
    # Outside of the handler: Prefect would log the text of the error behind it.
    raise purged(plan)


def is_purged(plan: RunPlan) -> bool:
    """Whether the checked rows of a registered run are gone: nothing but a purge removes them."""
    return not all(locate(ref.uri).exists() for ref in plan.stored_rows)


def purged(plan: RunPlan) -> SourcePurged:
    """What happened, and what to do."""
    charged = f"If epsilon={plan.epsilon:g} was charged it stays spent; --accept-new-charge pays it once more"
    again = charged if plan.queries else "Nothing was charged"
    return SourcePurged(
        f"source {plan.source!r}: expected its rows to stay until the run ends, found that `understudy purge` removed "
        f"them while the run was on. Purge when no run of the source is on. To have this run all the same, start it "
        f"again: it takes the rows from --data anew. {again}"
    )

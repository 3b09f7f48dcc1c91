"""Trajectory matching as a flow: experts on the whole set, few rows with pseudo tokens that train as the set does.

rows -> charge -> train-expert (mapped) -> gather-experts -> finalize --+-> distil --+-> evaluate-tuning --+-> export
carriers (real rows, or public ones) -> select-rows --------------------+            +-> emit-text --------+
"""

from __future__ import annotations

from prefect import flow, unmapped

from understudy.artifacts.access import ArtifactRef
from understudy.flows.paid_run import paid_run
from understudy.flows.run_name import name_of_deployed
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.runs.exported import Exported
from understudy.runs.request import RunRequest
from understudy.tasks.charging import finalize
from understudy.tasks.engine.runtime import code_digest
from understudy.tasks.trajectory_matching import (
    distil,
    emit_text,
    evaluate_tuning,
    gather_experts,
    read_public_rows,
    select_rows,
    train_expert,
    write_carriers,
)

METHOD = "trajectory-matching"


@flow(name=METHOD, flow_run_name=name_of_deployed, persist_result=True, result_serializer="json")
def trajectory_matching(request: RunRequest) -> Exported:
    """Instructions with responses in, a few of them behind learned pseudo tokens out."""
    with paid_run(request, TrajectoryMatchingConfig, code_digest(train_expert.fn)) as run:
        config, (rows, test_rows) = run.config, run.rows
        numbers = list(range(config.experts.count))
        experts = train_expert.map(unmapped(rows), unmapped(run.receipt), unmapped(run.charged), numbers)
        trajectories = finalize(run.receipt, gather_experts(experts.result(), run.receipt))
        settings = config.unmeasured
        carriers = rows if config.carrier == "selected" else _public_carriers(settings)
        resembled = _resembled(settings)
        selected = select_rows(carriers, resembled, settings)
        distilled = distil(trajectories, selected, settings)
        metrics = evaluate_tuning(distilled, trajectories, rows, test_rows, config)
        return run.export(distilled, emit_text(distilled), metrics)


def _resembled(config: TrajectoryMatchingConfig) -> ArtifactRef | None:
    """The public rows that the chosen ones should resemble, where the settings name some."""
    target, digest = config.selection.target, config.selection.target_digest
    return None if target is None else read_public_rows(target, "selection.target", digest)


def _public_carriers(config: TrajectoryMatchingConfig) -> ArtifactRef:
    """Public rows, or public instructions that the public model answers."""
    public = read_public_rows(config.carriers, "carriers", config.carriers_digest)
    return public if config.carrier == "public" else write_carriers(public, config)

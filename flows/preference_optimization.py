"""Preference optimisation as a flow: clients' noisy scores train a generator, round by round.

rows -> embed ---------------------+
          charge -> [ propose -> score -> prefer ] x T -> publish -> settle
                                                      +-> write texts -> judge -> deliver

`propose`, `prefer`, `publish` and `write texts` belong to the server zone: `server_side` runs them there.
"""

from __future__ import annotations

import math

from prefect import flow

from understudy.artifacts.access import ArtifactRef
from understudy.flows.paid_run import paid_run
from understudy.flows.server_side import Prefer, Propose, Publish, WriteTexts, in_zone
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.runs.exported import Exported
from understudy.runs.request import RunRequest
from understudy.tasks.charging import finalize
from understudy.tasks.engine.runtime import Zone
from understudy.tasks.preference_optimization import (
    EvaluationRefs,
    charged_code,
    embed_clients,
    evaluate_rounds,
    score,
)

METHOD = "preference-optimization"


@flow(name=METHOD, persist_result=True)
def preference_optimization(request: RunRequest) -> Exported:
    """Texts of private clients in, synthetic texts and the model that wrote them out, with their statement."""
    zone: Zone = "server" if math.isfinite(request.epsilon) else "client"
    with paid_run(request, PreferenceOptimizationConfig, *charged_code(zone)) as run:
        config, fixed, names, (rows, test_rows) = run.config, run.charged, run.plan.label_names, run.rows
        pool = embed_clients(rows, fixed, names, run.plan.n)
        adapters: list[ArtifactRef] = []
        proposed: list[ArtifactRef] = []
        scored: list[ArtifactRef] = []
        for number in range(config.rounds):
            last = adapters[-1] if adapters else None
            proposed.append(in_zone(zone, Propose(adapter=last, config=fixed, label_names=names, number=number)))
            scored.append(score(pool, proposed[-1], run.receipt, fixed, number))
            learnt = Prefer(candidates=proposed[-1], scores=scored[-1], adapter=last, config=fixed, number=number)
            adapters.append(in_zone(zone, learnt))
        model = finalize(run.receipt, in_zone(zone, Publish(adapter=adapters[-1], config=fixed)))
        wanted = fixed.model_copy(update={"samples": config.samples})
        synthetic, public = (
            in_zone(zone, WriteTexts(adapter=adapter, config=wanted, label_names=names))
            for adapter in (adapters[-1], None)
        )
        inputs = EvaluationRefs(
            synthetic=synthetic,
            prompt_only=public,
            train=rows,
            test=test_rows,
            pool=pool,
            candidates=tuple(proposed),
            scores=tuple(scored),
        )
        metrics = evaluate_rounds(inputs, fixed, request.profile)
        return run.export(model, synthetic, metrics)

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
from understudy.flows.server_side import Prefer, Propose, Publish, WriteTexts, in_zone
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.runs.exported import Exported
from understudy.runs.registration import registered
from understudy.runs.request import RunRequest
from understudy.tasks.charging import charge, environment_digest, finalize
from understudy.tasks.engine.runtime import Zone
from understudy.tasks.engine.tracking import parent_run
from understudy.tasks.export import export
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
    plan = registered(request, METHOD)
    config, names, (rows, test_rows) = plan.settings(PreferenceOptimizationConfig), plan.label_names, plan.stored_rows
    fixed = plan.charged_settings(PreferenceOptimizationConfig)
    zone: Zone = "server" if math.isfinite(plan.epsilon) else "client"
    with parent_run(plan.key, METHOD, parameters={"request": request, "config": config}):
        code = environment_digest(*charged_code(zone))
        receipt = charge(plan, code=code, accept_new=request.accept_new_charge)
        pool = embed_clients(rows, fixed, names, plan.n)
        adapters: list[ArtifactRef] = []
        proposed: list[ArtifactRef] = []
        scored: list[ArtifactRef] = []
        for number in range(config.rounds):
            last = adapters[-1] if adapters else None
            proposed.append(in_zone(zone, Propose(adapter=last, config=fixed, label_names=names, number=number)))
            scored.append(score(pool, proposed[-1], receipt, fixed, plan.queries, number))
            learnt = Prefer(candidates=proposed[-1], scores=scored[-1], adapter=last, config=fixed, number=number)
            adapters.append(in_zone(zone, learnt))
        model = finalize(receipt, in_zone(zone, Publish(adapter=adapters[-1], config=fixed)))
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
        return export(plan, receipt, model, synthetic, metrics, out=request.out)

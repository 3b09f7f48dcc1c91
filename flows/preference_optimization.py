"""Preference optimisation as a flow: clients' noisy scores train a generator, round by round.

rows -> embed ---------------------+
          charge -> [ propose -> score -> prefer ] x T -> publish -> settle
                                                      +-> write texts -> judge -> deliver
"""

from __future__ import annotations

import math

from prefect import flow

from understudy.artifacts import ArtifactRef
from understudy.flows.admitted import admitted
from understudy.preference_optimization.config import PreferenceOptimizationConfig
from understudy.preference_optimization.planning import charged_settings
from understudy.requests import RunRequest
from understudy.tasks.charging import charge, environment_digest, settle
from understudy.tasks.delivery import Delivered, deliver
from understudy.tasks.preference_optimization import (
    Evidence,
    charged_code,
    embed_clients,
    judge,
    prefer,
    propose,
    publish,
    score,
    write_texts,
)
from understudy.tasks.runtime import Zone
from understudy.tasks.tracking import parent_run

METHOD = "preference-optimization"


@flow(name=METHOD, persist_result=True)
def preference_optimization(request: RunRequest) -> Delivered:
    """Texts of private clients in, synthetic texts and the model that wrote them out, with their statement."""
    begun = admitted(request, METHOD, PreferenceOptimizationConfig)
    run, config, names = begun.run, begun.config, begun.run.label_names
    zone: Zone = "server" if math.isfinite(run.epsilon) else "client"
    with parent_run(begun.key, METHOD, parameters={"request": request, "config": config}):
        fixed, code = charged_settings(config), environment_digest(*charged_code(zone))
        ticket = charge(begun.train, run, code=code, accept_new=request.accept_new_charge)
        pool = embed_clients(begun.train, fixed, names)
        adapters: list[ArtifactRef] = []
        proposed: list[ArtifactRef] = []
        scored: list[ArtifactRef] = []
        for number in range(config.rounds):
            last = adapters[-1] if adapters else None
            proposed.append(propose[zone](last, fixed, names, number))
            scored.append(score(pool, proposed[-1], ticket, fixed, run.n, run.epsilon, run.delta, number))
            adapters.append(prefer[zone](proposed[-1], scored[-1], last, fixed, number))
        model = settle(ticket, publish[zone](adapters[-1], fixed))
        wanted = fixed.model_copy(update={"samples": config.samples})
        synthetic = write_texts[zone](adapters[-1], wanted, names)
        evidence = Evidence(
            synthetic=synthetic,
            prompt_only=write_texts[zone](None, wanted, names),
            train=begun.train,
            test=begun.test,
            pool=pool,
            candidates=tuple(proposed),
            scores=tuple(scored),
        )
        metrics = judge(evidence, fixed, request.profile)
        return deliver(run, ticket, model, synthetic, metrics, out=request.out)

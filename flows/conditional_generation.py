"""Conditional generation as a flow: DP multitask fine-tuning, steered generation, evaluation, delivery.

rows -> charge -> train -> settle -> generate --+-> evaluate -> deliver
                              prompt-only ------+
"""

from __future__ import annotations

from prefect import flow

from understudy.evaluation.config import EvaluationConfig
from understudy.flows.admitted import admitted
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.method import charged_settings
from understudy.runs.request import RunRequest
from understudy.tasks.charging import charge, environment_digest, settle
from understudy.tasks.conditional_generation import generate, prompt_only, train
from understudy.tasks.delivery import Delivered, deliver
from understudy.tasks.engine.runtime import code_digest
from understudy.tasks.engine.tracking import parent_run
from understudy.tasks.evaluation import evaluate

METHOD = "conditional-generation"


@flow(name=METHOD, persist_result=True)
def conditional_generation(request: RunRequest) -> Delivered:
    """Private labelled texts in, synthetic labelled texts with their privacy statement out."""
    begun = admitted(request, METHOD, ConditionalGenerationConfig)
    run, config, names = begun.run, begun.config, begun.run.label_names
    with parent_run(begun.key, METHOD, parameters={"request": request, "config": config}):
        code = environment_digest(code_digest(train.fn))
        ticket = charge(begun.train, run, code=code, accept_new=request.accept_new_charge)
        model = train(begun.train, ticket, charged_settings(config), names, run.epsilon, run.delta)
        model = settle(ticket, model)
        synthetic = generate(model, config)
        baseline = prompt_only(config, names, rows=config.samples)
        measuring = EvaluationConfig(profile=request.profile)
        metrics = evaluate(synthetic, begun.train, begun.test, baseline, names, measuring)
        return deliver(run, ticket, model, synthetic, metrics, out=request.out)

"""Conditional generation as a flow: DP multitask fine-tuning, steered generation, evaluation, delivery.

rows -> charge -> train -> settle -> generate --+-> evaluate -> deliver
                              prompt-only ------+
"""

from __future__ import annotations

from prefect import flow

from understudy.evaluation.config import EvaluationConfig
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.runs.exported import Exported
from understudy.runs.registration import registered
from understudy.runs.request import RunRequest
from understudy.tasks.charging import charge, environment_digest, finalize
from understudy.tasks.conditional_generation import generate, prompt_only, train
from understudy.tasks.engine.runtime import code_digest
from understudy.tasks.engine.tracking import parent_run
from understudy.tasks.evaluation import evaluate
from understudy.tasks.export import export

METHOD = "conditional-generation"


@flow(name=METHOD, persist_result=True)
def conditional_generation(request: RunRequest) -> Exported:
    """Private labelled texts in, synthetic labelled texts with their privacy statement out."""
    plan = registered(request, METHOD)
    config, names, (rows, test_rows) = plan.settings(ConditionalGenerationConfig), plan.label_names, plan.stored_rows
    with parent_run(plan.key, METHOD, parameters={"request": request, "config": config}):
        code = environment_digest(code_digest(train.fn))
        receipt = charge(plan, code=code, accept_new=request.accept_new_charge)
        model = finalize(
            receipt, train(rows, receipt, plan.charged_settings(ConditionalGenerationConfig), names, plan.queries)
        )
        synthetic = generate(model, config)
        baseline = prompt_only(config, names, rows=config.samples)
        measuring = EvaluationConfig(profile=request.profile)
        metrics = evaluate(synthetic, rows, test_rows, baseline, names, measuring)
        return export(plan, receipt, model, synthetic, metrics, out=request.out)

"""Conditional generation as a flow: DP multitask fine-tuning, steered generation, evaluation, export.

rows -> charge -> train -> finalize -+-> generate ------+-> evaluate -+-> export
                                     +(->) prompt-only -+             |
                                     +-> evaluate-loss ---------------+

Text without private rows has as many rows of each label; by the release only where sizes are those of the data.
"""

from __future__ import annotations

from prefect import flow

from understudy.evaluation.config import EvaluationConfig
from understudy.flows.paid_run import paid_run
from understudy.flows.run_name import name_of_deployed
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.runs.exported import Exported
from understudy.runs.request import RunRequest
from understudy.tasks.charging import finalize
from understudy.tasks.conditional_generation import evaluate_loss, generate, prompt_only, train
from understudy.tasks.engine.runtime import code_digest
from understudy.tasks.evaluation import evaluate, merge_metrics

METHOD = "conditional-generation"


@flow(name=METHOD, flow_run_name=name_of_deployed, persist_result=True, result_serializer="json")
def conditional_generation(request: RunRequest) -> Exported:
    """Private labelled texts in, synthetic labelled texts with their privacy statement out."""
    with paid_run(request, ConditionalGenerationConfig, code_digest(train.fn)) as run:
        (rows, test_rows), names = run.rows, run.plan.label_names
        model = finalize(run.receipt, train(rows, run.receipt, run.charged))
        synthetic = generate(model, run.config)
        baseline = prompt_only(run.config, names, model if run.config.class_sizes == "as_in_data" else None)
        measuring = EvaluationConfig(profile=request.profile)
        metrics = evaluate(synthetic, rows, test_rows, baseline, names, measuring, run.config.reading)
        if run.config.trains:
            loss = evaluate_loss(model, test_rows, names, run.charged, measuring)
            metrics = merge_metrics([metrics, loss])
        return run.export(model, synthetic, metrics)

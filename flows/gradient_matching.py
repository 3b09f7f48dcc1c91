"""Gradient matching as a flow: one noised gradient per label, then readable texts whose gradient points the same way.

rows -> charge -> release -> finalize -> [ match (shards) -> select ] x waves --+-> evaluate, evaluate-matching
                                                                  zero-shot ----+   -> merge-metrics -> export
"""

from __future__ import annotations

from prefect import flow, unmapped

from understudy.artifacts.access import ArtifactRef, read_json
from understudy.evaluation.config import EvaluationConfig
from understudy.flows.paid_run import paid_run
from understudy.generation.config import SamplingConfig
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.methods.gradient_matching.shards import further_shards, matching_settings, shards
from understudy.runs.exported import Exported
from understudy.runs.request import RunRequest
from understudy.tasks.baselines import zero_shot
from understudy.tasks.charging import finalize
from understudy.tasks.engine.runtime import code_digest
from understudy.tasks.evaluation import evaluate, merge_metrics
from understudy.tasks.gradient_matching import evaluate_matching, match, release, select

METHOD = "gradient-matching"


@flow(name=METHOD, persist_result=True, result_serializer="json")
def gradient_matching(request: RunRequest) -> Exported:
    """Private labelled texts in, a noised gradient per label and readable texts that match it out."""
    with paid_run(request, GradientMatchingConfig, code_digest(release.fn)) as run:
        config, names, (rows, test_rows) = run.config, run.plan.label_names, run.rows
        target = finalize(run.receipt, release(rows, run.receipt, run.charged))
        matched: list[ArtifactRef] = []
        parts = shards(config, len(names))
        while parts:  # the second wave on makes up for what the filters dropped
            wave = match.map(unmapped(target), unmapped(matching_settings(config)), [tuple(part) for part in parts])
            matched += wave.result()
            synthetic = select(matched, config, names)
            parts = further_shards(config, read_json(synthetic), names)
        sampling = SamplingConfig(max_new_tokens=config.max_length)
        asked = (config.projection.instruction, config.about)
        baseline = zero_shot(
            config.model, config.model_digest, names, *asked, config.samples, sampling, config.public_seed
        )
        measuring = EvaluationConfig(profile=request.profile)
        metrics = evaluate(synthetic, rows, test_rows, baseline, names, measuring, config.reading)
        bound = run.plan.description.dry_run["signal_to_noise_bound"]
        sizes = MatchingEvaluationConfig(profile=request.profile)
        tables = {"synthetic": synthetic, "train": rows, "test": test_rows, "prompt_only": baseline}
        own = evaluate_matching(tables, matched, target, names, config, bound, sizes)
        return run.export(target, synthetic, merge_metrics([metrics, own]))

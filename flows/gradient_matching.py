"""Gradient matching as a flow: one noised gradient per label, then readable texts whose gradient points the same way.

rows -> charge -> release -> finalize -> [ match (shards) -> select ] x waves --+-> evaluate, evaluate-matching
                                                                  zero-shot ----+   -> merge-metrics -> export

Of a private target (epsilon inf) the waves after the first are one task, `match-further`, between `match` and `select`.
"""

from __future__ import annotations

from prefect import flow, unmapped

from understudy.artifacts.access import ArtifactRef, read_json
from understudy.evaluation.config import EvaluationConfig
from understudy.flows.paid_run import paid_run
from understudy.flows.run_name import name_of_deployed
from understudy.generation.config import SamplingConfig
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.methods.gradient_matching.shards import Example, further_shards, matching_settings, shards
from understudy.runs.exported import Exported
from understudy.runs.request import RunRequest
from understudy.tasks.baselines import zero_shot
from understudy.tasks.charging import finalize
from understudy.tasks.engine.runtime import code_digest
from understudy.tasks.evaluation import evaluate, merge_metrics
from understudy.tasks.gradient_matching import evaluate_matching, match, match_further, release, select

METHOD = "gradient-matching"


@flow(name=METHOD, flow_run_name=name_of_deployed, persist_result=True, result_serializer="json")
def gradient_matching(request: RunRequest) -> Exported:
    """Private labelled texts in, a noised gradient per label and readable texts that match it out."""
    with paid_run(request, GradientMatchingConfig, code_digest(release.fn)) as run:
        config, names, (rows, test_rows) = run.config, run.plan.label_names, run.rows
        target = finalize(run.receipt, release(rows, run.receipt, run.charged))
        matched, synthetic = _matched_and_selected(target, config, names)
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


def _matched_and_selected(
    target: ArtifactRef, config: GradientMatchingConfig, names: tuple[str, ...]
) -> tuple[list[ArtifactRef], ArtifactRef]:
    """The matched texts and the rows chosen from them; further waves make up for what the filters drop.

    Arguments and number of tasks are in Prefect and MLflow, so they follow no count of a private selection.
    """
    matched = _wave(target, config, shards(config, len(names)))
    if target.is_private:
        matched.append(match_further(target, matched, config, names))
        return matched, select(matched, config, names)
    synthetic = select(matched, config, names)
    while parts := further_shards(config, read_json(synthetic), names):
        matched += _wave(target, config, parts)
        synthetic = select(matched, config, names)
    return matched, synthetic


def _wave(target: ArtifactRef, config: GradientMatchingConfig, parts: list[list[Example]]) -> list[ArtifactRef]:
    """The texts of one wave, a task for each part."""
    matching = unmapped(matching_settings(config))
    made: list[ArtifactRef] = match.map(unmapped(target), matching, [tuple(part) for part in parts]).result()
    return made

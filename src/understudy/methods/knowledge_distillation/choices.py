"""Multiple choice behind public examples, and tasks of lm-evaluation-harness, of every model of a run; internal.

Both are measured only where the settings ask for them. The examples of all models are the same public pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from understudy.evaluation.answers.harness import measured_by_harness
from understudy.evaluation.answers.multiple_choice import Question
from understudy.evaluation.answers.shots import draw_shots, few_shot
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics
from understudy.evaluation.statistics.intervals import accuracy_interval, paired_bootstrap
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.metric_names import METRIC_NAMES, MODELS
from understudy.models.loading import LoadedModel


@dataclass(frozen=True)
class Chosen:
    """What one model chooses.

    Attributes:
        few_shot: `(questions,)` whether each question that fits whole is answered rightly; private.
        harness: accuracy by task.
        failed: why there is none, though tasks were named.
    """

    few_shot: npt.NDArray[np.bool_] = field(repr=False)
    harness: Mapping[str, float]
    failed: str | None


def choose(questions: Sequence[Question], model: LoadedModel, config: KnowledgeDistillationConfig) -> Chosen:
    """Ask a model what the settings ask for.

    Args:
        questions: of held-out pairs; none where their responses are of no fixed set.
        model: one of the run's.
        config: examples and tasks.
    """
    shots = draw_shots(config.evaluation, seed=config.public_seed)
    right = few_shot(
        model.model,
        model.tokenizer,
        questions,
        shots,
        template=config.template,
        max_length=config.tune.max_length,
    )
    harness, failed = measured_by_harness(model.model, model.tokenizer, config.evaluation)
    return Chosen(np.array(right, dtype=bool), harness, failed)


def measure_chosen(chosen: Mapping[str, Chosen], settings: EvaluationConfig) -> Metrics:
    """Accuracies of each model, and the distilled model's behind examples beside the others', question by question."""
    ours = chosen["target"].few_shot
    found = {}
    if len(ours):
        for name, one in chosen.items():
            found[f"few_shot.{name}.accuracy"] = accuracy_interval(one.few_shot, **settings.bootstrap)
            if name != "target":
                difference = paired_bootstrap(ours, one.few_shot, **settings.bootstrap)
                found[f"few_shot.target_minus_{name}.accuracy"] = difference
    values = {name: one.value for name, one in found.items()}
    if len(ours):
        values["few_shot.questions"] = float(len(ours))
    for name, one in chosen.items():
        values |= {f"harness.{name}.{task}": value for task, value in one.harness.items()}
    return Metrics(
        values=values,
        intervals={name: (one.low, one.high) for name, one in found.items()},
        missing=tuple(f"harness tasks by {MODELS[name]}: {one.failed}" for name, one in chosen.items() if one.failed),
        declared=METRIC_NAMES,
    )

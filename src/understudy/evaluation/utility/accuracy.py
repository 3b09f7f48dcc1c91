"""How useful synthetic text is: train on it, test on real rows.

Paper: "Differentially Private Conditional Text Generation for Synthetic Data", section 6.2 (accuracy on real test rows
of a classifier trained on synthetic ones). Beside the paper: a linear probe on sentence embeddings, which costs
seconds.

Everything here is computed on real test rows and is internal. Test rows, judges and accuracies never choose a
checkpoint, a hyper-parameter, a sample or anything else that is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from understudy.evaluation.config import ClassifierConfig
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.statistics.intervals import Correct, Labels

Inputs = TypeVar("Inputs")

_PROBE_INVERSE_PENALTY = 1.0  # of 0.1, 1, 3, 10 the best or second best at 200, 600 and 2000 public reviews


@dataclass(frozen=True)
class Predictions:
    """What one classifier said about the test rows.

    Attributes:
        predicted: (rows,) int64.
        correct: (rows,) bool.
        accuracy: share of correct rows.
    """

    predicted: Labels
    correct: Correct
    accuracy: float


@dataclass(frozen=True)
class LabelFidelity:
    """How often a judge agrees with the labels of synthetic rows.

    Attributes:
        share: over all rows.
        by_label: declared label -> share over its rows; labels without a row are absent.
    """

    share: float
    by_label: dict[int, float] = field(default_factory=dict)


def score(predicted: Labels, labels: Sequence[int] | Labels) -> Predictions:
    """Compare predictions with the true labels.

    Raises:
        ValueError: when there is no row or the lengths differ.
    """
    truth = np.asarray(labels, dtype=np.int64)
    if truth.shape != predicted.shape or truth.size == 0:
        raise ValueError(f"expected as many labels as predictions, found {truth.shape} and {predicted.shape}")
    correct = predicted == truth
    return Predictions(predicted=predicted, correct=correct, accuracy=float(correct.mean()))


def fit_probe(
    features: npt.NDArray[Any], labels: Sequence[int] | Labels, *, seed: int = 0
) -> Callable[[npt.NDArray[Any]], Labels]:
    """L2-penalised logistic regression with fixed settings.

    Training rows of one single class give a classifier that always answers that class.

    Args:
        features: (n, d); unit-length rows are expected, so they are not scaled.
        labels: (n,) ints.
        seed: handed to the solver; L-BFGS is deterministic and does not use it.

    Returns:
        features (m, d) -> labels (m,).
    """
    from sklearn.linear_model import LogisticRegression

    targets = np.asarray(labels, dtype=np.int64)
    present = np.unique(targets)
    if present.size == 1:
        return lambda rows: np.full(len(rows), present[0], dtype=np.int64)
    model = LogisticRegression(C=_PROBE_INVERSE_PENALTY, max_iter=2000, random_state=seed)
    model.fit(features, targets)
    return lambda rows: np.asarray(model.predict(rows), dtype=np.int64)


def transformer_accuracy(
    train: LabelledTexts, test: LabelledTexts, *, config: ClassifierConfig, seed: int, device: str = "cpu"
) -> Predictions:
    """Accuracy on real test rows of a fine-tuned transformer (see `evaluation.classifier`).

    Args:
        train: synthetic, prompt-only or real rows.
        test: real rows; internal.
        config: the classifier's constants.
        seed: of its head and row order.
        device: torch device.

    Raises:
        InputError: as `classifier.fit_classifier`.
    """
    from understudy.evaluation.utility import classifier

    fitted = classifier.fit_classifier(train, config=config, seed=seed, device=device)
    return score(classifier.predict(fitted, test.texts), test.labels)


def label_fidelity(texts: Inputs, labels: Sequence[int] | Labels, judge: Callable[[Inputs], Labels]) -> LabelFidelity:
    """Share of rows whose label a judge confirms.

    Args:
        texts: (n,) synthetic texts, or whatever of them the judge reads, such as their embeddings.
        labels: (n,) the labels they were generated for.
        judge: texts -> labels, trained on *real* rows and apart from any steering head, which would confirm
            itself. As it has seen private rows it is internal: it judges, it never filters.
    """
    outcome = score(judge(texts), labels)
    truth = np.asarray(labels, dtype=np.int64)
    by_label = {int(c): float(outcome.correct[truth == c].mean()) for c in np.unique(truth)}
    return LabelFidelity(share=outcome.accuracy, by_label=by_label)

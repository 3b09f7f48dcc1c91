"""How useful synthetic text is: train on it, test on real rows.

Paper: "Differentially Private Conditional Text Generation for Synthetic Data", section 6.2 (accuracy on real test rows
of a classifier trained on synthetic ones) and Figure 2 (random forest on mean hidden states). Beside the paper: a
linear probe on sentence embeddings, which costs seconds, and intervals.

Everything here is computed on real test rows and is internal. Test rows, judges and accuracies never choose a
checkpoint, a hyper-parameter, a sample or anything else that is exported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from understudy.evaluation.config import ClassifierConfig
from understudy.evaluation.rows import LabelledTexts

Labels = npt.NDArray[np.int64]
Correct = npt.NDArray[np.bool_]
Inputs = TypeVar("Inputs")

_PROBE_INVERSE_PENALTY = 1.0  # of 0.1, 1, 3, 10 the best or second best at 200, 600 and 2000 public reviews
# Test rows of every label that an interval of a difference of mean recalls asks for.
FEWEST_OF_A_LABEL = 10
# Clients or pairs below which percentiles of a bootstrap over them are not trusted alone.
FEWEST_RESAMPLED = 5
_CHUNK = 256  # bootstrap replicates at a time, to bound memory


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
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float


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
    from understudy.evaluation import classifier

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


def accuracy_interval(correct: Correct, *, seed: int, replicates: int = 2000, level: float = 0.95) -> Interval:
    """Mean accuracy over seeds and rows, with an interval.

    The wider, at each end, of the bootstrap over rows and seeds and the Wilson interval of one seed's rows:
    the bootstrap knows the spread between seeds, the Wilson interval does not collapse when every row is
    right.

    Args:
        correct: (seeds, rows) or (rows,) bool.
        seed: of the bootstrap; public.
        replicates: bootstrap replicates.
        level: confidence.
    """
    table = np.atleast_2d(correct)
    low, high = _quantiles(_resampled_means(table, None, seed=seed, replicates=replicates), level)
    share = float(table.mean())
    below, above = _wilson(share, table.shape[1], level)
    return Interval(share, max(0.0, min(low, below)), min(1.0, max(high, above)))


def mean_recall(
    correct: Correct, labels: Sequence[int] | Labels, *, seed: int, replicates: int = 2000, level: float = 0.95
) -> Interval:
    """Share of right answers among the rows of each label, averaged over labels, with an interval.

    Every label counts alike, so a classifier that only knows the commonest label gets no more than by guessing. The
    interval is, at each end, the wider of the bootstrap over seeds and over rows within each label, and of the Wilson
    intervals of the labels put together (Zou & Donner 2008), which do not collapse where a label has few rows.

    Args:
        correct: (seeds, rows) or (rows,) bool.
        labels: (rows,) the true labels.
        seed: of the bootstrap; public.
        replicates: bootstrap replicates.
        level: confidence.
    """
    table, truth = np.atleast_2d(correct), np.asarray(labels, dtype=np.int64)
    parts = [table[:, truth == label] for label in np.unique(truth)]
    shares = np.array([part.mean() for part in parts])
    low, high = _quantiles(_resampled_means(table, None, seed=seed, replicates=replicates, labels=truth), level)
    ends = np.array([_wilson(share, part.shape[1], level) for share, part in zip(shares, parts, strict=True)])
    below, above = np.sqrt(((ends - shares[:, None]) ** 2).sum(0)) / len(shares)
    share = float(shares.mean())
    return Interval(share, max(0.0, min(low, share - below)), min(1.0, max(high, share + above)))


def paired_recall_difference(
    correct_a: Correct,
    correct_b: Correct,
    labels: Sequence[int] | Labels,
    *,
    seed: int,
    replicates: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Difference a - b of two mean recalls on the same test rows, with an interval.

    The interval is, at each end, the wider of the bootstrap and of the closed forms of `paired_bootstrap` of the labels
    put together (Zou & Donner 2008). The bootstrap alone has no width where a side is always right or always wrong on
    a label.

    Args:
        correct_a: (seeds, rows) or (rows,) bool.
        correct_b: (seeds', rows) or (rows,) bool, same rows in the same order.
        labels: (rows,) the true labels.
        seed: of the bootstrap, which draws seeds, for each side on its own, and rows within each label, the same for
            both sides; public.
        replicates: bootstrap replicates.
        level: confidence.

    Raises:
        ValueError: when the sides have different rows.
    """
    a, b, truth = np.atleast_2d(correct_a), np.atleast_2d(correct_b), np.asarray(labels, dtype=np.int64)
    if a.shape[1] != b.shape[1] or a.shape[1] != truth.size:
        raise ValueError(f"expected {truth.size} test rows on both sides, found {a.shape[1]} and {b.shape[1]}")
    parts = [truth == label for label in np.unique(truth)]
    shares = np.array([a[:, part].mean() - b[:, part].mean() for part in parts])
    draws = _resampled_means(a, b, seed=seed, replicates=replicates, labels=truth)
    ends = np.array([_newcombe(a[:, part], b[:, part], level) for part in parts])
    below, above = np.sqrt(((ends - shares[:, None]) ** 2).sum(0)) / len(shares)
    share = float(shares.mean())
    return _widest(share, _quantiles(draws, level), (share - below, share + above))


def paired_bootstrap(
    correct_a: Correct, correct_b: Correct, *, seed: int, replicates: int = 2000, level: float = 0.95
) -> Interval:
    """Difference a - b of two accuracies on the same test rows, with an interval.

    The interval is, at each end, the wider of a percentile bootstrap and of Newcombe's closed form for paired shares.
    The bootstrap knows the spread between seeds. The closed form keeps its width with few rows or few disagreements.

    Each replicate draws test rows, the same for both sides (that is the pairing), and seeds, for each side on
    its own, since seed i of one side has nothing to do with seed i of the other. With one seed per side only
    rows vary and the interval says nothing about seeds.

    Args:
        correct_a: (seeds, rows) or (rows,) bool.
        correct_b: (seeds', rows) or (rows,) bool, same rows in the same order.
        seed: of the bootstrap; public.
        replicates: bootstrap replicates.
        level: confidence.

    Raises:
        ValueError: when the sides have different or no rows.
    """
    a, b = np.atleast_2d(correct_a), np.atleast_2d(correct_b)
    if a.shape[1] != b.shape[1] or a.shape[1] == 0:
        raise ValueError(f"expected the same test rows on both sides, found {a.shape[1]} and {b.shape[1]}")
    draws = _resampled_means(a, b, seed=seed, replicates=replicates)
    return _widest(float(a.mean() - b.mean()), _quantiles(draws, level), _newcombe(a, b, level))


def _quantiles(draws: npt.NDArray[np.float64], level: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _wilson(share: float, rows: int, level: float) -> tuple[float, float]:
    """Wilson's interval of a share of so many rows."""
    from scipy.stats import norm

    z = float(norm.ppf((1 + level) / 2))
    centre = (share + z**2 / (2 * rows)) / (1 + z**2 / rows)
    half = z / (1 + z**2 / rows) * math.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    return centre - half, centre + half


def _newcombe(a: Correct, b: Correct, level: float) -> tuple[float, float]:
    """Interval of the difference of two paired shares (Newcombe 1998, Stat. Med. 17:2635, method 10).

    The two Wilson intervals are squared and added, less twice their product times the correlation of the sides.
    """
    rows = a.shape[1]
    first, second = float(a.mean()), float(b.mean())
    (low_a, high_a), (low_b, high_b) = _wilson(first, rows, level), _wilson(second, rows, level)
    correlation = _correlation(a, b)

    def together(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x**2 - 2 * correlation * x * y + y**2))

    value = first - second
    return value - together(first - low_a, high_b - second), value + together(high_a - first, second - low_b)


def _correlation(a: Correct, b: Correct) -> float:
    """Newcombe's phi of two sides over their common rows, corrected for continuity.

    With several seeds it is the correlation at which two single seeds had the variance that the difference of the
    seeds' means has over rows. With one seed per side that is phi of the two-by-two table.
    """
    rows, first, second = a.shape[1], float(a.mean()), float(b.mean())
    spread = math.sqrt(first * (1 - first) * second * (1 - second))
    if spread == 0:
        # Any table without a row on which the sides agree has phi -1; that is its limit here, where phi is 0 / 0.
        return -1.0 if abs(first - second) == 1 else 0.0
    variance = float((a.mean(0) - b.mean(0)).var())
    covariance = (first * (1 - first) + second * (1 - second) - variance) / 2
    if covariance > 0:
        covariance = max(0.0, covariance - 1 / (2 * rows))
    return max(-1.0, min(1.0, covariance / spread))


def _widest(value: float, *intervals: tuple[float, float]) -> Interval:
    """A difference of two shares with the widest of its intervals, at each end."""
    lows, highs = zip(*intervals, strict=True)
    return Interval(value, max(-1.0, float(min(lows))), min(1.0, float(max(highs))))


def _resampled_means(
    a: Correct, b: Correct | None, *, seed: int, replicates: int, labels: Labels | None = None
) -> npt.NDArray[np.float64]:
    """Bootstrap replicates of mean(a), or of mean(a) - mean(b) on common rows; (replicates,).

    With labels, rows are drawn within each label, and the mean is that of the labels' means.
    """
    generator = np.random.default_rng(seed)
    parts = [slice(None)] if labels is None else [labels == label for label in np.unique(labels)]
    draws = []
    for start in range(0, replicates, _CHUNK):
        size = min(_CHUNK, replicates - start)
        values = _drawn_seed_means(a, size, generator)
        if b is not None:
            values = values - _drawn_seed_means(b, size, generator)
        draws.append(np.mean([_drawn_row_means(values[:, part], generator) for part in parts], axis=0))
    return np.concatenate(draws)


def _drawn_row_means(values: npt.NDArray[np.float64], generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Per replicate, the mean over drawn rows; (size, rows) -> (size,)."""
    size, rows = values.shape
    drawn = generator.integers(rows, size=(size, rows))
    means: npt.NDArray[np.float64] = np.take_along_axis(values, drawn, axis=1).mean(axis=1)
    return means


def _drawn_seed_means(table: Correct, size: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Per replicate, the mean over drawn seeds of each row; (size, rows)."""
    seeds = table.shape[0]
    weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=size) / seeds
    means: npt.NDArray[np.float64] = weights @ table.astype(np.float64)
    return means

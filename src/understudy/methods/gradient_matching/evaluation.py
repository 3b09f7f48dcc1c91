"""What gradient matching is judged by, beside what every labelled synthetic table is judged by (`evaluation.measure`).

Paper: gradient matching (GRADMM), section 5 and appendix D: transfer to several target models, log-perplexity, Frechet
distance to the training rows, distance to the nearest real row, gradient error along fine-tuning, loss-based
membership inference; beside the paper, the matching losses themselves and what each filter dropped.

*Deviations*. Frechet distances are taken between sets of equal size, for they fall with the number of rows, and the
reference rows are never among the few real ones that are compared. Distances to the nearest row stand beside those of
rows never seen.

The figures read private and test rows, are internal and choose nothing that is exported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import binomtest

from understudy.evaluation.metrics import Histogram, Metrics, merge
from understudy.evaluation.rows import MOST_ROWS, Conditions, LabelledTexts, texts_at_most
from understudy.evaluation.texts.encoder import FloatArray, embed_sets
from understudy.evaluation.texts.fidelity import fit_gaussian, gaussian_distance
from understudy.evaluation.texts.nearest import log_perplexities, nearest_real
from understudy.evaluation.utility.transfer import WordsOf
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.methods.gradient_matching.loss import text_losses
from understudy.methods.gradient_matching.metric_names import METRIC_NAMES
from understudy.methods.gradient_matching.release import Target
from understudy.methods.gradient_matching.targets import TargetSpace
from understudy.methods.gradient_matching.transfer import measure_transfer, sample_rows
from understudy.methods.gradient_matching.verbalizer import Verbalizer
from understudy.models.loading import LoadedModel
from understudy.progress import Progress

__all__ = [
    "EvaluationModels",
    "MatchedLosses",
    "losses_of",
    "measure_frechet",
    "measure_log_perplexity",
    "measure_losses",
    "measure_matching",
    "measure_nearest",
    "merge",
    "split_losses",
]

Embedder = Callable[[Sequence[str]], FloatArray]
Labels = Sequence[int] | npt.NDArray[np.int64]
Losses = npt.NDArray[np.float64]

_BINS = 24
_BATCH = 64
_NOTHING: Losses = np.zeros(0)


def losses_of(
    rows: LabelledTexts, target: Target, *, base: LoadedModel, space: TargetSpace, verbalizer: Verbalizer
) -> Losses:
    """Matching losses (n,) of texts, tokenised again, under the released target of their labels.

    Args:
        rows: Synthetic or prompt-only texts.
        target: What they are judged by.
        base: The model whose gradient the target is.
        space: Where the target lives.
        verbalizer: Prefix and template.
    """
    device = space.token_ids.device
    truth, stacked = torch.as_tensor(rows.labels, device=device), target.stacked.to(device)
    found = [
        text_losses(
            [rows.texts[row] for row in part.tolist()],
            truth[part],
            model=base.model,
            tokenizer=base.tokenizer,
            space=space,
            target=stacked,
            verbalizer=verbalizer,
            max_length=target.settings.max_length,
        )
        for part in torch.split(torch.arange(len(rows.texts), device="cpu"), _BATCH)
    ]
    losses: Losses = torch.cat(found).double().cpu().numpy()
    return losses


@dataclass(frozen=True)
class MatchedLosses:
    """What the matching says of itself: post-processing of the target, no real row is in it.

    Attributes:
        kept: (k,) matching losses, 1 - cosine in [0, 2], of the texts that were kept.
        dropped: (m,) of those that were dropped.
        prompt_only: (p,) of prompt-only texts under the same target; empty where there are none.
        reasons: why -> how many were dropped; names of `metric_names.DROP_REASONS`.
        labels: how many there are; what guessing gets right follows from it.
        checked: texts that the label check read.
        shortfall: rows asked for but not reached.
        signal_to_noise: bound of the target; None or infinite where it has no noise.
    """

    kept: Losses
    dropped: Losses = field(default_factory=lambda: _NOTHING)
    prompt_only: Losses = field(default_factory=lambda: _NOTHING)
    reasons: Mapping[str, int] = field(default_factory=dict)
    labels: int = 0
    checked: int = 0
    shortfall: int = 0
    signal_to_noise: float | None = None


@dataclass(frozen=True)
class EvaluationModels:
    """What is measured with; public.

    Attributes:
        base: the run's public base model.
        own: its name, folder or hub id, to be fine-tuned afresh.
        label_words: builds the verbaliser for a tokenizer.
        embedder: texts -> embeddings.
        device: torch device of the target models.
    """

    base: LoadedModel
    own: str
    label_words: WordsOf
    embedder: Embedder
    device: str = "cpu"


def measure_matching(
    conditions: Conditions,
    test: LabelledTexts,
    losses: MatchedLosses,
    *,
    evaluation_models: EvaluationModels,
    config: MatchingEvaluationConfig,
    progress: Progress | None = None,
) -> Metrics:
    """All of it; internal. Names are disjoint from those of `measure.evaluate_synthetic`, so `merge` joins the two.

    Args:
        conditions: synthetic rows, the private rows they were made from, prompt-only rows or None.
        test: real rows that the method never saw; for measuring only.
        losses: of the matching.
        evaluation_models: models and encoder.
        config: sizes and constants, public.
        progress: called with (parts done, parts in all).

    Returns:
        Every figure; of a synthetic set without rows only what was lost on the way, because the charge is paid by then.

    Raises:
        InputError: when another set is empty or a label is out of range.
    """
    if not conditions.synthetic.texts:
        why = "distance, fluency and transfer of the synthetic rows: none was kept"
        return merge(measure_losses(losses), Metrics(missing=(why,)))
    use = evaluation_models
    sets = {name: rows.texts for name, rows in conditions.named().items()} | {"test": test.texts}
    some = {name: texts_at_most(texts, MOST_ROWS, seed=config.public_seed) for name, texts in sets.items()}
    embedded = embed_sets(some, use.embedder)
    unseen = embedded.pop("test")
    parts: list[Callable[[], Metrics]] = [
        lambda: measure_losses(losses),
        lambda: measure_frechet(embedded, config=config),
        lambda: measure_nearest(embedded["synthetic"], embedded["real"], unseen, seed=config.public_seed),
        lambda: measure_log_perplexity(use.base, conditions, test, config=config),
        lambda: measure_transfer(
            conditions, test, own=use.own, label_words=use.label_words, config=config, device=use.device
        ),
    ]
    found: list[Metrics] = []
    for number, part in enumerate(parts, 1):
        found.append(part())
        if progress is not None:
            progress(number, len(parts))
    return merge(*found)


def split_losses(
    matched: tuple[Sequence[str], Labels], losses: Losses, kept: tuple[Sequence[str], Labels]
) -> tuple[Losses, Losses]:
    """Losses of the kept and of the dropped texts.

    Equal texts of one label have equal losses, so which of them was kept makes no difference.

    Args:
        matched: (n,) texts and labels before the filters.
        losses: (n,) of them.
        kept: (k,) texts and labels after the filters, in any order.

    Raises:
        ValueError: when a kept text is not among the matched ones.
    """
    waiting = Counter(zip(*kept, strict=True))
    is_kept = np.zeros(len(losses), bool)
    for row, example in enumerate(zip(*matched, strict=True)):
        if waiting[example]:
            waiting[example] -= 1
            is_kept[row] = True
    if waiting.total():
        raise ValueError(f"expected every kept text among the matched ones, {waiting.total()} are not")
    return losses[is_kept], losses[~is_kept]


def measure_losses(losses: MatchedLosses) -> Metrics:
    """Medians, counts and histogram of the matching losses; how often the label check agreed, with its interval."""
    intervals: dict[str, tuple[float, float]] = {}
    sets = {"kept": losses.kept, "dropped": losses.dropped, "prompt_only": losses.prompt_only}
    present = {name: values for name, values in sets.items() if values.size}
    values = {
        "matching.drawn": float(losses.kept.size + losses.dropped.size),
        "matching.kept": float(losses.kept.size),
        "matching.shortfall": float(losses.shortfall),
        **{f"matching.dropped.{reason}": float(count) for reason, count in losses.reasons.items()},
    }
    for name, found in present.items():
        values[f"matching.loss.{'' if name == 'kept' else f'{name}_'}median"] = float(np.median(found))
    if losses.signal_to_noise is not None and np.isfinite(losses.signal_to_noise):
        values["matching.signal_to_noise_bound"] = losses.signal_to_noise
    if "wrong_label" in losses.reasons and losses.labels > 0 and losses.checked > 0:
        agreed = binomtest(losses.checked - losses.reasons["wrong_label"], losses.checked)
        values |= {"matching.label_check.agreement": agreed.statistic, "matching.label_check.chance": 1 / losses.labels}
        limits = agreed.proportion_ci(0.95, method="exact")
        intervals["matching.label_check.agreement"] = (float(limits.low), float(limits.high))
    histograms = {"matching.loss": _histogram(present)} if present else {}
    return Metrics(values=values, intervals=intervals, histograms=histograms, declared=METRIC_NAMES)


def measure_frechet(embedded: Mapping[str, FloatArray], *, config: MatchingEvaluationConfig) -> Metrics:
    """Frechet distance to the training rows of synthetic, prompt-only and a few real rows, all sets of one size.

    Each split sets as many real rows aside as there are synthetic ones; the rest, or as many of it as
    `reference_rows`, is the reference of all three.

    Args:
        embedded: condition -> (n, d) embeddings; `real` are all training rows.
        config: splits, reference rows, seed.
    """
    real = embedded["real"]
    others = {name: rows for name, rows in embedded.items() if name != "real"}
    rows = min(*(len(found) for found in embedded.values()), len(real) // 2)
    if rows < 2:
        return Metrics(missing=(f"Frechet distance to the training rows: {rows} rows per set; 2 are the least",))
    found: dict[str, list[float]] = {}
    for split in range(config.splits):
        generator = np.random.default_rng([config.public_seed, split])
        order = generator.permutation(len(real))
        reference = fit_gaussian(real[order[rows : rows + config.reference_rows]])
        few = fit_gaussian(real[order[:rows]])
        found.setdefault("few_real", []).append(gaussian_distance(few, reference))
        for name, features in others.items():
            drawn = features[generator.permutation(len(features))[:rows]]
            found.setdefault(name, []).append(gaussian_distance(fit_gaussian(drawn), reference))
    prefixes = {name: "" if name == "synthetic" else f"{name}." for name in found}
    values = {f"fidelity.{prefixes[name]}train_frechet": float(np.mean(each)) for name, each in found.items()}
    return Metrics(values={**values, "fidelity.train_frechet_rows": float(rows)}, declared=METRIC_NAMES)


def measure_nearest(synthetic: FloatArray, real: FloatArray, holdout: FloatArray, *, seed: int = 0) -> Metrics:
    """Distance to the nearest private row, of synthetic texts and of rows never seen; a diagnostic, not a proof.

    Of each side at most `nearest.MOST_COMPARED` random texts; `memorization.nearest_rows.*` says how many.
    """
    found = nearest_real(synthetic, real, holdout, bins=_BINS, seed=seed)
    sides = ("synthetic", "holdout")
    values = {f"memorization.nearest_median.{side}": value for side, value in zip(sides, found.median, strict=True)}
    values |= {f"memorization.nearest_least.{side}": value for side, value in zip(sides, found.closest, strict=True)}
    values |= {"memorization.nearest_rows.synthetic": float(len(found.synthetic))}
    values |= {"memorization.nearest_rows.holdout": float(len(found.holdout))}
    values["memorization.nearest_share"] = found.closer_than_holdout()
    counts = (found.synthetic_counts, found.holdout_counts)
    shares = {side: _shares(count) for side, count in zip(sides, counts, strict=True)}
    counted = "distances to the nearest private row, of synthetic texts and of rows never seen"
    histogram = Histogram(edges=tuple(found.edges.tolist()), shares=shares, counted=counted)
    return Metrics(values=values, histograms={"memorization.nearest": histogram})


def measure_log_perplexity(
    base: LoadedModel, conditions: Conditions, test: LabelledTexts, *, config: MatchingEvaluationConfig
) -> Metrics:
    """Loss per token of each condition's texts under the public base model; `real` are test rows."""
    sets = {name: rows.texts for name, rows in conditions.named().items() if name != "real"}
    sets["real"] = sample_rows(test, config.test_rows, seed=config.public_seed).texts
    found = log_perplexities(base, sets, max_length=config.max_length)
    return Metrics(values={f"language_model.log_perplexity.{name}": loss for name, loss in found.items()})


def _histogram(sets: Mapping[str, Losses]) -> Histogram:
    """Shares over common bins from the least to the greatest value."""
    whole = np.concatenate(list(sets.values()))
    low, high = float(whole.min()), float(whole.max())
    edges = np.linspace(low, high if high > low else low + 1e-3, _BINS + 1)
    shares = {name: _shares(np.histogram(values, edges)[0]) for name, values in sets.items()}
    counted = "matching losses of kept, dropped and prompt-only texts"
    return Histogram(edges=tuple(edges.tolist()), shares=shares, counted=counted)


def _shares(counts: npt.NDArray[Any]) -> tuple[float, ...]:
    return tuple((counts / counts.sum()).tolist())

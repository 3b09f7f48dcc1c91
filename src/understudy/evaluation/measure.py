"""The whole evaluation of one synthetic data set, in pieces that can each be a task.

Each `measure_*` function takes texts and embeddings and returns `Metrics`; `merge` joins them;
`evaluate_synthetic` runs them all. Every figure is computed on private members, holdouts or test rows, is
internal, and never influences anything exported: no sample, checkpoint, hyper-parameter or method is chosen
by it.

Who is compared with whom: accuracies on `real_test`; fidelity and diversity with the real rows that the
generator never saw (`real_test` and `holdout` together); memorisation with `real_train` beside `holdout`, or
beside `real_test` where there is no holdout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from understudy.errors import InputError, RowError
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics, merge
from understudy.evaluation.rows import Conditions, LabelledTexts, at_most, texts_at_most
from understudy.evaluation.statistics.intervals import (
    FEWEST_OF_A_LABEL,
    Correct,
    Interval,
    accuracy_interval,
    mean_recall,
    paired_bootstrap,
    paired_recall_difference,
)
from understudy.evaluation.texts import diversity, fidelity, memorization, single_rows, words
from understudy.evaluation.texts.encoder import FloatArray, embed_sets
from understudy.evaluation.texts.identifiers import identify
from understudy.evaluation.texts.words import Texts, TokenizedTexts
from understudy.evaluation.utility import accuracy
from understudy.progress import Progress

__all__ = [
    "Conditions",
    "Embedder",
    "LabelledTexts",
    "Metrics",
    "evaluate_synthetic",
    "measure_diversity",
    "measure_fidelity",
    "measure_identifiers",
    "measure_label_fidelity",
    "measure_memorization",
    "measure_utility",
    "merge",
]

Embedder = Callable[[Sequence[str]], FloatArray]


def evaluate_synthetic(
    conditions: Conditions,
    real_test: LabelledTexts,
    holdout: Sequence[str] | None = None,
    *,
    config: EvaluationConfig,
    embedder: Embedder,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Metrics:
    """Utility, label fidelity, fidelity, diversity and memorisation of one synthetic data set. Internal.

    Of more than `config.most_rows` real rows so many are drawn for what a model reads, the training rows and the test
    rows each. Words, copies and identifiers are those of all rows.

    Args:
        conditions: what was made, the private rows it was made from, and text from the same base model and prompts
            without private data, or None.
        real_test: real rows that the generator never saw; for measuring only.
        holdout: further real texts that the generator never saw, for the memorisation baseline.
        config: public settings.
        embedder: texts -> embeddings, such as `partial(embed, encoder=load_encoder(), cache=None)`; called once.
        device: torch device of the transformer classifier.
        progress: called with (transformer classifiers trained, classifiers); public numbers.

    Raises:
        InputError: when a set is empty or the sets declare different labels.
    """
    _check_sets(conditions, real_test)
    synthetic, real_train, holdout = conditions.synthetic.texts, conditions.real.texts, holdout or ()
    most, seed = config.most_rows, config.public_seed
    conditions = replace(conditions, real=at_most(conditions.real, most, seed=seed))
    tested, further = at_most(real_test, most, seed=seed), texts_at_most(holdout, most, seed=seed)
    sets = {name: rows.texts for name, rows in conditions.named().items()}
    embedded = embed_sets({**sets, "test": tested.texts, "holdout": further}, embedder)
    test_embedded, holdout_embedded = embedded.pop("test"), embedded.pop("holdout")
    unseen_embedded = np.concatenate([test_embedded, holdout_embedded])
    made, train, test, held = words.tokenize(synthetic, real_train, real_test.texts, holdout)
    return merge(
        measure_utility(conditions, tested, embedded, test_embedded, config=config, device=device, progress=progress),
        measure_label_fidelity(conditions, tested, embedded, test_embedded),
        measure_fidelity(embedded["synthetic"], unseen_embedded, embedded.get("prompt_only"), config=config),
        measure_diversity(made, words.join(test, held), seed=config.public_seed),
        measure_memorization(made, train, held or test, seed=config.public_seed, level=config.level),
        measure_identifiers(synthetic, real_train, holdout or real_test.texts, level=config.level),
    )


def measure_utility(
    conditions: Conditions,
    test: LabelledTexts,
    embedded: Mapping[str, FloatArray],
    test_embedded: FloatArray,
    *,
    config: EvaluationConfig,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Metrics:
    """Accuracy on real test rows of classifiers trained on each condition, with intervals and paired differences.

    Args:
        conditions: training sets.
        test: real test rows.
        embedded: condition -> (n, d) embeddings.
        test_embedded: (m, d).
        config: public settings; `headline="probe"` skips the transformer.
        device: of the transformer.
        progress: called with (transformers trained, transformers).
    """
    correct = {"probe": _probe_correct(conditions, test, embedded, test_embedded)}
    if config.headline == "transformer":
        correct["transformer"] = _transformer_correct(conditions, test, config, device, progress)
    values: dict[str, float] = {
        "utility.real_rows": float(len(conditions.real.texts)),
        "utility.test_rows": float(len(test.texts)),
        "utility.confidence_level": config.level,
    }
    counts = np.bincount(np.asarray(test.labels, dtype=np.int64))
    values["utility.majority.accuracy"] = float(counts.max() / counts.sum())
    enough = bool(counts[counts > 0].min() >= FEWEST_OF_A_LABEL)
    intervals: dict[str, tuple[float, float]] = {}
    for evaluator, by_condition in correct.items():
        for condition, table in by_condition.items():
            found = accuracy_interval(table, **config.bootstrap)
            _put(values, intervals, f"utility.{evaluator}.{condition}.accuracy", found)
            if evaluator == config.headline:
                _put(values, intervals, f"utility.{condition}.accuracy", found)
                recall = mean_recall(table, test.labels, **config.bootstrap)
                _put(values, intervals, f"utility.{condition}.mean_recall", recall)
    headline = correct[config.headline]
    for other in ("real", "prompt_only"):
        if other in headline:
            found = paired_bootstrap(headline["synthetic"], headline[other], **config.bootstrap)
            _put(values, intervals, f"utility.synthetic_minus_{other}.accuracy", found)
            found = paired_recall_difference(headline["synthetic"], headline[other], test.labels, **config.bootstrap)
            _put(values, intervals if enough else {}, f"utility.synthetic_minus_{other}.mean_recall", found)
    missing = [] if conditions.prompt_only else ["prompt-only accuracy: no prompt-only text was given"]
    if not enough:
        missing.append(
            f"interval of the difference of mean recalls: a label has {counts[counts > 0].min()} test rows, "
            f"{FEWEST_OF_A_LABEL} are the least"
        )
    return Metrics(values=values, intervals=intervals, missing=tuple(missing))


def measure_label_fidelity(
    conditions: Conditions, test: LabelledTexts, embedded: Mapping[str, FloatArray], test_embedded: FloatArray
) -> Metrics:
    """Agreement of the declared labels with a probe trained on real rows, which is not the steering head."""
    probe = accuracy.fit_probe(embedded["real"], conditions.real.labels)
    values = {"label_fidelity.real": accuracy.score(probe(test_embedded), test.labels).accuracy}
    for condition, rows in conditions.named().items():
        if condition == "real":
            continue
        found = accuracy.label_fidelity(embedded[condition], rows.labels, probe)
        values[f"label_fidelity.{condition}"] = found.share
        if condition == "synthetic":
            values |= {f"label_fidelity.synthetic.label_{i}": share for i, share in found.by_label.items()}
    return Metrics(values=values)


def measure_fidelity(
    synthetic: FloatArray,
    unseen: FloatArray,
    prompt_only: FloatArray | None = None,
    *,
    config: EvaluationConfig,
) -> Metrics:
    """MAUVE and Frechet distance to real text never seen, each beside real against real of the same size.

    MAUVE is the mean over `floor_splits` random subsamples of at most 2,000 rows per set (`fidelity.mauve_rows` says
    how many), the Frechet distance over as many random halves of the unseen rows. Intervals are over these draws.

    Args:
        synthetic: (n, d) embeddings.
        unseen: (m, d) embeddings of real rows that the generator never saw.
        prompt_only: (k, d) embeddings, or None.
        config: public settings.
    """
    if len(unseen) < 4 or len(synthetic) < 2:
        why = f"{len(synthetic)} synthetic and {len(unseen)} unseen real rows; 2 and 4 are the least"
        return Metrics(missing=(f"MAUVE and Frechet distance: {why}",))
    sets = {"": synthetic}
    if prompt_only is not None and len(prompt_only) >= 2:
        sets["prompt_only."] = prompt_only
    drawing: dict[str, Any] = {
        "seed": config.public_seed,
        "splits": config.floor_splits,
        "level": config.level,
    }
    mauve = fidelity.compare(fidelity.MAUVE, sets, unseen, **drawing)
    frechet = fidelity.compare(fidelity.FRECHET, sets, unseen, **drawing)
    estimates = {"mauve_ceiling": mauve.reference, "frechet_floor": frechet.reference}
    for name, found in (("mauve", mauve), ("frechet", frechet)):
        estimates |= {f"{prefix}{name}": estimate for prefix, estimate in found.sets.items()}
    sizes = {"fidelity.rows": float(frechet.reference.rows), "fidelity.mauve_rows": float(mauve.reference.rows)}
    return Metrics(
        values={f"fidelity.{name}": estimate.value for name, estimate in estimates.items()} | sizes,
        intervals={f"fidelity.{name}": found.interval for name, found in estimates.items() if found.interval},
    )


def measure_diversity(synthetic: Texts, unseen: Texts, *, seed: int) -> Metrics:
    """Distinct n-grams, duplicates and lengths of the synthetic and of as many real texts, tokenised or not."""
    synthetic, unseen = words.tokenized(synthetic, unseen)
    made, real = memorization.same_size(synthetic, unseen, seed=seed)
    if not made:
        return Metrics(missing=("diversity: there is no synthetic or no unseen real text",))
    values = {"diversity.rows": float(len(made))}
    for prefix, texts in (("", made), ("real.", real)):
        for n, share in diversity.distinct_shares(texts, 3).items():
            values[f"diversity.{prefix}distinct_{n}"] = share
        values[f"diversity.{prefix}duplicates"] = diversity.duplicate_share(texts)
        values[f"diversity.{prefix}length_mean"] = float(np.mean(diversity.lengths(texts)))
        for q, length in diversity.length_quantiles(texts).items():
            values[f"diversity.{prefix}length_q{round(100 * q)}"] = length
    histogram = diversity.length_histogram({"synthetic": synthetic, "real": unseen})
    return Metrics(values=values, lengths=histogram)


def measure_memorization(
    synthetic: Texts, private: Texts, holdout: Texts | None, *, seed: int, level: float = 0.95
) -> Metrics:
    """Word-for-word traces of the private rows in the synthetic texts, beside as many holdout rows.

    n-gram overlap, longest verbatim match, exact duplicates and words of single rows, of all texts, tokenised or not. A
    diagnostic, not a privacy proof.
    """
    made, members, *rest = words.tokenized(synthetic, private, *([holdout] if holdout else []))
    everyone = _copies(made, members)
    values = {f"memorization.{name}.all_private": found for name, found in everyone.items()}
    if not rest:
        return Metrics(values=values, missing=("n-gram overlap: no holdout rows were given to compare with",))
    same, others = memorization.same_size(members, rest[0], seed=seed)
    values["memorization.rows"] = float(len(same))
    for n, beside in memorization.ngram_overlap_beside(made, same, others, seed=seed).items():
        values[f"memorization.ngram_{n}.synthetic"] = beside.private
        values[f"memorization.ngram_{n}.holdout"] = beside.holdout
    sides = {"synthetic": everyone if same is members else _copies(made, same), "holdout": _copies(made, others)}
    for side, copies in sides.items():
        values |= {f"memorization.{name}.{side}": found for name, found in copies.items()}
    return merge(Metrics(values=values), _of_single_rows("words", made, members, rest[0], level=level))


def measure_identifiers(
    synthetic: Sequence[str], private: Sequence[str], holdout: Sequence[str] | None, *, level: float = 0.95
) -> Metrics:
    """Which addresses, long numbers and codes of the private rows stand in the synthetic texts, by their kind.

    Those of single rows beside those of rows never seen, where there are such rows. A diagnostic, not a privacy proof.
    """
    made, members, held = identify(synthetic, private, holdout or ())
    values: dict[str, float] = {}
    for kind, found in single_rows.replay_by_kind(made, members).items():
        name = f"memorization.identifiers.{kind}"
        values[f"{name}.private"] = float(found.held)
        values[f"{name}.replayed"] = float(found.replayed)
        values[f"{name}.replayed_alone"] = float(found.replayed_alone)
    if not holdout:
        return Metrics(values=values)
    beside = _of_single_rows("identifiers", made, members, held, level=level)
    return merge(Metrics(values=values), beside)


def _of_single_rows(
    things: str, made: TokenizedTexts, private: TokenizedTexts, holdout: TokenizedTexts, *, level: float
) -> Metrics:
    found = single_rows.replay_beside(made, private, holdout, level=level)
    name = f"memorization.lone_{things}"
    values: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for side, replay in (("synthetic", found.private), ("holdout", found.holdout)):
        values[f"{name}_held.{side}"] = float(replay.held)
        if replay.held:
            values[f"{name}.{side}"] = replay.share
    if found.difference:
        _put(values, intervals, f"{name}.synthetic_minus_holdout", found.difference)
    return Metrics(values=values, intervals=intervals)


def _copies(made: TokenizedTexts, reference: TokenizedTexts) -> dict[str, float]:
    return {
        "longest_match": float(memorization.longest_verbatim_match(made, reference).words),
        "exact_duplicates": memorization.duplicate_share(made, reference),
    }


def _check_sets(conditions: Conditions, test: LabelledTexts) -> None:
    sets = {**conditions.named(), "test": test}
    declared = tuple(test.label_names)
    for name, rows in sets.items():
        if len(rows.texts) == 0 or len(rows.texts) != len(rows.labels):
            raise RowError(
                f"{name}: expected texts with one label each, found {len(rows.texts)} texts, {len(rows.labels)} labels"
            )
        if tuple(rows.label_names) != declared:
            raise InputError(
                f"{name}: expected the test rows' labels {declared}, found {tuple(rows.label_names)}; "
                "declare the same label names, in the same order, for every set"
            )


def _probe_correct(
    conditions: Conditions, test: LabelledTexts, embedded: Mapping[str, FloatArray], test_embedded: FloatArray
) -> dict[str, Correct]:
    return {
        condition: accuracy.score(
            accuracy.fit_probe(embedded[condition], rows.labels)(test_embedded), test.labels
        ).correct[None]
        for condition, rows in conditions.named().items()
    }


def _transformer_correct(
    conditions: Conditions, test: LabelledTexts, config: EvaluationConfig, device: str, progress: Progress | None
) -> dict[str, Correct]:
    named, settings = conditions.named(), config.classifier
    found: dict[str, list[Correct]] = {condition: [] for condition in named}
    every = [(condition, seed) for condition in named for seed in config.seeds]
    for number, (condition, seed) in enumerate(every, 1):
        predicted = accuracy.transformer_accuracy(named[condition], test, config=settings, seed=seed, device=device)
        found[condition].append(predicted.correct)
        if progress is not None:
            progress(number, len(every))
    return {condition: np.stack(tables) for condition, tables in found.items()}


def _put(values: dict[str, float], intervals: dict[str, tuple[float, float]], name: str, found: Interval) -> None:
    values[name] = found.value
    intervals[name] = (found.low, found.high)

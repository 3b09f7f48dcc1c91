"""The figures of rounds: preferences are compared with what the run's own scorer says without noise."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.names import check_names
from understudy.evaluation.utility.next_token import ClientScores
from understudy.methods.preference_optimization import evaluation
from understudy.methods.preference_optimization.clients import Clients, client_means
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.evaluation import EvaluationInputs, measure_next_token, measure_rounds
from understudy.methods.preference_optimization.pool import ClientPool
from understudy.methods.preference_optimization.preferences import preference_pairs
from understudy.methods.preference_optimization.stored import CANDIDATE_SCHEMA, Candidates

PROMPTS, PER_PROMPT, CLIENTS, SAMPLES, DIMENSION, CLASSES = 12, 4, 40, 3, 6, 2


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def population(*, labelled: bool) -> tuple[ClientPool, Candidates]:
    """Clients of three samples, the last one without any, and candidates, of two labels each or of none."""
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(CLIENTS), SAMPLES)
    embeddings = unit(random.normal(size=(len(owner), DIMENSION)))
    labels = random.integers(CLASSES, size=len(owner)) if labelled else None
    classes = CLASSES if labelled else 1
    means = client_means(embeddings, owner, slots=CLIENTS + 1, labels=labels, classes=classes)
    count = PROMPTS * PER_PROMPT
    of = np.repeat(np.arange(PROMPTS) % CLASSES, PER_PROMPT).tolist() if labelled else [None] * count
    table = pa.table(
        {"prompt": ["a"] * count, "text": [f"text {i}" for i in range(count)], "label": of}, schema=CANDIDATE_SCHEMA
    )
    return ClientPool(means, embeddings, owner, labels), Candidates(table, unit(random.normal(size=(count, DIMENSION))))


def said(pool: ClientPool, candidates: Candidates, scorer: str) -> np.ndarray:
    """What clients say of each candidate, by a loop over their samples."""
    total = np.zeros(len(candidates.embeddings))
    for sample, _ in enumerate(pool.owner):
        cosines = candidates.embeddings.astype(np.float64) @ pool.embeddings[sample].astype(np.float64)
        if pool.labels is not None:
            cosines[candidates.labels != pool.labels[sample]] = -np.inf
        if scorer == "histogram":
            total[cosines.argmax()] += 1 / SAMPLES
        else:
            own = pool.owner == pool.owner[sample]
            alike = own if pool.labels is None else own & (pool.labels == pool.labels[sample])
            total += np.where(np.isfinite(cosines), cosines, 0.0) / alike.sum()
    return total


def inputs_of(pool: ClientPool, candidates: Candidates, scores: np.ndarray) -> EvaluationInputs:
    return EvaluationInputs(
        synthetic=["a"],
        prompt_only=["b"],
        train=pa.table({}),
        test=pa.table({}),
        pool=pool,
        candidates=[candidates],
        scores=[torch.from_numpy(scores)],
        trained=[PROMPTS],
    )


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("scorer", ["cosine", "histogram"])
def test_recovery_is_measured_by_the_scorer_of_the_run(scorer, labelled):
    pool, candidates = population(labelled=labelled)
    config = PreferenceOptimizationConfig.model_validate(
        {
            "scoring": {"scorer": scorer},
            "candidates": {"prompts": PROMPTS, "per_prompt": PER_PROMPT},
            "preferences": {"rejected_rank": 3},
        }
    )
    exact = said(pool, candidates, scorer)
    scores = exact + np.random.default_rng(1).normal(size=len(exact))
    pairs = preference_pairs(scores, per_prompt=PER_PROMPT, rejected_rank=3)
    inputs = inputs_of(pool, candidates, scores)
    found = measure_rounds(inputs, np.zeros((0, DIMENSION)), config=config, measuring=EvaluationConfig(profile="tiny"))
    expected = float((exact[pairs[:, 0]] > exact[pairs[:, 1]] + 1e-9).mean())
    assert found.values["rounds.recovery.round_1"] == expected
    other = said(pool, candidates, "cosine" if scorer == "histogram" else "histogram")
    assert expected != float((other[pairs[:, 0]] > other[pairs[:, 1]]).mean())  # the two can be told apart here


def test_of_many_real_samples_the_downstream_model_is_tuned_on_some_and_the_report_is_told_how_many(monkeypatch):
    read, right = [], iter([10, 20, 30, 5])
    monkeypatch.setattr(evaluation, "fine_tune", lambda texts, **_: read.append(list(texts)))

    def scored(_, held_out, **__):
        tokens, correct = np.full(len(held_out), 100), np.full(len(held_out), next(right))
        return ClientScores(tokens=tokens, correct=correct, loss=np.full(len(held_out), 9.0))

    monkeypatch.setattr(evaluation, "score_clients", scored)
    samples = tuple(f"sample {number}" for number in range(100))
    train = Clients(20, samples, np.repeat(np.arange(20), 5), np.zeros(20, np.int64))
    inputs = inputs_of(*population(labelled=False), np.zeros(1))
    found = {}
    for most in (30, 100):
        right = iter([10, 20, 30, 5])
        measuring = EvaluationConfig(profile="tiny", most_rows=most)
        found[most] = measure_next_token(inputs, train, train, measuring=measuring).values
        assert len(set(read[-2])) == len(read[-2]) == found[most]["utility.next_token.real_samples"] == most
        assert set(read[-2]) <= set(samples)
        assert read[-4:-2] == [["b"], ["a"]]
    check_names(found[30])

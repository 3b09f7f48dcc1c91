"""What a round costs one client: numbers by the candidates, seconds at declared rates, and a clock on made-up texts."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from understudy.methods.preference_optimization import costs
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.costs import made_up_client, measure_costs
from understudy.methods.preference_optimization.method import charged_settings
from understudy.methods.preference_optimization.stored import CANDIDATE_SCHEMA, Candidates
from understudy.runs.overrides import apply_overrides

PROMPTS, PER_PROMPT, DIMENSION = 6, 4, 8


def candidates(*, labelled=False):
    count = PROMPTS * PER_PROMPT
    of = np.repeat(np.arange(PROMPTS) % 2, PER_PROMPT).tolist() if labelled else [None] * count
    table = pa.table(
        {"prompt": ["a"] * count, "text": [f"text {i}" for i in range(count)], "label": of}, schema=CANDIDATE_SCHEMA
    )
    rows = np.random.default_rng(0).normal(size=(count, DIMENSION)).astype(np.float32)
    return Candidates(table, rows)


def config(*more):
    return apply_overrides(
        PreferenceOptimizationConfig(), [f"candidates.prompts={PROMPTS}", f"candidates.per_prompt={PER_PROMPT}", *more]
    )


def ticking(*seconds):
    """A clock of which each scoring takes the next of these seconds."""
    marks = [0.0]
    for one in seconds:
        marks += [marks[-1] + 100, marks[-1] + 100 + one]
    return iter(marks[1:]).__next__


def test_numbers_and_seconds_by_the_declared_rates():
    rates = ("costs.download_mbit_per_second=4", "costs.upload_mbit_per_second=2")
    found = measure_costs(candidates(), config(*rates), clock=ticking(50, 1, 3, 2, 9, 2)).values
    count = PROMPTS * PER_PROMPT
    assert (found["costs.download.floats"], found["costs.upload.floats"]) == (count * DIMENSION, count)
    assert found["costs.download.seconds"] == pytest.approx(count * DIMENSION * 32 / 4e6)
    assert found["costs.upload.seconds"] == pytest.approx(count * 32 / 2e6)
    assert (found["costs.download.mbit_per_second"], found["costs.upload.mbit_per_second"]) == (4, 2)
    assert found["costs.scoring.seconds"] == 2, "the median, without the first, which warms up"
    masked = measure_costs(candidates(), config(*rates, "scoring.aggregation=masked")).values
    assert masked["costs.upload.seconds"] == 2 * found["costs.upload.seconds"], "words of a masked sum are longer"
    assert masked["costs.download.seconds"] == found["costs.download.seconds"]


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("scorer", ["cosine", "histogram"])
def test_the_clock_runs_over_the_whole_vector_of_one_made_up_client(scorer, labelled, monkeypatch):
    """It is the run's own vector, for which the made-up client has all that a real one has, and it is not zero."""
    found, plain = [], costs.every_vector

    def kept(*arguments, **named):
        found.append(plain(*arguments, **named))
        return found[-1]

    monkeypatch.setattr(costs, "every_vector", kept)
    measure_costs(candidates(labelled=labelled), config(f"scoring.scorer={scorer}"))
    assert len(found) == 6
    assert all(np.array_equal(first, second) for first, second in pairwise(found))
    assert found[0].shape == (1, PROMPTS * PER_PROMPT)
    assert 0.9 < np.linalg.norm(found[0]) <= 1


def test_the_made_up_client_follows_from_the_public_seed():
    first, second = (made_up_client(candidates(), config(f"public_seed={seed}")) for seed in (0, 1))
    assert np.array_equal(first.embeddings, made_up_client(candidates(), config()).embeddings)
    assert not np.array_equal(first.embeddings, second.embeddings)


def test_another_network_is_no_other_charge():
    charged = {charged_settings(config(f"costs.upload_mbit_per_second={rate}")) for rate in (1, 2)}
    assert len(charged) == 1

"""What is left of class means for whoever knows all rows but the canaries."""

import math
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from understudy.auditing.known_rows import coin_scores
from understudy.compute import ON_CPU
from understudy.data.private_rows import private_rows
from understudy.data.tables import LABELLED_SCHEMA
from understudy.errors import InputError
from understudy.evaluation.texts.encoder import Encoder
from understudy.methods.conditional_generation import left_over as module
from understudy.methods.conditional_generation.class_means import release_class_means
from understudy.methods.conditional_generation.left_over import left_over
from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
from understudy.methods.conditional_generation.storage import StoredModel, save_trained
from understudy.methods.reading import Made, SumsToRead
from understudy.privacy.grid import charged_sensitivity

D = 24
NULL = {"text": None, "label": None}
OTHERS = [NULL if row == 5 else {"text": f"row {row}", "label": row % 3} for row in range(40)]
CANARIES = [{"text": f"canary {number}", "label": number % 3} for number in range(18)]
COINS = [number * number % 5 < 2 for number in range(18)]


def of_letters(texts):
    """A vector of any length for each text, and of its letters alone."""
    seeds = [int.from_bytes(text.encode()[-8:]) for text in texts]
    return np.stack([3 * np.random.default_rng(seed).standard_normal(D) for seed in seeds]).astype(np.float32)


SENTENCES = Encoder("letters", "d" * 64, D, of_letters)


@pytest.fixture
def read(untrained, make_config, make_mechanisms, label_names, tmp_path, monkeypatch):
    """What is left of a release among whose rows canaries stand by coins."""
    monkeypatch.setattr(module.encoder, "load_encoder", lambda **_: SENTENCES)

    def read(*, epsilon=math.inf, charge="charge", encoder=SENTENCES, further=0, **changes):
        config = make_config(**{"variant": "untrained", **changes})
        met = [*OTHERS, *(row if coin else NULL for row, coin in zip(CANARIES, COINS, strict=True))]
        with_canaries, canaries, others = (
            pa.Table.from_pylist(rows, schema=LABELLED_SCHEMA)
            for rows in (met, CANARIES, [*OTHERS, *[NULL] * (len(CANARIES) + further)])
        )
        queries = queries_of(config, n=len(met), epsilon=epsilon, delta=1e-5)
        asked = Asked(config, schedule_of(queries), make_mechanisms(schedule_of(queries), charge=charge))
        means = None
        if asked.schedule.means_noise is not None:
            means = release_class_means(private_rows(with_canaries, label_names), asked, encoder)
        folder = tmp_path / f"{charge} at {epsilon}"
        folder.mkdir()
        save_trained(StoredModel(untrained, config, None, means), folder)
        return left_over(SumsToRead(canaries, others, label_names, config, queries, Made("model", folder), ON_CPU))

    return read


def test_without_noise_the_coins_are_read_off(read):
    found = read()
    assert found.deviation == 0
    scores, is_in = coin_scores(found), np.array(COINS)
    assert scores[is_in].min() > 0.2
    assert scores[~is_in].max() < -0.2


def test_of_the_other_rows_only_their_sums_are_held(read):
    """A vector for each row and label would be 11 MB here, and gigabytes of a large table."""
    tracemalloc.start()
    try:
        read(further=20_000)
        assert tracemalloc.get_traced_memory()[1] < 6e6
    finally:
        tracemalloc.stop()


def test_how_long_a_sum_was_is_not_known_and_not_used(read):
    """What a canary adds along its mean is left out: the products are those of what is beside it."""
    found = read()
    vectors = of_letters([row["text"] for row in CANARIES]).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    in_all = [*OTHERS, *(row for row, coin in zip(CANARIES, COINS, strict=True) if coin)]
    for label in range(3):
        known = of_letters([row["text"] for row in in_all if row["label"] == label]).astype(np.float64)
        total = (known / np.linalg.norm(known, axis=1, keepdims=True)).sum(0)
        own = [number for number, row in enumerate(CANARIES) if row["label"] == label]
        beside = vectors[own] - np.outer(vectors[own] @ total, total) / (total @ total)
        assert np.allclose(found.gram[own][:, own], beside @ beside.T, atol=1e-5)
        signs = np.array(COINS, dtype=np.float64)[own] - 0.5
        assert np.allclose(found.against[own], beside @ (signs @ beside), atol=1e-4)
        others = [number for number in range(18) if number not in own]
        assert not found.gram[own][:, others].any()


def test_the_noise_is_that_of_the_query(read, make_config):
    seen = []
    for number in range(12):
        found = read(epsilon=50.0, charge=f"charge {number}")
        signs = np.array(COINS, dtype=np.float64) - 0.5
        exact = found.gram.numpy() @ signs
        seen.append((found.against.numpy() - exact) / np.sqrt(found.gram.diagonal().numpy()))
    (query,) = queries_of(make_config(variant="untrained"), n=58, epsilon=50.0, delta=1e-5)
    # A unit is its vector, of norm 1, beside half a unit of the count, all scaled to norm 1.
    expected = query.noise_multiplier * charged_sensitivity(1.0) * math.sqrt(1.25)
    assert found.deviation == pytest.approx(expected, rel=0.1)
    assert float(np.std(seen)) == pytest.approx(expected, rel=0.2)


def test_without_class_means_there_is_no_such_attacker(read):
    assert read(variant="naive", selection={"draws": 1}) is None


def test_another_encoder_is_refused(read):
    with pytest.raises(InputError, match="expected the sentence encoder"):
        read(encoder=Encoder("others", "e" * 64, D, of_letters))

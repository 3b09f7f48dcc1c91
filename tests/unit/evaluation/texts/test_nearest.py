import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from understudy.evaluation.texts import nearest
from understudy.evaluation.texts.encoder import embed
from understudy.evaluation.texts.language_model import language_model_loss_of_texts
from understudy.evaluation.texts.nearest import distances_to_nearest, log_perplexities, nearest_real
from understudy.models.loading import load_model

points = st.integers(1, 9).flatmap(lambda n: arrays(np.float64, (n, 3), elements=st.floats(-5, 5, width=32)))


@given(points, points)
def test_distances_are_those_of_trying_every_pair(rows, reference):
    by_hand = [min(np.linalg.norm(row - other) for other in reference) for row in rows]
    assert distances_to_nearest(rows, reference) == pytest.approx(by_hand, abs=1e-5)


def test_chunks_do_not_matter(monkeypatch):
    generator = np.random.default_rng(0)
    rows, reference = generator.normal(size=(50, 4)), generator.normal(size=(30, 4))
    whole = distances_to_nearest(rows, reference)
    monkeypatch.setattr(nearest, "_CHUNK", 7)
    assert np.array_equal(distances_to_nearest(rows, reference), whole)


def test_blocks_of_references_do_not_matter(monkeypatch):
    generator = np.random.default_rng(0)
    rows, reference = generator.normal(size=(50, 4)), generator.normal(size=(30, 4))
    whole = distances_to_nearest(rows, reference)
    monkeypatch.setattr(nearest, "_REFERENCES", 7)
    assert distances_to_nearest(rows, reference) == pytest.approx(whole, abs=1e-7)


def test_of_more_texts_than_the_limit_some_are_compared_with_every_real_row(monkeypatch):
    monkeypatch.setattr(nearest, "MOST_COMPARED", 20)
    generator = np.random.default_rng(0)
    real, whole, more = (generator.normal(size=(n, 3)) for n in (60, 20, 21))
    found = nearest_real(more, real, whole, seed=1)
    assert np.array_equal(found.holdout, distances_to_nearest(whole, real))  # at the limit: all of them
    everyone = distances_to_nearest(more, real).tolist()
    assert len(found.synthetic) == 20
    assert len(set(found.synthetic)) == 20
    assert set(found.synthetic) <= set(everyone)
    again, other = nearest_real(more, real, whole, seed=1), nearest_real(more, real, whole, seed=2)
    assert np.array_equal(again.synthetic, found.synthetic)
    assert not np.array_equal(other.synthetic, found.synthetic)


def test_a_copy_is_found_beside_a_holdout(encoder):
    real = ["the plot is thin", "a warm and funny film", "nothing happens for two hours"]
    synthetic = ["A warm and funny film", "what a lovely cast", "a warm and funny film"]
    holdout = ["the ending is clumsy", "great music"]
    vectors = [embed(texts, encoder) for texts in (synthetic, real, holdout)]
    found = nearest_real(*vectors, bins=10)
    assert found.synthetic[2] < 1e-3
    assert found.closest[0] < 1e-3 < 0.3 < found.closest[1]
    assert found.closer_than_holdout(0.0) >= 1 / 3
    assert found.synthetic_counts.sum() == 3
    assert found.holdout_counts.sum() == 2


@given(points, points, points)
def test_the_histogram_counts_every_row_once_on_common_edges(synthetic, real, holdout):
    found = nearest_real(synthetic, real, holdout, bins=6)
    assert found.edges.shape == (7,)
    assert found.edges[0] == 0
    for counts, distances in ((found.synthetic_counts, found.synthetic), (found.holdout_counts, found.holdout)):
        assert counts.sum() == len(distances)
        by_hand = sum(found.edges[2] <= d < found.edges[3] for d in distances)
        assert counts[2] == by_hand
    assert found.median == (np.median(found.synthetic), np.median(found.holdout))


def test_rows_like_the_holdout_are_as_near_as_it():
    generator = np.random.default_rng(1)
    draw = [generator.normal(size=(n, 5)) for n in (2000, 300, 2000)]
    found = nearest_real(draw[0], draw[1], draw[2])
    assert found.closer_than_holdout(0.1) == pytest.approx(0.1, abs=0.03)
    copied = nearest_real(draw[1][:50] + 1e-3, draw[1], draw[2])
    assert copied.closer_than_holdout(0.1) == 1.0


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="expected"):
        distances_to_nearest(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="expected"):
        distances_to_nearest(np.zeros((2, 3)), np.zeros((0, 3)))
    with pytest.raises(ValueError, match="both sides"):
        nearest_real(np.zeros((0, 3)), np.zeros((2, 3)), np.zeros((1, 3)))


def test_log_perplexity_is_the_loss_per_token_of_each_set():
    base = load_model("tiny-gpt2")
    sets = {"english": ["the film was good", "a dull story"], "noise": ["qzx vvk wqj xxq", "kkq zxv qqw"]}
    found = log_perplexities(base, sets)
    assert list(found) == ["english", "noise"]
    assert found["english"] == language_model_loss_of_texts(base, sets["english"])
    assert found["english"] < found["noise"]
    with pytest.raises(ValueError, match="at least one text"):
        log_perplexities(base, {"none": []})

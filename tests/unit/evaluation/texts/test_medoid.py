"""The medoid against a double loop, and a spread that falls when a set collapses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from understudy.evaluation.texts.medoid import median_distance_to_medoid, medoid, principal_axes


def by_loop(rows: np.ndarray) -> tuple[int, float]:
    sums = [sum(float(np.linalg.norm(a - b)) for b in rows) for a in rows]
    best = min(range(len(rows)), key=lambda i: (round(sums[i], 7), i))
    return best, float(np.median([np.linalg.norm(rows[best] - b) for b in rows]))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 12), d=st.integers(1, 4), seed=st.integers(0, 10_000), grid=st.booleans())
def test_medoid_by_definition(n, d, seed, grid):
    rows = np.random.default_rng(seed).normal(size=(n, d)) + 50
    rows = np.round(rows) if grid else rows  # a grid has equal members and ties
    index, median = by_loop(rows)
    assert medoid(rows) == index
    assert median_distance_to_medoid(rows) == pytest.approx(median, abs=1e-12)


def test_more_rows_than_are_held_at_a_time():
    rows = np.random.default_rng(0).normal(size=(1100, 3)).astype(np.float32)
    distances = np.linalg.norm(rows[:, None].astype(float) - rows[None].astype(float), axis=2)
    best = int(distances.sum(1).argmin())
    assert medoid(rows) == best
    assert median_distance_to_medoid(rows) == pytest.approx(float(np.median(distances[best])), abs=1e-9)


def test_distances_in_the_principal_plane_of_other_rows():
    generator = np.random.default_rng(1)
    held_out, rows = generator.normal(size=(60, 5)) * [5, 1, 3, 0.1, 0.1], generator.normal(size=(40, 5))
    projected = PCA(2, svd_solver="full").fit(held_out).transform(rows)
    _, expected = by_loop(projected)
    assert median_distance_to_medoid(rows, axes_of=held_out) == pytest.approx(expected, abs=1e-9)
    assert median_distance_to_medoid(rows, axes_of=held_out) < median_distance_to_medoid(rows)
    axes = principal_axes(held_out, components=2, dimension=5)
    np.testing.assert_allclose(axes.T @ axes, np.eye(2), atol=1e-12)


def test_a_collapsed_set_lies_closer_to_its_medoid():
    rows = np.random.default_rng(2).normal(size=(100, 4))
    assert median_distance_to_medoid(0.1 * rows) == pytest.approx(0.1 * median_distance_to_medoid(rows))


def test_bad_input_is_refused():
    rows = np.ones((4, 3))
    for bad in (np.ones((0, 3)), np.ones(3), np.full((2, 2), np.nan)):
        with pytest.raises(ValueError, match="finite"):
            medoid(bad)
    with pytest.raises(ValueError, match="expected \\(m, 3\\)"):
        median_distance_to_medoid(rows, axes_of=np.ones((5, 2)))
    with pytest.raises(ValueError, match="components=4"):
        median_distance_to_medoid(rows, axes_of=np.ones((5, 3)), components=4)

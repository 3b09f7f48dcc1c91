from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from understudy.baselines.selection import herding, k_center, random_rows

# Few distinct values, so that ties and copies are common; multiples of 1/4 are exact in any order of summing.
points = st.integers(1, 7).flatmap(
    lambda n: arrays(np.float64, (n, 2), elements=st.integers(-8, 8).map(lambda i: i / 4))
)


def radius(rows, centers):
    return max(min(float(np.linalg.norm(row - center)) for center in centers) for row in rows)


@given(points, st.integers(1, 8))
def test_k_center_is_within_twice_the_best_radius(rows, count):
    chosen = k_center(rows, [0] * len(rows), classes=1, per_class=count)[0]
    size = min(count, len(rows))
    assert len(set(chosen.tolist())) == len(chosen) == size
    best = min(radius(rows, rows[list(subset)]) for subset in combinations(range(len(rows)), size))
    assert radius(rows, rows[chosen]) <= 2 * best + 1e-9


@given(points, st.integers(1, 8))
def test_k_center_takes_the_farthest_next(rows, count):
    chosen = k_center(rows, [0] * len(rows), classes=1, per_class=count)[0].tolist()
    to_mean = [float(((row - rows.mean(0)) ** 2).sum()) for row in rows]
    assert to_mean[chosen[0]] == pytest.approx(min(to_mean), abs=1e-9)
    for size in range(1, len(chosen)):
        gaps = {
            row: min(float(((rows[row] - rows[c]) ** 2).sum()) for c in chosen[:size])
            for row in range(len(rows))
            if row not in chosen[:size]
        }
        assert chosen[size] == min(row for row, gap in gaps.items() if gap == max(gaps.values()))


@given(points, st.integers(1, 8))
def test_herding_brings_the_mean_of_the_chosen_closest(rows, count):
    """Each choice against an independent loop over every row that is left."""
    chosen = herding(rows, [0] * len(rows), classes=1, per_class=count)[0].tolist()
    assert len(set(chosen)) == len(chosen) == min(count, len(rows))
    for size in range(len(chosen)):
        gaps = {
            row: float(np.linalg.norm(np.mean(rows[[*chosen[:size], row]], axis=0) - rows.mean(axis=0)))
            for row in range(len(rows))
            if row not in chosen[:size]
        }
        assert gaps[chosen[size]] <= min(gaps.values()) + 1e-9


def test_choices_by_hand():
    rows = np.array([[0.0], [1.0], [2.0], [3.0], [10.0]])  # mean 3.2
    assert herding(rows, [0] * 5, classes=1, per_class=3)[0].tolist() == [3, 2, 1]
    assert k_center(rows, [0] * 5, classes=1, per_class=3)[0].tolist() == [3, 4, 0]


def test_of_equals_the_earlier_row_is_taken():
    rows = np.zeros((4, 2))
    assert herding(rows, [0] * 4, classes=1, per_class=3)[0].tolist() == [0, 1, 2]
    assert k_center(rows, [0] * 4, classes=1, per_class=3)[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("select", [herding, k_center])
def test_classes_are_chosen_apart_with_equal_counts(select):
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(60, 5)), generator.integers(0, 3, 60)
    found = select(rows.astype(np.float32), labels.tolist(), classes=4, per_class=6)
    assert [len(part) for part in found] == [6, 6, 6, 0]
    for label in range(3):
        assert set(labels[found[label]]) == {label}
        own = np.flatnonzero(labels == label)
        alone = select(rows[own].astype(np.float32), [0] * len(own), classes=1, per_class=6)[0]
        assert found[label].tolist() == own[alone].tolist()


def test_random_rows_follow_their_generator_alone():
    labels = np.arange(40) % 3
    one, two, other = (
        random_rows(labels, classes=3, per_class=5, generator=np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert [part.tolist() for part in one] == [part.tolist() for part in two]
    assert [part.tolist() for part in one] != [part.tolist() for part in other]
    for label, part in enumerate(one):
        assert len(set(part.tolist())) == 5
        assert set(labels[part]) == {label}


def test_every_row_is_drawn_alike():
    generator = np.random.default_rng(0)
    counts = np.zeros(6)
    for _ in range(3000):
        counts[random_rows([0] * 6, classes=1, per_class=2, generator=generator)[0]] += 1
    assert counts / 3000 == pytest.approx(np.full(6, 1 / 3), abs=0.04)


def test_a_small_class_is_taken_whole():
    labels = [0, 1, 1, 1]
    assert random_rows(labels, classes=2, per_class=2, generator=np.random.default_rng(0))[0].tolist() == [0]
    assert sorted(herding(np.eye(4), labels, classes=2, per_class=9)[1].tolist()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("features", "labels", "per_class"),
    [(np.eye(3), [0, 1], 1), (np.zeros(3), [0, 1, 0], 1), (np.eye(2), [0, 2], 1), (np.eye(2), [0, 1], 0)],
)
def test_what_does_not_fit_is_refused(features, labels, per_class):
    with pytest.raises(ValueError, match="expected"):
        herding(features, labels, classes=2, per_class=per_class)

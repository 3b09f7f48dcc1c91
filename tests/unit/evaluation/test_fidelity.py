import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.evaluation import fidelity


def gaussian_rows(n, d, *, seed, mean=0.0, scale=1.0):
    return np.random.default_rng(seed).normal(mean, scale, (n, d))


def test_frechet_in_one_dimension_by_hand():
    # Means 1 and 5, sample variances 2 and 8: (1 - 5)^2 + (sqrt 2 - sqrt 8)^2 = 16 + 2.
    a, b = np.array([[0.0], [2.0]]), np.array([[3.0], [7.0]])
    assert fidelity.frechet_distance(a, b) == pytest.approx(18.0, abs=1e-12)


def test_frechet_of_diagonal_covariances_by_hand():
    # Rows +-e_i sqrt(c_i): mean 0, covariance 2 diag(c) / 3 for 4 rows in 2 dimensions. With c = (1, 4) and (4, 9):
    # 2/3 ((1 - 2)^2 + (2 - 3)^2) = 4/3.
    def cross(c, d):
        return np.array([[c, 0], [-c, 0], [0, d], [0, -d]], dtype=float)

    assert fidelity.frechet_distance(cross(1, 2), cross(2, 3)) == pytest.approx(4 / 3, abs=1e-12)


def test_frechet_agrees_with_the_square_root_of_a_matrix():
    from scipy.linalg import sqrtm

    a = gaussian_rows(80, 5, seed=1) @ gaussian_rows(5, 5, seed=2)
    b = gaussian_rows(60, 5, seed=3, mean=0.4) @ gaussian_rows(5, 5, seed=4)
    s_a, s_b = np.cov(a.T), np.cov(b.T)
    textbook = np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(s_a + s_b - 2 * np.real(sqrtm(s_a @ s_b)))
    assert fidelity.frechet_distance(a, b) == pytest.approx(textbook, rel=1e-9)


def test_frechet_with_fewer_rows_than_dimensions_is_that_of_the_subspace():
    # Four and five rows in a plane of 50 dimensions: the distance is the one inside the plane.
    plane = np.linalg.qr(gaussian_rows(50, 2, seed=5)).Q
    a, b = gaussian_rows(4, 2, seed=6), gaussian_rows(5, 2, seed=7, mean=1.0)
    inside = fidelity.frechet_distance(a, b)
    assert fidelity.frechet_distance(a @ plane.T, b @ plane.T) == pytest.approx(inside, rel=1e-9)


@given(st.integers(0, 10_000))
def test_frechet_is_symmetric_zero_on_itself_and_ignores_rotation(seed):
    a, b = gaussian_rows(7, 4, seed=seed), gaussian_rows(9, 4, seed=seed + 1, scale=2.0)
    rotation = np.linalg.qr(gaussian_rows(4, 4, seed=seed + 2)).Q
    distance = fidelity.frechet_distance(a, b)
    assert distance > 0
    assert fidelity.frechet_distance(b, a) == pytest.approx(distance, rel=1e-9)
    assert fidelity.frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
    assert fidelity.frechet_distance(a @ rotation, b @ rotation) == pytest.approx(distance, rel=1e-9)


def test_frechet_does_not_lose_a_small_difference_in_float32():
    a = gaussian_rows(500, 3, seed=8).astype(np.float32) + 1000
    b = a + np.float32(0.5)
    assert fidelity.frechet_distance(a, b) == pytest.approx(0.75, rel=1e-3)


def test_frechet_of_small_samples_is_biased_upwards():
    distances = [
        np.mean(
            [
                fidelity.frechet_distance(gaussian_rows(n, 8, seed=2 * s), gaussian_rows(n, 8, seed=2 * s + 1))
                for s in range(10)
            ]
        )
        for n in (10, 40, 160)
    ]
    assert distances[0] > 2 * distances[1] > 4 * distances[2] > 0


def test_frontier_of_equal_histograms_is_one():
    p = np.array([0.2, 0.3, 0.5])
    assert fidelity.frontier_area(p, p) == pytest.approx(1.0, abs=1e-12)


def test_frontier_of_disjoint_histograms_is_the_beta_integral():
    # KL(q|r) = -log(1 - w), KL(p|r) = -log w, so the curve is ((1 - w)^c, w^c) and its area is
    # c B(c + 1, c) = c Gamma(c + 1) Gamma(c) / Gamma(2 c + 1), which is 1/252 for c = 5.
    area = 5 * math.gamma(6) * math.gamma(5) / math.gamma(11)
    assert area == pytest.approx(1 / 252)
    p, q = np.array([0.5, 0.5, 0.0, 0.0]), np.array([0.0, 0.0, 0.1, 0.9])
    assert fidelity.frontier_area(p, q) == pytest.approx(area, rel=1e-4)


def test_frontier_of_two_cells_by_numerical_integration():
    p, q = np.array([0.8, 0.2]), np.array([0.3, 0.7])

    def kl(a, r):
        return sum(x * math.log(x / y) for x, y in zip(a, r, strict=True))

    from scipy.integrate import quad

    def slice_of(w):  # y dx along the curve, by central difference
        def x(v):
            return math.exp(-5 * kl(q, v * p + (1 - v) * q))

        step = 1e-6
        y = math.exp(-5 * kl(p, w * p + (1 - w) * q))
        return -y * (x(w + step) - x(w - step)) / (2 * step)

    inner, _ = quad(slice_of, 2e-6, 1 - 2e-6)
    # From w = 1 on the curve runs along the corner (exp(-5 KL(q|p)), 1) to (0, 1).
    whole = inner + math.exp(-5 * kl(q, p))
    assert fidelity.frontier_area(p, q) == pytest.approx(whole, abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(0, 1000))
def test_frontier_is_symmetric_and_between_its_bounds(weights, seed):
    p = np.array(weights) + 1e-3
    q = np.random.default_rng(seed).dirichlet(np.ones(len(weights)))
    p /= p.sum()
    area = fidelity.frontier_area(p, q)
    assert 1 / 252 - 1e-6 <= area <= 1 + 1e-9
    assert fidelity.frontier_area(q, p) == pytest.approx(area, abs=1e-6)


def test_mauve_orders_near_far_and_disjoint_sets():
    real = gaussian_rows(120, 6, seed=1, mean=1.0)
    near, far = gaussian_rows(120, 6, seed=2, mean=1.0), gaussian_rows(120, 6, seed=3, mean=0.3)
    disjoint = -gaussian_rows(120, 6, seed=4, mean=8.0)
    scores = [fidelity.mauve(real, other) for other in (real, near, far, disjoint)]
    assert scores[0] == pytest.approx(1.0)
    assert scores[0] > scores[1] > scores[2] > scores[3]
    assert scores[3] == pytest.approx(1 / 252, rel=1e-3)


def test_mauve_repeats_for_a_seed():
    a, b = gaussian_rows(60, 4, seed=1), gaussian_rows(60, 4, seed=2)
    assert fidelity.mauve(a, b, seed=3) == fidelity.mauve(a, b, seed=3)


def test_compare_puts_a_floor_of_the_same_size_beside():
    real, good = gaussian_rows(200, 4, seed=1), gaussian_rows(90, 4, seed=2)
    bad = gaussian_rows(90, 4, seed=3, mean=2.0)
    for_good = fidelity.compare(fidelity.frechet_distance, good, real, seed=0, splits=4)
    for_bad = fidelity.compare(fidelity.frechet_distance, bad, real, seed=0, splits=4)
    assert for_good.rows == 90
    assert for_good.value == pytest.approx(for_good.reference, rel=1.0)
    assert for_bad.value > 10 * for_bad.reference


def test_compare_takes_equal_sizes_from_all_three():
    sizes = set()

    def measure(a, b):
        sizes.update({len(a), len(b)})
        return 0.0

    assert fidelity.compare(measure, np.ones((500, 2)), np.ones((31, 2)), seed=0, splits=2).rows == 15
    assert sizes == {15}


@pytest.mark.parametrize(("a", "b"), [((1, 3), (5, 3)), ((5, 3), (5, 4)), ((5,), (5, 3))])
def test_wrong_shapes_are_refused(a, b):
    for measure in (fidelity.frechet_distance, fidelity.mauve):
        with pytest.raises(ValueError, match="expected two"):
            measure(np.ones(a), np.ones(b))


def test_too_few_rows_to_compare_are_refused():
    with pytest.raises(ValueError, match=r"4 real rows.*found 9 and 3"):
        fidelity.compare(fidelity.mauve, np.ones((9, 2)), np.ones((3, 2)), seed=0, splits=1)

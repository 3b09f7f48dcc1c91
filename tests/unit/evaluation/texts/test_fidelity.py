import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.evaluation.texts import fidelity


def frechet_distance(a, b):
    return fidelity.gaussian_distance(fidelity.fit_gaussian(a), fidelity.fit_gaussian(b))


def gaussian_rows(n, d, *, seed, mean=0.0, scale=1.0):
    return np.random.default_rng(seed).normal(mean, scale, (n, d))


def test_frechet_in_one_dimension_by_hand():
    # Means 1 and 5, sample variances 2 and 8: (1 - 5)^2 + (sqrt 2 - sqrt 8)^2 = 16 + 2.
    a, b = np.array([[0.0], [2.0]]), np.array([[3.0], [7.0]])
    assert frechet_distance(a, b) == pytest.approx(18.0, abs=1e-12)


def test_frechet_of_diagonal_covariances_by_hand():
    # Rows +-e_i sqrt(c_i): mean 0, covariance 2 diag(c) / 3 for 4 rows in 2 dimensions. With c = (1, 4) and (4, 9):
    # 2/3 ((1 - 2)^2 + (2 - 3)^2) = 4/3.
    def cross(c, d):
        return np.array([[c, 0], [-c, 0], [0, d], [0, -d]], dtype=float)

    assert frechet_distance(cross(1, 2), cross(2, 3)) == pytest.approx(4 / 3, abs=1e-12)


def test_frechet_agrees_with_the_square_root_of_a_matrix():
    from scipy.linalg import sqrtm

    a = gaussian_rows(80, 5, seed=1) @ gaussian_rows(5, 5, seed=2)
    b = gaussian_rows(60, 5, seed=3, mean=0.4) @ gaussian_rows(5, 5, seed=4)
    s_a, s_b = np.cov(a.T), np.cov(b.T)
    textbook = np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(s_a + s_b - 2 * np.real(sqrtm(s_a @ s_b)))
    assert frechet_distance(a, b) == pytest.approx(textbook, rel=1e-9)


@pytest.mark.parametrize("rows", [30, 31, 5000])  # fewer rows than dimensions, one more, more than one block
def test_frechet_of_float32_rows_agrees_with_the_square_root_of_a_matrix_in_float64(rows):
    from scipy.linalg import sqrtm

    d = 30
    a = (gaussian_rows(rows, d, seed=1) @ gaussian_rows(d, d, seed=2)).astype(np.float32)
    b = (gaussian_rows(2 * d + 1, d, seed=3, mean=0.4) @ gaussian_rows(d, d, seed=4)).astype(np.float32)
    s_a, s_b = np.cov(a.T.astype(np.float64)), np.cov(b.T.astype(np.float64))
    root = sqrtm(s_b)  # of full rank, so the textbook form is exact
    cross = sqrtm(root @ s_a @ root + 1e-14 * np.eye(d))
    shift = a.mean(0, dtype=np.float64) - b.mean(0, dtype=np.float64)
    textbook = np.square(shift).sum() + np.trace(s_a) + np.trace(s_b) - 2 * np.trace(np.real(cross))
    assert frechet_distance(a, b) == pytest.approx(textbook, rel=1e-6)


def test_a_gaussian_has_the_covariance_of_all_its_rows_with_a_small_factor():
    rows = gaussian_rows(9001, 6, seed=1) @ gaussian_rows(6, 6, seed=2)
    fitted = fidelity.fit_gaussian(rows)
    assert fitted.factor.shape == (6, 6)
    assert fitted.factor.T @ fitted.factor == pytest.approx(np.cov(rows.T), rel=1e-10)
    assert fitted.mean == pytest.approx(rows.mean(0))


def test_frechet_with_fewer_rows_than_dimensions_is_that_of_the_subspace():
    # Four and five rows in a plane of 50 dimensions: the distance is the one inside the plane.
    plane = np.linalg.qr(gaussian_rows(50, 2, seed=5)).Q
    a, b = gaussian_rows(4, 2, seed=6), gaussian_rows(5, 2, seed=7, mean=1.0)
    inside = frechet_distance(a, b)
    assert frechet_distance(a @ plane.T, b @ plane.T) == pytest.approx(inside, rel=1e-9)


@given(st.integers(0, 10_000))
def test_frechet_is_symmetric_zero_on_itself_and_ignores_rotation(seed):
    a, b = gaussian_rows(7, 4, seed=seed), gaussian_rows(9, 4, seed=seed + 1, scale=2.0)
    rotation = np.linalg.qr(gaussian_rows(4, 4, seed=seed + 2)).Q
    distance = frechet_distance(a, b)
    assert distance > 0
    assert frechet_distance(b, a) == pytest.approx(distance, rel=1e-9)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(a @ rotation, b @ rotation) == pytest.approx(distance, rel=1e-9)


def test_frechet_does_not_lose_a_small_difference_in_float32():
    a = gaussian_rows(500, 3, seed=8).astype(np.float32) + 1000
    b = a + np.float32(0.5)
    assert frechet_distance(a, b) == pytest.approx(0.75, rel=1e-3)


def test_frechet_of_small_samples_is_biased_upwards():
    distances = [
        np.mean(
            [frechet_distance(gaussian_rows(n, 8, seed=2 * s), gaussian_rows(n, 8, seed=2 * s + 1)) for s in range(10)]
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


@pytest.mark.parametrize("distinct", [np.zeros((1, 6)), np.eye(3, 6)], ids=["zero", "three"])
def test_mauve_warns_of_no_number_of_distinct_rows(distinct):
    """It would stand in a log; here every warning is an error."""
    rows = np.resize(distinct, (60, 6)).astype(np.float32)
    assert fidelity.mauve(rows, rows) == pytest.approx(1)


def test_mauve_repeats_for_a_seed():
    a, b = gaussian_rows(60, 4, seed=1), gaussian_rows(60, 4, seed=2)
    assert fidelity.mauve(a, b, seed=3) == fidelity.mauve(a, b, seed=3)


def test_mauve_agrees_with_the_steps_of_the_authors_code():
    # mauve-text, compute_mauve.py: normalise, PCA to 90 % of the variance, k-means of the union, divergence curve over
    # mixtures with both extreme points, mean of the areas along both axes; with scipy and scikit-learn for each step.
    from scipy.special import rel_entr
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.metrics import auc
    from sklearn.preprocessing import normalize

    a, b = gaussian_rows(150, 8, seed=1, mean=0.5), gaussian_rows(150, 8, seed=2, mean=0.3)
    union = normalize(np.concatenate([a, b]))
    reduced = PCA(0.9, svd_solver="full").fit_transform(union)
    cells = KMeans(15, n_init=5, random_state=7).fit_predict(reduced)
    p, q = (np.bincount(cells[part], minlength=15) / 150 for part in (slice(150), slice(150, 300)))
    mixtures = [w * p + (1 - w) * q for w in np.linspace(1e-6, 1 - 1e-6, 5000)]
    x, y = (np.exp(-5 * np.array([rel_entr(one, r).sum() for r in mixtures])) for one in (q, p))
    x, y = np.append(x, [1, 0]), np.append(y, [0, 1])
    order = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    expected = (auc(x[order[0]], y[order[0]]) + auc(y[order[1]], x[order[1]])) / 2
    assert fidelity.mauve(a, b, seed=7) == pytest.approx(expected, abs=1e-3)


def test_compare_puts_a_floor_of_the_same_size_beside():
    real, good = gaussian_rows(200, 4, seed=1), gaussian_rows(90, 4, seed=2)
    bad = gaussian_rows(90, 4, seed=3, mean=2.0)
    found = fidelity.compare(fidelity.FRECHET, {"good": good, "bad": bad}, real, seed=0, splits=4)
    assert found.sets["good"].rows == found.sets["bad"].rows == found.reference.rows == 90
    assert found.sets["good"].value == pytest.approx(found.reference.value, rel=1.0)
    assert found.sets["bad"].value > 10 * found.reference.value


def counting(calls, *, most_rows=None):
    """A measure of the first column's means that notes the rows it is given."""

    def summarise(rows):
        calls.append(tuple(rows[:, 0]))
        return rows[:, 0].mean()

    return fidelity.Measure(summarise, lambda a, b: abs(a - b), most_rows=most_rows)


def test_compare_takes_equal_sizes_from_all_three():
    calls = []
    sets = {"": gaussian_rows(500, 2, seed=1)}
    found = fidelity.compare(counting(calls), sets, gaussian_rows(31, 2, seed=2), seed=0, splits=2)
    assert found.sets[""].rows == found.reference.rows == 15
    assert {len(rows) for rows in calls} == {15}


def test_each_real_set_is_summarised_and_compared_once():
    calls, splits = [], 3
    sets = {"one": gaussian_rows(40, 2, seed=1), "two": gaussian_rows(40, 2, seed=2)}
    fidelity.compare(counting(calls), sets, gaussian_rows(80, 2, seed=3), seed=0, splits=splits)
    assert len(calls) == len(set(calls)) == splits * 4  # the two sets, and two disjoint halves of the real one


def test_all_sets_are_measured_at_the_size_of_the_smallest():
    """Otherwise of two draws of one distribution the smaller would look farther away."""
    calls = []
    one, two, real = gaussian_rows(100, 3, seed=1), gaussian_rows(20, 3, seed=2), gaussian_rows(400, 3, seed=3)
    found = fidelity.compare(counting(calls), {"one": one, "two": two}, real, seed=5, splits=2)
    assert found.sets["one"].rows == found.sets["two"].rows == found.reference.rows == 20
    assert {len(rows) for rows in calls} == {20}
    alone = fidelity.compare(fidelity.FRECHET, {"two": two}, real, seed=5, splits=2)
    both = fidelity.compare(fidelity.FRECHET, {"one": one, "two": two}, real, seed=5, splits=2)
    assert both.sets["two"] == alone.sets["two"]


@pytest.mark.parametrize(("real", "drawn"), [(39, 19), (40, 20), (42, 20), (400, 20)])
def test_rows_beyond_the_limit_are_subsampled_and_up_to_it_all_are_taken(real, drawn):
    calls = []
    rows = np.arange(float(real))[:, None]
    found = fidelity.compare(counting(calls, most_rows=20), {"": -rows - 1}, rows, seed=0, splits=8)
    assert found.reference.rows == found.sets[""].rows == drawn
    assert {len(call) for call in calls} == {drawn}
    per_split = [calls[start : start + 3] for start in range(0, len(calls), 3)]
    assert all(len({*first, *second}) == 2 * drawn for _, first, second in per_split)  # no row stands on both sides
    assert len({first for _, first, _ in per_split}) == 8


def test_mauve_of_a_set_within_the_limit_is_the_plain_one_of_its_halves(monkeypatch):
    made, real = gaussian_rows(40, 4, seed=1), gaussian_rows(80, 4, seed=2)
    monkeypatch.setattr(fidelity, "MAUVE", dataclasses.replace(fidelity.MAUVE, most_rows=40))
    found = fidelity.compare(fidelity.MAUVE, {"": made}, real, seed=3, splits=1)
    order = np.random.default_rng([3, 0]).permutation(80)
    assert found.reference.value == fidelity.mauve(real[order[40:]], real[order[:40]])
    assert found.reference.interval is None
    assert found.reference.rows == 40


def test_subsampled_mauve_lies_near_that_of_all_rows_and_repeats():
    real, near = gaussian_rows(1200, 4, seed=1, mean=0.5), gaussian_rows(600, 4, seed=2, mean=0.45)
    far = gaussian_rows(600, 4, seed=3, mean=-0.5)
    small = dataclasses.replace(fidelity.MAUVE, most_rows=200)
    sets = {"near": near, "far": far}
    whole = fidelity.compare(fidelity.MAUVE, sets, real, seed=0, splits=3)
    drawn = fidelity.compare(small, sets, real, seed=0, splits=3)
    assert whole.reference.rows == 600
    for name in sets:
        assert drawn.sets[name].value == pytest.approx(whole.sets[name].value, abs=0.1)
    assert drawn == fidelity.compare(small, sets, real, seed=0, splits=3)
    assert drawn != fidelity.compare(small, sets, real, seed=1, splits=3)


def test_the_interval_is_students_over_the_splits_and_ends_at_the_bounds():
    from scipy.stats import ttest_1samp

    calls = []
    real, made = gaussian_rows(60, 1, seed=1), gaussian_rows(60, 1, seed=2, mean=3.0)
    found = fidelity.compare(counting(calls), {"": made}, real, seed=0, splits=5, level=0.9).sets[""]
    values = [abs(np.mean(calls[i]) - np.mean(calls[i + 1])) for i in range(0, 15, 3)]  # made, first, second
    expected = ttest_1samp(values, 0).confidence_interval(0.9)
    assert found.value == pytest.approx(np.mean(values))
    assert found.interval == pytest.approx((expected.low, expected.high))
    alike = gaussian_rows(60, 3, seed=1), gaussian_rows(30, 3, seed=2)
    ceiling = fidelity.compare(fidelity.MAUVE, {"": alike[1]}, alike[0], seed=0, splits=3).reference
    assert 0 <= ceiling.interval[0] <= ceiling.value <= ceiling.interval[1] <= 1


@pytest.mark.parametrize(("a", "b"), [((1, 3), (5, 3)), ((5, 3), (5, 4)), ((5,), (5, 3))])
def test_wrong_shapes_are_refused(a, b):
    with pytest.raises(ValueError, match="expected two"):
        fidelity.mauve(np.ones(a), np.ones(b))


def test_too_few_rows_to_compare_are_refused():
    with pytest.raises(ValueError, match=r"4 real rows.*found 9 and 3"):
        fidelity.compare(fidelity.MAUVE, {"": np.ones((9, 2))}, np.ones((3, 2)), seed=0, splits=1)

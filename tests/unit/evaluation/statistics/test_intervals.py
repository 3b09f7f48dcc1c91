import numpy as np
import pytest
from sklearn.metrics import recall_score

from understudy.evaluation.statistics import intervals


def correctness(share, rows, *, seed, seeds=1):
    return np.random.default_rng(seed).random((seeds, rows)) < share


def test_a_set_differs_from_itself_by_little():
    a = correctness(0.7, 100, seed=0)
    found = intervals.paired_bootstrap(a, a, seed=1)
    assert found.value == 0.0
    assert -0.025 < found.low < 0 < found.high < 0.025


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    # Newcombe 1998, Stat. Med. 17:873, Table II, method 10.
    [((56, 70), (48, 80), 0.0524, 0.3339), ((9, 10), (3, 10), 0.1705, 0.8090), ((10, 10), (0, 10), 0.6075, 1.0)],
)
def test_the_difference_of_two_shares_is_newcombes(first, second, low, high):
    (a, n), (b, m) = first, second
    assert intervals.difference_of_shares((a / n, n), (b / m, m), 0.95) == pytest.approx((low, high), abs=5e-5)
    assert intervals.difference_of_shares((b / m, m), (a / n, n), 0.95) == pytest.approx((-high, -low), abs=5e-5)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    # Newcombe 1998, Stat. Med. 17:2635, Table II, method 10.
    [((36, 12, 2, 0), 0.0569, 0.3404), ((20, 12, 2, 16), 0.0562, 0.3292)],
)
def test_the_closed_form_is_newcombes(table, low, high):
    a, b = (np.repeat(right, table).astype(bool)[None] for right in ((1, 1, 0, 0), (1, 0, 1, 0)))
    found = intervals._newcombe(a, b, 0.95)
    assert found == pytest.approx((low, high), abs=5e-5)
    found = intervals.paired_bootstrap(a, b, seed=0)
    assert found.low <= low + 5e-5
    assert found.high >= high - 5e-5


@pytest.mark.parametrize("rows", [2, 3])
def test_rows_too_few_for_a_difference_do_not_show_one(rows):
    right, wrong = np.ones((1, rows), bool), np.zeros((1, rows), bool)
    apart, alike = intervals.paired_bootstrap(right, wrong, seed=0), intervals.paired_bootstrap(right, right, seed=0)
    assert (apart.value, apart.high) == (1, 1)
    assert apart.low < 0
    assert alike.low < -0.5
    assert alike.high > 0.5


@pytest.mark.parametrize("rows", [5, 10, 20, 500])
@pytest.mark.parametrize(("difference", "shared"), [(0, 0.5), (0.05, 0)])
def test_the_interval_of_a_difference_covers_and_is_hardly_wider_where_rows_are_many(rows, difference, shared):
    """Both sides know a row by the same luck with probability `shared`, else each by its own."""
    generator, runs, covered, widths = np.random.default_rng(rows), 250, 0, []
    for seed in range(runs):
        luck, own, common = generator.random(rows), generator.random((2, rows)), generator.random((2, rows)) < shared
        a, b = np.where(common, luck, own) < np.array([[0.9], [0.9 - difference]])
        found = intervals.paired_bootstrap(a, b, seed=seed, replicates=200)
        covered += found.low <= difference <= found.high
        if seed < 25:
            draws = intervals._resampled_means(a[None], b[None], seed=seed, replicates=200)
            low, high = np.quantile(draws, [0.025, 0.975])
            widths.append((found.high - found.low, high - low))
    # A standard error is 0.014; the seeds are fixed.
    assert covered / runs >= 0.93
    own, bootstrap = np.mean(widths, axis=0)
    assert own >= bootstrap
    assert rows < 500 or own < 1.15 * bootstrap


def test_several_seeds_keep_the_bootstraps_width_where_rows_are_many():
    generator = np.random.default_rng(0)
    a, b = generator.random((3, 500)) < 0.85, generator.random((3, 500)) < 0.8
    found = intervals.paired_bootstrap(a, b, seed=0)
    low, high = np.quantile(intervals._resampled_means(a, b, seed=0, replicates=2000), [0.025, 0.975])
    assert found.high - found.low < 1.05 * (high - low)


def test_paired_bootstrap_matches_the_analytic_interval():
    # One seed per side: the difference per row is in {-1, 0, 1} and its mean is nearly normal.
    a, b = correctness(0.8, 900, seed=1), correctness(0.7, 900, seed=2)
    difference = a[0].astype(float) - b[0]
    half = 1.96 * difference.std() / np.sqrt(900)
    found = intervals.paired_bootstrap(a, b, seed=3, replicates=4000)
    assert found.value == pytest.approx(difference.mean())
    assert found.low == pytest.approx(difference.mean() - half, abs=0.15 * half)
    assert found.high == pytest.approx(difference.mean() + half, abs=0.15 * half)


def test_pairing_narrows_the_interval():
    shared = np.random.default_rng(0).random(400)
    a, b = (shared < 0.8)[None], (shared < 0.75)[None]  # b is right only where a is
    shuffled = np.random.default_rng(1).permutation(b[0])[None]
    paired, unpaired = (intervals.paired_bootstrap(a, other, seed=2) for other in (b, shuffled))
    assert paired.high - paired.low < 0.6 * (unpaired.high - unpaired.low)


def test_seeds_that_differ_widen_the_interval():
    steady = np.repeat(correctness(0.7, 500, seed=0), 3, axis=0)
    swinging = np.stack([np.arange(500) < n for n in (200, 350, 500)])
    base = np.repeat(correctness(0.5, 500, seed=1), 3, axis=0)
    narrow, wide = (intervals.paired_bootstrap(x, base, seed=2) for x in (steady, swinging))
    mirrored = intervals.paired_bootstrap(base, swinging, seed=2)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
    assert mirrored.high - mirrored.low == pytest.approx(wide.high - wide.low, rel=0.1)


def test_bootstrap_interval_covers_at_its_level():
    # 200 experiments of two equally good classifiers; the 95 % interval must miss zero about 10 times.
    misses = sum(
        not (found.low <= 0 <= found.high)
        for s in range(200)
        if (
            found := intervals.paired_bootstrap(
                correctness(0.7, 150, seed=2 * s), correctness(0.7, 150, seed=2 * s + 1), seed=s, replicates=300
            )
        )
    )
    assert 2 <= misses <= 22


def test_different_rows_are_refused():
    with pytest.raises(ValueError, match="4 and 5"):
        intervals.paired_bootstrap(np.ones((1, 4), bool), np.ones((1, 5), bool), seed=0)


def test_accuracy_interval_does_not_collapse_when_every_row_is_right():
    found = intervals.accuracy_interval(np.ones(50, bool), seed=0)
    # Wilson: n / (n + z^2) = 50 / 53.84
    assert found.value == 1.0
    assert found.low == pytest.approx(50 / (50 + 1.959964**2), abs=1e-4)
    assert found.high == 1.0


def test_accuracy_interval_spans_seeds():
    table = np.stack([np.arange(100) < n for n in (50, 90)])
    found = intervals.accuracy_interval(table, seed=0)
    assert found.value == pytest.approx(0.7)
    assert found.low < 0.55
    assert found.high > 0.85


def test_mean_recall_of_a_classifier_that_only_knows_the_commonest_label_is_that_of_guessing():
    labels = np.repeat([0, 1, 2], [70, 20, 10])
    found = intervals.mean_recall(labels == 0, labels, seed=0)
    assert found.value == pytest.approx(1 / 3)
    assert found.low < 1 / 3 < found.high < 0.5


def test_the_interval_of_mean_recall_does_not_collapse_where_a_label_has_few_rows():
    labels = np.repeat([0, 1], [17, 3])
    found = intervals.mean_recall(labels >= 0, labels, seed=0)
    assert (found.value, found.high) == (1, 1)
    # Of the three rows alone Wilson's interval begins at 0.44, and they are half of the mean.
    assert 0.65 < found.low < 0.75


def test_intervals_of_mean_recall_know_the_spread_between_seeds():
    """Labels of equal size: a mean recall is the accuracy, and so are its intervals."""
    labels = np.repeat(np.arange(10), 200)
    generator = np.random.default_rng(0)
    a = generator.random((3, 2000)) < np.array([[0.5], [0.7], [0.9]])
    b = generator.random((3, 2000)) < 0.6
    accuracy, recall = intervals.accuracy_interval(a, seed=0), intervals.mean_recall(a, labels, seed=0)
    assert (recall.low, recall.high) == pytest.approx((accuracy.low, accuracy.high), abs=0.01)
    plain, found = intervals.paired_bootstrap(a, b, seed=0), intervals.paired_recall_difference(a, b, labels, seed=0)
    assert found.value == pytest.approx(plain.value)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=0.02)


def test_a_difference_of_mean_recalls_keeps_its_width_where_a_side_is_always_wrong_on_a_label():
    labels = np.repeat([0, 1], [100, 10])
    found = intervals.paired_recall_difference(labels >= 0, labels == 0, labels, seed=0)
    assert found.value == 0.5
    # Of the rare label's ten rows Newcombe's interval begins at 1 - 2 * 3.84 / 13.84, and they are half of the mean.
    assert 0.2 < found.low < 0.25
    assert found.high == pytest.approx(0.5, abs=0.03)


def test_mean_recall_is_the_mean_of_sklearns_recalls():
    generator = np.random.default_rng(3)
    labels, seeds = generator.choice(4, size=300, p=[0.6, 0.2, 0.15, 0.05]), 3
    predicted = np.where(generator.random((seeds, 300)) < 0.7, labels, generator.integers(0, 4, (seeds, 300)))
    wanted = np.mean([recall_score(labels, one, average="macro") for one in predicted])
    found = intervals.mean_recall(predicted == labels, labels, seed=0)
    assert found.value == pytest.approx(wanted)
    assert found.low < wanted < found.high


def test_the_interval_of_mean_recall_is_as_wide_as_its_labels_make_it():
    labels = np.repeat([0, 1], [900, 100])
    correct = np.concatenate([np.arange(900) % 10 < 8, np.arange(100) % 10 < 6])
    found = intervals.mean_recall(correct, labels, seed=0, replicates=8000)
    deviation = 0.5 * np.sqrt(0.8 * 0.2 / 900 + 0.6 * 0.4 / 100)
    assert found.value == pytest.approx(0.7)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * deviation, rel=0.05)


def test_the_difference_of_mean_recalls_is_paired_within_each_label():
    labels = np.repeat([0, 1], [900, 100])
    a = np.concatenate([np.arange(900) % 10 < 8, np.arange(100) % 10 < 6])
    found = intervals.paired_recall_difference(a, a, labels, seed=0)
    assert found.value == 0
    assert -0.02 < found.low < 0 < found.high < 0.02, "the same rows are drawn for both sides"
    b = a & (np.arange(1000) % 4 < 3)
    found = intervals.paired_recall_difference(a, b, labels, seed=0, replicates=8000)
    lost = (a & ~b).astype(float)
    shares = [lost[labels == label].mean() for label in (0, 1)]
    deviation = 0.5 * np.sqrt(shares[0] * (1 - shares[0]) / 900 + shares[1] * (1 - shares[1]) / 100)
    assert found.value == pytest.approx(np.mean(shares))
    assert 0.95 < (found.high - found.low) / 2 / (1.96 * deviation) < 1.1
    with pytest.raises(ValueError, match="expected 1000 test rows on both sides, found 1000 and 10"):
        intervals.paired_recall_difference(a, a[:10], labels, seed=0)

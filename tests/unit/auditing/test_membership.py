import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score
from tests_support import SENTIMENT_WORDS, SENTIMENTS

from understudy.auditing.membership import (
    FEWEST_ROWS,
    Attack,
    MembershipReport,
    MembershipScores,
    advantage,
    area_under_curve,
    best_threshold,
    loss_attack,
    membership_audit,
    membership_scores,
)
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.statistics.intervals import Interval
from understudy.evaluation.utility.label_model import label_losses
from understudy.evaluation.utility.transfer import TransferConfig, load_label_model


def make_rows(n: int, *, seed: int) -> LabelledTexts:
    """Made-up texts of six words with labels by coin flip: nothing but the row itself tells its label."""
    generator = np.random.default_rng(seed)
    words = ("film", "story", "cast", "music", "old", "green", "river", "paper", "dance", "dog", "city", "moon")
    texts = [" ".join(generator.choice(words, 6)) for _ in range(n)]
    return LabelledTexts(texts, generator.integers(0, 2, n), SENTIMENTS)


# Losses on a grid, so that ties are common.
losses = st.lists(st.integers(-6, 6).map(lambda i: i / 2), min_size=2, max_size=12).map(lambda v: np.array(v, float))


def rates(scores, threshold):
    return [sum(loss <= threshold for loss in side) / len(side) for side in (scores.members, scores.others)]


@given(losses, losses)
def test_threshold_advantage_and_area_against_counting(members, others):
    scores = MembershipScores(members, others)
    chosen = best_threshold(scores)
    true_rate, false_rate = rates(scores, chosen)
    assert advantage(scores, chosen) == pytest.approx(true_rate - false_rate)
    every = [-np.inf, *members, *others]
    best = max(np.subtract(*rates(scores, threshold)) for threshold in every)
    assert advantage(scores, chosen) == pytest.approx(best)
    pairs = np.mean([[0.5 * (m == o) + (m < o) for o in others] for m in members])
    assert area_under_curve(scores) == pytest.approx(pairs)


def test_the_area_is_that_of_scikit_learn():
    generator = np.random.default_rng(0)
    scores = MembershipScores(generator.normal(0, 1, 300), generator.normal(0.4, 1, 200))
    truth = np.repeat([1, 0], [300, 200])
    wanted = roc_auc_score(truth, -np.concatenate([scores.members, scores.others]))
    assert area_under_curve(scores) == pytest.approx(wanted)


def test_unrelated_scores_are_guessing_and_the_interval_covers_it():
    """60 audits of scores that know nothing: a 95 % interval misses 0 (or 1/2) in about 3 of them."""
    generator = np.random.default_rng(1)
    found = [
        loss_attack(MembershipScores(*generator.normal(size=(2, 80))), seed=seed, replicates=200) for seed in range(60)
    ]
    assert sum(a.advantage.low <= 0 <= a.advantage.high for a in found) >= 54
    assert sum(a.auc.low <= 0.5 <= a.auc.high for a in found) >= 54
    values = [a.advantage.value for a in found]
    assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(60)


def test_a_threshold_measured_where_it_was_chosen_is_biased_upwards():
    generator = np.random.default_rng(2)
    drawn = [MembershipScores(*generator.normal(size=(2, 80))) for _ in range(60)]
    own = [advantage(scores, best_threshold(scores)) for scores in drawn]
    assert min(own) >= 0
    assert np.mean(own) > 0.05
    other = [loss_attack(scores, seed=0, replicates=20).advantage.value for scores in drawn]
    assert abs(np.mean(other)) < 0.03


@pytest.mark.parametrize("gap", [0.5, 1.0, 2.0])
def test_the_advantage_of_two_normals_is_found(gap):
    """Best threshold in the middle: 2 Phi(gap / 2) - 1; area Phi(gap / sqrt 2)."""
    generator = np.random.default_rng(3)
    scores = MembershipScores(generator.normal(0, 1, 1000), generator.normal(gap, 1, 1000))
    found = loss_attack(scores, seed=0)
    assert found.advantage.value == pytest.approx(2 * norm.cdf(gap / 2) - 1, abs=0.05)
    assert found.advantage.low < 2 * norm.cdf(gap / 2) - 1 < found.advantage.high
    assert found.auc.low < norm.cdf(gap / np.sqrt(2)) < found.auc.high
    assert found.advantage.high - found.advantage.low < 0.15


@pytest.mark.parametrize("rows", [4, 10, 25])
@pytest.mark.parametrize("gap", [0.0, 2.0, 3.0])
def test_the_interval_of_the_area_covers_it_with_few_rows_too(rows, gap):
    """Where nearly all members lie below all others a bootstrap alone misses it far too often."""
    generator = np.random.default_rng(6)
    true, audits = norm.cdf(gap / np.sqrt(2)), 300
    found = [
        loss_attack(
            MembershipScores(generator.normal(0, 1, rows), generator.normal(gap, 1, rows)),
            seed=seed,
            splits=1,
            replicates=50,
        ).auc
        for seed in range(audits)
    ]
    covered = sum(area.low <= true <= area.high for area in found)
    # Were it 95 in a hundred, fewer would be a matter of one in a million.
    assert covered >= binom.ppf(1e-6, audits, 0.95)
    assert all(0 <= area.low < area.high <= 1 for area in found)


def test_separated_scores_approach_one_and_the_wrong_way_round_is_no_member():
    generator = np.random.default_rng(4)
    low, high = generator.uniform(0, 1, 100), generator.uniform(2, 3, 100)
    found = loss_attack(MembershipScores(low, high), seed=0)
    assert found.advantage.value > 0.99
    assert found.advantage.low == pytest.approx(0.948, abs=1e-3), "as Newcombe's of a hundred of a hundred and none"
    assert found.auc.value == 1.0
    assert found.auc.low == pytest.approx(0.963, abs=5e-4), "as Wilson's of a hundred of a hundred"
    swapped = loss_attack(MembershipScores(high, low), seed=0)
    assert swapped.advantage.value == 0.0  # the best threshold calls nobody a member
    assert swapped.advantage.low == -swapped.advantage.high == pytest.approx(-0.037, abs=5e-4)
    assert swapped.auc.value == 0.0


def test_the_seed_fixes_the_attack():
    generator = np.random.default_rng(5)
    scores = MembershipScores(*generator.normal(size=(2, 40)))
    one, two, other = (loss_attack(scores, seed=seed, replicates=100) for seed in (1, 1, 2))
    assert one == two
    assert one != other


@pytest.mark.parametrize(
    "scores",
    [
        MembershipScores(np.zeros(1), np.zeros(5)),
        MembershipScores(np.zeros(5), np.zeros(0)),
        MembershipScores(np.array([0.0, np.nan]), np.zeros(5)),
    ],
)
def test_too_few_or_broken_losses_are_refused(scores):
    with pytest.raises(ValueError, match="at least 2 finite losses"):
        loss_attack(scores, seed=0)


def test_an_audit_of_so_few_rows_that_chance_looks_like_power_is_refused():
    """Of two rows a side, one in six orders puts all members below all others, and the bootstrap sees no other."""
    rows = make_rows(3, seed=0)
    with pytest.raises(ValueError, match="at least 4 members"):
        membership_audit(rows, rows, rows, label_words=SENTIMENT_WORDS, config=TransferConfig(base="none"), seed=0)
    drawn = np.random.default_rng(7).normal(size=(300, 2, FEWEST_ROWS))
    attacks = [loss_attack(MembershipScores(*one), seed=seed, replicates=100) for seed, one in enumerate(drawn)]
    assert sum(attack.advantage.low > 0 for attack in attacks) <= binom.ppf(1 - 1e-4, 300, 0.025)


def test_the_report_needs_its_control_and_says_whether_it_works():
    def attack(low):
        return Attack(Interval(0.1, low, 0.3), Interval(0.5, 0.4, 0.6))

    with pytest.raises(TypeError, match="positive_control"):
        MembershipReport(synthetic=attack(0.0), members=3, others=3)  # type: ignore[call-arg]
    assert MembershipReport(attack(-0.1), attack(0.05), 3, 3).can_detect
    assert not MembershipReport(attack(0.05), attack(-0.05), 3, 3).can_detect


def test_the_audit_finds_members_in_the_control_and_not_in_unrelated_text():
    """Labels by coin flip: a model can know a member's only by having seen it."""
    found = [audit_of_coin_flips(seed) for seed in range(3)]
    for one in found:
        assert one.can_detect
        assert one.positive_control.advantage.value > 0.2
        assert one.positive_control.auc.value > 0.62
        assert (one.members, one.others) == (50, 50)
    # Each interval misses the truth, chance, once in twenty.
    assert sum(one.synthetic.advantage.low <= 0 <= one.synthetic.advantage.high for one in found) >= 2
    assert sum(one.synthetic.auc.low <= 0.5 <= one.synthetic.auc.high for one in found) >= 2


def audit_of_coin_flips(seed):
    members, others, unrelated = (make_rows(count, seed=3 * seed + i) for i, count in enumerate((50, 50, 30), start=1))
    config = TransferConfig(
        profile="tiny", base="tiny-gpt2", steps=80, learning_rate=2e-3, max_length=8, frozen_lower_layers=3
    )
    return membership_audit(unrelated, members, others, label_words=SENTIMENT_WORDS, config=config, seed=seed)


def test_scores_are_the_losses_of_each_side():
    config = TransferConfig(profile="tiny", base="tiny-gpt2", max_length=24)
    target = load_label_model(label_words=SENTIMENT_WORDS, config=config)
    members, others = make_rows(5, seed=1), make_rows(3, seed=2)
    found = membership_scores(target, members, others)
    assert found.members.tolist() == label_losses(target, members.texts, members.labels).tolist()
    assert found.others.tolist() == label_losses(target, others.texts, others.labels).tolist()

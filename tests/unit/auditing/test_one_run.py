import math
from itertools import product

import numpy as np
import pytest

from understudy.auditing.attack import figures_of, surprises
from understudy.auditing.one_run import (
    GUESSED,
    bound,
    chance_of,
    detectable_epsilon,
    least_epsilon,
    right_guesses,
    sizes_of,
)


def exact_tail(guesses, truth):
    """P[W = w] of a binomial, from all outcomes: no library in it."""
    mass = [0.0] * (guesses + 1)
    for tosses in product((0, 1), repeat=guesses):
        mass[sum(tosses)] += math.prod(truth if toss else 1 - truth for toss in tosses)
    return mass


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_the_chance_is_that_of_the_theorem(epsilon, delta):
    guesses, canaries = 7, 12
    mass = exact_tail(guesses, math.exp(epsilon) / (1 + math.exp(epsilon)))
    for right in range(guesses + 1):
        steepest = max((sum(mass[right - i : right]) / i for i in range(1, right + 1)), default=0.0)
        wanted = min(1.0, sum(mass[right:]) + 2 * canaries * delta * steepest)
        assert chance_of(right, guesses, epsilon=epsilon, delta=delta, canaries=canaries) == pytest.approx(wanted)


def test_the_bound_is_where_the_chance_crosses_the_error():
    found = least_epsilon(55, 60, delta=1e-5, canaries=80, confidence=0.95)
    above, below = (chance_of(55, 60, epsilon=found + step, delta=1e-5, canaries=80) for step in (1e-4, -1e-4))
    assert below < 0.05 <= above
    assert least_epsilon(30, 60, delta=1e-5, canaries=80, confidence=0.95) == 0


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.001)])
def test_randomised_response_is_not_called_worse_than_it_is(epsilon, share):
    """It reaches what the theorem allows: each coin is told truly with e^epsilon / (1 + e^epsilon), or laid open."""
    random, wrong, repeats, canaries = np.random.default_rng(5), 0, 150, 60
    for _ in range(repeats):
        coins = random.random(canaries) < 0.5
        open_ones = random.random(canaries) < share
        true = open_ones | (random.random(canaries) < math.exp(epsilon) / (1 + math.exp(epsilon)))
        said = np.where(coins == true, 1.0, -1.0) * np.where(open_ones, 2.0, 1.0) + 1e-3 * random.random(canaries)
        wrong += bound(said, coins, delta=share).epsilon > epsilon
    # Of 150 at 5 %, 17 or more come up in one of a thousand.
    assert wrong < 17


def test_the_best_attack_reaches_an_epsilon_that_can_be_told():
    random, told, repeats, canaries = np.random.default_rng(6), 0, 100, 100
    least = detectable_epsilon(canaries, delta=0.0)
    for _ in range(repeats):
        coins = random.random(canaries) < 0.5
        true = random.random(canaries) < math.exp(least) / (1 + math.exp(least))
        told += bound(np.where(coins == true, 1.0, -1.0) + 1e-3 * random.random(canaries), coins, delta=0.0).epsilon > 0
    assert told / repeats > 0.65


def test_scores_that_know_everything_and_scores_that_know_nothing():
    coins = np.array([True, False] * 40)
    everything = figures_of(coins + np.arange(80) / 1e6, coins, delta=1e-6, confidence=0.95, seed=0)
    assert everything.finds
    assert everything.auc == 1.0
    assert [rate.found for rate in everything.rates] == [1.0, 1.0]
    nothing = figures_of(np.random.default_rng(3).random(80), coins, delta=1e-6, confidence=0.95, seed=0)
    assert not nothing.finds
    assert nothing.auc_interval[0] < 0.5 < nothing.auc_interval[1]
    inverse = figures_of(-1.0 * coins + np.arange(80) / 1e6, coins, delta=1e-6, confidence=0.95, seed=0)
    assert (inverse.finds, inverse.auc) == (False, 0.0)


def test_guesses_are_the_ends_of_the_scores():
    coins = np.array([True, True, False, False, True, False])
    assert right_guesses(np.array([6.0, 5, 1, 2, 3, 4]), coins, 4) == 4
    assert right_guesses(np.array([6.0, 5, 1, 2, 3, 4]), coins, 6) == 4
    assert sizes_of(100) == [100, 50, 20]
    assert sizes_of(8) == [8, 4, 2]
    assert len(GUESSED) == 3


@pytest.mark.parametrize("scores", [[1.0], [1.0, math.nan], [1.0, math.inf]])
def test_scores_without_an_order_are_refused(scores):
    with pytest.raises(ValueError, match="finite scores"):
        bound(np.array(scores), np.ones(len(scores), dtype=bool), delta=0.0)


def test_a_canary_is_compared_with_what_its_likelihood_before_lets_expect():
    """All losses fall by a fifth, those of canaries in the rows by a little more: the difference alone misses it."""
    random = np.random.default_rng(4)
    coins, before = random.random(200) < 0.5, 5 + 5 * random.random(200)
    after = 0.8 * before - 0.05 * coins + 0.01 * random.random(200)
    known = figures_of(surprises(before, after), coins, delta=1e-6, confidence=0.95, seed=0)
    plain = figures_of(before - after, coins, delta=1e-6, confidence=0.95, seed=0)
    assert known.auc > 0.99 > 0.7 > plain.auc
    assert surprises(before, after).sum() == pytest.approx(0, abs=1e-9)

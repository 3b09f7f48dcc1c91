"""Coins of canaries, guessed from what all other rows leave of a released sum."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from understudy.auditing.known_rows import coin_scores, seen_from


def scores(added, coins, noise=0.0, deviation=None):
    """Of a released sum from which the other rows and half of every canary were taken off."""
    generator = torch.Generator().manual_seed(7)
    left = (coins.double() - 0.5) @ added.double()
    left = left + noise * torch.randn(left.shape, generator=generator, dtype=torch.float64)
    return coin_scores(seen_from(added, left, deviation=noise if deviation is None else deviation))


def tossed(count, seed=0):
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 0.5


def directions(count, numbers, *, alike=0.0):
    """Unit vectors that share a part."""
    found = torch.randn(count, numbers, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found[:, 0] += alike * numbers**0.5
    return found / found.norm(dim=1, keepdim=True)


def area(found, coins):
    is_in = coins.numpy()
    return float((found[is_in][:, None] > found[~is_in][None]).mean())


@pytest.mark.parametrize("alike", [0.0, 3.0])
def test_without_noise_each_canary_has_the_share_of_its_coin(alike):
    coins = tossed(60)
    found = scores(directions(60, 80, alike=alike), coins)
    assert found == pytest.approx(coins.double().numpy() - 0.5, abs=1e-3)


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_with_noise_it_is_as_good_as_the_best_attack_on_canaries_that_share_nothing(noise):
    """That of one number with normal noise: two such differ by 1, with a standard deviation of sqrt(2) noise."""
    count = 1200
    coins = tossed(count)
    found = area(scores(torch.eye(count), coins, noise), coins)
    assert found == pytest.approx(norm.cdf(1 / (2**0.5 * noise)), abs=0.04)


def test_the_ridge_of_the_noise_is_better_than_none_where_canaries_are_alike():
    coins, added = tossed(100), directions(100, 120, alike=2.0)
    known, ignored = (area(scores(added, coins, 0.7, deviation=said), coins) for said in (None, 0.0))
    assert known > ignored + 0.05
    assert known > 0.6


def test_what_adds_nothing_or_the_same_as_another_is_no_fault():
    added = directions(6, 20)
    added[1] = added[0]
    added[2] = 0.0
    coins = torch.tensor([True, False, True, True, False, False])
    found = scores(added, coins)
    assert np.isfinite(found).all()
    # One is in and one is not, so they have no share. The least ridge, 1e-6, leaves ten digits of the difference.
    assert found[:2] == pytest.approx([0, 0], abs=1e-6)
    assert found[0] == pytest.approx(found[1], abs=1e-9)
    assert found[2] == 0
    assert found[3] > 0.4
    assert max(found[4:]) < -0.4
    assert not coin_scores(seen_from(torch.zeros(3, 4), torch.zeros(4), deviation=0.0)).any()

"""Noise and masks have the stated distribution: tests that accept it and reject scale x2/3 and x3/2.

Keys are fixed, so a test passes always or never. With them the right hypotheses have p-values above 0.01 and
the wrong ones below 1e-9; a bug that shifts the distribution shows as a p-value that collapses.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from understudy.privacy.noise import derive_key, discrete_gaussian
from understudy.privacy.rounded_gaussian import rounded_gaussian
from understudy.privacy.sampling import poisson_mask

SECRET = b"fixed key for statistical tests only"
SIZE = 40_000
ACCEPT, REJECT = 0.01, 1e-9


def key(step=0, purpose="noise", charge_id="c1", salt=b"salt", digest=b"query"):
    return derive_key(SECRET, charge_id=charge_id, salt=salt, step=step, purpose=purpose, query_digest=digest)


def fits_normal(values, scale):
    return stats.kstest(np.asarray(values, dtype=np.float64), "norm", args=(0.0, scale)).pvalue


def gaussian(key, size, *, scale, grid=2.0**-26):
    """Noise as the mechanisms draw it for a sensitivity of 1: whole steps of the grid."""
    return rounded_gaussian(key, size, scale=scale / grid).double() * grid


def fits_rounded_gaussian(values, scale):
    """Against the closed form: P(k) = Phi((k + 1/2)/s) - Phi((k - 1/2)/s)."""
    reach = int(6 * scale) + 1
    edges = np.arange(-reach - 1, reach + 1) + 0.5
    weights = np.diff(stats.norm.cdf(edges / scale))
    return fits(values, weights, reach)


def fits_discrete_gaussian(values, sigma):
    reach = int(6 * sigma) + 1
    support = np.arange(-reach, reach + 1)
    weights = np.exp(-(support**2) / (2 * sigma**2))
    return fits(values, weights, reach)


def fits(values, weights, reach):
    """Chi-square test of integers in [-reach, reach] against weights."""
    counts = np.bincount(np.clip(values, -reach, reach) + reach, minlength=len(weights))
    expected = weights / weights.sum() * len(values)
    # Cells of at least five expected values; the tails are one cell each.
    inner = expected >= 5
    observed = np.append(counts[inner], counts[~inner].sum())
    wanted = np.append(expected[inner], expected[~inner].sum())
    return stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue


@pytest.mark.parametrize("scale", [1e-3, 1.0, 250.0])
@pytest.mark.parametrize("step", [0, 1, 999])
def test_gaussian_has_the_stated_scale_and_no_other(step, scale):
    values = gaussian(key(step), SIZE, scale=scale)
    assert fits_normal(values, scale) > ACCEPT
    assert fits_normal(values, scale * 2 / 3) < REJECT
    assert fits_normal(values, scale * 3 / 2) < REJECT


def test_gaussian_is_normal_across_a_block_border_and_in_the_tails():
    values = gaussian(key(), 2_000_000, scale=1.0).double().numpy()
    assert fits_normal(values[60_000:70_000], 1.0) > ACCEPT
    for bound in (3.0, 4.0):
        beyond = int((np.abs(values) > bound).sum())
        assert stats.binomtest(beyond, len(values), 2 * stats.norm.sf(bound)).pvalue > ACCEPT
    # Box-Muller gives two values per pair of uniforms: neither they nor neighbours hang together.
    half = 32_768
    assert stats.pearsonr(values[:half], values[half : 2 * half]).pvalue > ACCEPT
    assert stats.pearsonr(values[:half] ** 2, values[half : 2 * half] ** 2).pvalue > ACCEPT
    assert stats.pearsonr(values[:-1], values[1:]).pvalue > ACCEPT


def test_draws_of_different_steps_purposes_and_queries_are_independent():
    draws = {
        "base": key(),
        "step": key(step=1),
        "purpose": key(purpose="discriminator"),
        "charge": key(charge_id="c2"),
        "salt": key(salt=b"pepper"),
        "query": key(digest=b"another query"),
    }
    values = {name: gaussian(k, SIZE, scale=1.0).double().numpy() for name, k in draws.items()}
    for one, other in itertools.combinations(values, 2):
        assert stats.pearsonr(values[one], values[other]).pvalue > 1e-3, (one, other)
    # The test can fail: a stream correlates with itself plus as much noise again.
    assert stats.pearsonr(values["base"], values["base"] + values["step"]).pvalue < REJECT


def test_the_sum_over_many_steps_keeps_its_variance():
    sums = sum(gaussian(key(step), 4000, scale=1.0).double() for step in range(100))
    assert fits_normal(sums.numpy(), 10.0) > ACCEPT
    assert fits_normal(sums.numpy(), 15.0) < REJECT


@pytest.mark.parametrize("scale", [0.2, 0.5, 1.0, 3.7])
def test_at_small_scales_the_rounded_gaussian_has_the_frequencies_of_the_closed_form(scale):
    values = rounded_gaussian(key(purpose="rounded"), SIZE, scale=scale).numpy()
    assert fits_rounded_gaussian(values, scale) > ACCEPT
    assert fits_rounded_gaussian(values, scale * 2 / 3) < REJECT
    assert fits_rounded_gaussian(values, scale * 3 / 2) < REJECT


def test_the_rounded_gaussian_is_told_from_the_discrete_one():
    """At a small scale the two laws differ, so that one may not be charged as the other."""
    values = rounded_gaussian(key(purpose="rounded"), SIZE, scale=0.5).numpy()
    assert fits_discrete_gaussian(values, 0.5) < REJECT


@pytest.mark.parametrize("sigma", [0.5, 2.0, 12.5])
def test_discrete_gaussian_has_the_stated_scale_and_no_other(sigma):
    values = discrete_gaussian(key(purpose="histogram"), 6000, scale=sigma).numpy()
    assert fits_discrete_gaussian(values, sigma) > ACCEPT
    assert fits_discrete_gaussian(values, sigma * 2 / 3) < REJECT
    assert fits_discrete_gaussian(values, sigma * 3 / 2) < REJECT


def test_mask_frequency_fits_the_accounted_probability_and_no_other():
    q, n, steps = 0.02, 2000, 200
    masks = torch.stack([poisson_mask(key(step, "mask", digest=b""), n, probability=q) for step in range(steps)])
    hits = int(masks.sum())
    assert stats.binomtest(hits, n * steps, q).pvalue > ACCEPT
    assert stats.binomtest(hits, n * steps, 1.5 * q).pvalue < REJECT
    assert stats.binomtest(hits, n * steps, q / 1.5).pvalue < REJECT


def test_masks_are_independent_over_slots_and_steps():
    q, n, steps = 0.1, 1000, 400
    masks = torch.stack([poisson_mask(key(step, "mask", digest=b""), n, probability=q) for step in range(steps)])
    sizes, taken = masks.sum(1).numpy(), masks.sum(0).numpy()
    # Binomial batch sizes and takings: true Poisson sampling, not batches of a fixed size or a shuffled epoch.
    for counts, trials in ((sizes, n), (taken, steps)):
        spread = ((counts - trials * q) ** 2).sum() / (trials * q * (1 - q))
        assert ACCEPT < stats.chi2.sf(spread, len(counts)) < 1 - ACCEPT
    both = (masks[:-1] & masks[1:]).sum().item()
    assert stats.binomtest(both, n * (steps - 1), q * q).pvalue > ACCEPT


def test_mask_and_noise_of_one_step_are_unrelated():
    mask = poisson_mask(key(5, "mask", digest=b""), SIZE, probability=0.5).double().numpy()
    noise = gaussian(key(5, "noise"), SIZE, scale=1.0).double().numpy()
    assert stats.pearsonr(mask, noise).pvalue > ACCEPT

"""Integer noise is judged as what it is: correct noise passes as often as it should, wrong noise does not."""

import itertools

import numpy as np
import pytest
import torch

from understudy.privacy.mechanism_call import Mechanism
from understudy.privacy.noise import derive_key, discrete_gaussian
from understudy.privacy.testing.statistics import Call, noise_faults


def histogram_call(noise, sigma):
    counts = torch.arange(len(noise)) + 7
    return Call(Mechanism("histogram", 0, "sizes", sigma, 1.0), {"counts": counts}, {"counts": counts + noise})


def inputs(noise, sigma, significance):
    return noise_faults([histogram_call(noise, sigma)], significance=significance, noiseless=False)


@pytest.mark.parametrize(("sigma", "classes"), [(0.5, 1), (1.0, 2), (2.0, 1), (2.0, 2), (4.0, 2)])
def test_correct_noise_fails_no_more_often_than_it_may_and_not_much_less(sigma, classes):
    values = np.arange(-int(8 * sigma) - 2, int(8 * sigma) + 3)
    weights = np.exp(-(values**2) / (2 * sigma**2)) / np.exp(-(values**2) / (2 * sigma**2)).sum()
    refused = 0.0
    verdicts = {}
    for places in itertools.product(range(len(values)), repeat=classes):
        noise = values[list(places)]
        squares = int(noise @ noise)
        if squares not in verdicts:
            verdicts[squares] = bool(inputs(torch.from_numpy(noise), sigma, 1e-2))
        refused += verdicts[squares] * weights[list(places)].prod()
    assert refused <= 1e-2
    if sigma >= 2:
        assert refused > 1e-3


def test_three_classes_without_noise_by_chance_are_no_fault():
    """The likeliest outcome of all: 0.8 % of the draws at sigma 2."""
    assert inputs(torch.zeros(3, dtype=torch.int64), 2.0, 1e-6) == []


def test_one_count_without_noise_by_chance_is_no_fault_where_noise_is_wide():
    """One draw in 2500 at sigma 1000, where sums of squares are too many to count."""
    assert inputs(torch.zeros(1, dtype=torch.int64), 1000.0, 1e-6) == []
    assert inputs(torch.tensor([6000]), 1000.0, 1e-6) != []


@pytest.mark.parametrize("sigma", [2.0, 20.0])
def test_another_scale_is_refused_where_there_are_classes_enough(sigma):
    key = derive_key(b"s" * 32, charge_id="c", salt=b"t" * 32, step=0, purpose="histogram/sizes")
    draws = {factor: discrete_gaussian(key, 500, scale=factor * sigma) for factor in (2 / 3, 1, 3 / 2)}
    assert inputs(draws[1], sigma, 1e-6) == []
    for wrong in (draws[2 / 3], draws[3 / 2], torch.zeros(500, dtype=torch.int64)):
        assert any("times what was declared" in fault for fault in inputs(wrong, sigma, 1e-6))

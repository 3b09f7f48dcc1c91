"""POPri's noise multipliers (Table 3, appendix C) by both accountants, and those that PLD allows."""

import pytest

from understudy.privacy.accounting import epsilon_pld, epsilon_rdp, sgd_event
from understudy.privacy.calibration import analytic_gaussian_sigma, calibrate_noise_multiplier

DELTA = 3e-6
ROUNDS = 20


def all_clients(z):
    """Twenty rounds of all clients."""
    return sgd_event(sampling_probability=1.0, noise_multiplier=z, steps=ROUNDS)


# The paper calibrates by RDP (Opacus): its sigma for epsilon 1 and 7, and what PLD says of it.
@pytest.mark.parametrize(("z", "by_rdp", "by_pld"), [(19.3, 0.997, 0.919), (3.35, 6.96, 6.50)])
def test_the_paper_s_multipliers(z, by_rdp, by_pld):
    assert epsilon_rdp(all_clients(z), DELTA) == pytest.approx(by_rdp, abs=5e-3)
    assert epsilon_pld(all_clients(z), DELTA) == pytest.approx(by_pld, abs=5e-3)


# One Gaussian query of sensitivity sqrt(20) has the same privacy loss: its exact deviation (Balle & Wang 2018) is the
# independent figure.
@pytest.mark.parametrize(("epsilon", "paper", "expected"), [(1.0, 19.3, 17.87), (7.0, 3.35, 3.146)])
def test_calibrating_by_pld_needs_less_noise(epsilon, paper, expected):
    found = calibrate_noise_multiplier(all_clients, epsilon=epsilon, delta=DELTA, cache=None)
    exact = analytic_gaussian_sigma(epsilon=epsilon, delta=DELTA, sensitivity=ROUNDS**0.5)
    print(f"epsilon {epsilon}: noise multiplier {paper} by RDP (paper), {found:.3f} by PLD, {exact:.3f} exact")
    assert found == pytest.approx(expected, rel=2e-3)
    assert exact <= found <= exact * 1.002
    assert found < 0.95 * paper

"""Shamir's sharing: any threshold of shares give the secret, fewer are uniform whatever it is."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from understudy.errors import UnderstudyError
from understudy.privacy.noise import derive_key
from understudy.privacy.secure_aggregation.shares import PRIME, reconstruct, share_secret

KEY = bytes(range(32))


def key(number):
    return derive_key(KEY, charge_id="", salt=b"", step=number, purpose="test")


def test_the_modulus_is_prime():
    """Fermat to twelve bases."""
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))
    assert PRIME > 2**256


@settings(max_examples=50)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret, threshold, data):
    count = data.draw(st.integers(threshold, 15))
    points = data.draw(st.lists(st.integers(1, 10**6), min_size=count, max_size=count, unique=True))
    shares = dict(zip(points, share_secret(secret, points=points, threshold=threshold, key=KEY), strict=True))
    chosen = data.draw(st.permutations(points))[: data.draw(st.integers(threshold, count))]
    assert reconstruct({point: shares[point] for point in chosen}, threshold=threshold) == secret


def test_every_subset_agrees_and_secrets_at_the_ends_survive():
    points = [1, 5, 9, 700, 12]
    for secret in (bytes(32), b"\xff" * 32):
        shares = dict(zip(points, share_secret(secret, points=points, threshold=3, key=KEY), strict=True))
        found = {
            reconstruct({p: shares[p] for p in subset}, threshold=3) for subset in itertools.combinations(points, 3)
        }
        assert found == {secret}


def uniformity(rows):
    """Least p-value of chi-square tests of upper and lower bytes, coordinate by coordinate, and of their sum."""
    chances = []
    for column in [*zip(*rows, strict=True), [sum(row) % PRIME for row in rows]]:
        for part in ([value >> 248 for value in column], [value & 255 for value in column]):
            # The prime is 297 above 2^256: bin 256 has no chance.
            chances.append(stats.chisquare(np.bincount(part, minlength=256)).pvalue)
    return min(chances)


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_shares_below_the_threshold_are_uniform_and_at_it_are_not(secret):
    points, threshold = [3, 4, 11], 3
    rows = [share_secret(secret, points=points, threshold=threshold, key=key(i)) for i in range(6000)]
    assert uniformity([row[:2] for row in rows]) > 1e-4
    assert uniformity([row[1:] for row in rows]) > 1e-4
    # All three hang together: their interpolation at 0 is the secret each time.
    weights = [reconstruct_weight(points, place) for place in range(3)]
    joint = [(sum(w * s for w, s in zip(weights, row, strict=True)) % PRIME,) for row in rows]
    assert uniformity(joint) < 1e-100


def test_coefficients_fill_the_whole_field():
    """With one coefficient, the share at 1 is the secret plus that coefficient."""
    rows = [share_secret(bytes(32), points=[1, 2], threshold=2, key=key(i)) for i in range(6000)]
    assert uniformity([row[:1] for row in rows]) > 1e-4
    assert uniformity([row[1:] for row in rows]) > 1e-4


def reconstruct_weight(points, place):
    weight = 1
    for other in points:
        if other != points[place]:
            weight = weight * other * pow(other - points[place], -1, PRIME) % PRIME
    return weight


def test_too_few_or_wrong_shares_are_refused():
    points = [1, 2, 3, 4]
    shares = dict(zip(points, share_secret(b"s" * 32, points=points, threshold=3, key=KEY), strict=True))
    with pytest.raises(UnderstudyError, match="at least threshold=3"):
        reconstruct({1: shares[1], 2: shares[2]}, threshold=3)
    # Shifted so that the value at 0 becomes 2^256, which is in the field but no secret.
    shift = 2**256 - int.from_bytes(b"s" * 32)
    with pytest.raises(UnderstudyError, match="wrong"):
        reconstruct({point: (share + shift) % PRIME for point, share in shares.items()}, threshold=3)


@pytest.mark.parametrize(
    "bad", [{"points": [0, 1, 2]}, {"points": [1, 1, 2]}, {"threshold": 4}, {"threshold": 0}, {"secret": b"short"}]
)
def test_sharing_refuses_what_would_not_hide(bad):
    options = {"secret": b"s" * 32, "points": [1, 2, 3], "threshold": 2, **bad}
    with pytest.raises(ValueError, match="expected"):
        share_secret(options.pop("secret"), key=KEY, **options)

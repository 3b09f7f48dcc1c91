"""Agreed keys, masks that cancel, sealed envelopes."""

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from scipy import stats

from understudy.errors import UnderstudyError
from understudy.privacy.secure_aggregation import masks

ONE, TWO = masks.private_key(b"1" * 32), masks.private_key(b"2" * 32)


def test_both_sides_agree_on_hkdf_of_the_x25519_secret():
    key = masks.agree(ONE, masks.public_bytes(TWO), purpose=b"mask")
    assert key == masks.agree(TWO, masks.public_bytes(ONE), purpose=b"mask")
    assert key != masks.agree(TWO, masks.public_bytes(ONE), purpose=b"channel")
    # RFC 5869 by hand, on the curve's own secret.
    public = X25519PublicKey.from_public_bytes(masks.public_bytes(TWO))
    shared = X25519PrivateKey.from_private_bytes(b"1" * 32).exchange(public)
    pseudo = hmac.digest(bytes(32), shared, "sha256")
    assert key == hmac.digest(pseudo, b"understudy/secure/1/mask\x01", "sha256")


@pytest.mark.parametrize("bad", [bytes(32), b"\x01" + bytes(31), b"short"])
def test_a_public_key_that_gives_a_known_secret_is_refused(bad):
    with pytest.raises(UnderstudyError, match="small-order"):
        masks.agree(ONE, bad, purpose=b"mask")


@pytest.mark.parametrize(("width", "dtype"), [(32, np.uint32), (64, np.uint64)])
@pytest.mark.parametrize("d", [1, 2, 7, 100])
def test_the_masks_of_a_pair_cancel(width, dtype, d):
    key = hashlib.sha256(b"pair").digest()
    start = np.arange(d, dtype=dtype)
    total, other = start.copy(), np.zeros(d, dtype=dtype)
    masks.add_pair_mask(total, key, own=3, other=8)
    masks.add_pair_mask(other, key, own=8, other=3)
    assert (total + other).tolist() == start.tolist()
    assert total.tolist() != start.tolist()
    assert ((total - start) == masks.expand(key, d=d, width=width)).all()
    assert masks.expand(key, d=d, width=width).dtype == dtype


def test_masks_are_uniform():
    words = masks.expand(hashlib.sha256(b"mask").digest(), d=40_001, width=32)
    for column in words.view(np.uint8).reshape(-1, 4).T:
        assert stats.chisquare(np.bincount(column, minlength=256)).pvalue > 1e-4


def test_an_envelope_opens_for_its_receiver_and_context_only():
    key = hashlib.sha256(b"channel").digest()
    sealed = masks.seal(key, b"a share", context=b"round 1")
    assert masks.unseal(key, sealed, context=b"round 1") == b"a share"
    altered = bytes([sealed[0] ^ 1]) + sealed[1:]
    for arguments in ((key, sealed, b"round 2"), (key, altered, b"round 1"), (bytes(32), sealed, b"round 1")):
        with pytest.raises(UnderstudyError, match="altered"):
            masks.unseal(*arguments[:2], context=arguments[2])

"""Keys and the noise they give: exact, separate, independent of threads and of how much is asked for."""

import hashlib
import hmac
import math

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from understudy.privacy import noise
from understudy.privacy.noise import derive_key, discrete_gaussian, query_digest, uniform_words

KEY = bytes(range(32))
SECRET = b"a secret for tests, 32 bytes long"

texts = st.text(max_size=6)
blobs = st.binary(max_size=6)
draws = st.fixed_dictionaries(
    {"charge_id": texts, "salt": blobs, "step": st.integers(0, 300), "purpose": texts, "query_digest": blobs}
)


@given(draws, draws)
def test_two_different_draws_never_share_a_key(one, other):
    assert (derive_key(SECRET, **one) == derive_key(SECRET, **other)) == (one == other)


def test_key_is_hmac_of_the_length_prefixed_parts():
    found = derive_key(SECRET, charge_id="c1", salt=b"ss", step=7, purpose="lm", query_digest=b"q")
    parts = [b"understudy/noise/1", b"c1", b"ss", (7).to_bytes(8, "big"), b"lm", b"q"]
    message = b"".join(len(p).to_bytes(8, "big") + p for p in parts)
    assert found == hmac.new(SECRET, message, hashlib.sha256).digest()


def test_neighbouring_parts_do_not_run_together():
    base = {"salt": b"", "step": 0}
    assert derive_key(SECRET, charge_id="ab", purpose="c", **base) != derive_key(
        SECRET, charge_id="a", purpose="bc", **base
    )


def test_key_depends_on_the_secret():
    draw = {"charge_id": "c", "salt": b"s", "step": 0, "purpose": "p"}
    assert derive_key(SECRET, **draw) != derive_key(SECRET[:-1], **draw)


def test_words_are_the_aes_counter_stream():
    stream = Cipher(algorithms.AES256(KEY), modes.CTR(bytes(16))).encryptor().update(bytes(80))
    assert uniform_words(KEY, 10).tobytes() == stream
    assert uniform_words(KEY, 3).tobytes() == stream[:24]
    assert uniform_words(KEY, 4, start=6).tobytes() == stream[48:]


@pytest.mark.parametrize(("key", "start"), [(bytes(16), 0), (KEY, 1)])
def test_words_refuse_a_wrong_key_or_start(key, start):
    with pytest.raises(ValueError, match="32 bytes"):
        uniform_words(key, 4, start=start)


@pytest.mark.parametrize("bad", [{"size": -1}, {"scale": -1.0}, {"scale": math.inf}, {"scale": math.nan}])
def test_noise_refuses_what_is_out_of_range(bad):
    with pytest.raises(ValueError, match="scale"):
        discrete_gaussian(**({"key": KEY, "size": 3, "scale": 1.0} | bad))


def test_discrete_gaussian_is_a_function_of_the_key():
    one = discrete_gaussian(KEY, 200, scale=3.3)
    assert one.dtype == torch.int64
    assert torch.equal(one, discrete_gaussian(KEY, 200, scale=3.3))
    assert torch.equal(one[:50], discrete_gaussian(KEY, 50, scale=3.3))
    assert not torch.equal(one, discrete_gaussian(KEY[::-1], 200, scale=3.3))
    assert torch.equal(discrete_gaussian(KEY, 4, scale=0.0), torch.zeros(4, dtype=torch.int64))


def tag(tensors):
    return query_digest(tensors, key=KEY)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_query_digest_reads_every_byte(dtype):
    tensor = torch.zeros(4, 3).to(dtype)
    other = tensor.clone()
    other[3, 2] = 1
    assert tag({"a": tensor}) == tag({"a": tensor.clone()})
    assert tag({"a": tensor}) != tag({"a": other})


def test_query_digest_reads_name_dtype_and_shape_but_not_the_layout():
    base = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    digest = tag({"a": base})
    others = ({"b": base}, {"a": base.reshape(3, 2)}, {"a": base.view(torch.int32)}, {"a": base, "b": base})
    assert all(tag(o) != digest for o in others)
    assert tag({"a": base.T.contiguous().T}) == digest
    assert tag({"x": base, "a": base + 1}) == tag({"a": base + 1, "x": base})
    assert tag({"a": base[:0]}) != tag({"a": base[:, :0]})


@pytest.mark.parametrize("at_once", [1, 7, 16, 1 << 30])
def test_query_digest_is_the_tag_of_all_bytes_under_its_key(monkeypatch, at_once):
    monkeypatch.setattr(noise, "_TAGGED_AT_ONCE", at_once)
    query = {"b": torch.tensor([1, -2, 3]), "a": torch.tensor([[0.5]]), "none": torch.zeros(0, 2)}
    parts = [("a", "torch.float32", "(1, 1)"), ("b", "torch.int64", "(3,)"), ("none", "torch.float32", "(0, 2)")]
    written = b""
    for name, dtype, shape in parts:
        for text in (name, dtype, shape):
            written += len(text).to_bytes(8, "big") + text.encode()
        written += query[name].numpy().tobytes()
    assert query_digest(query, key=KEY) == AESGCM(KEY).encrypt(bytes(12), b"", written)
    assert query_digest(query, key=KEY[::-1]) != query_digest(query, key=KEY)

import dataclasses
import io
import os
import stat
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from full_disk import files_of_at_most

from understudy.durable import is_of_disk
from understudy.errors import InputError
from understudy.evaluation.texts.encoder import Encoder, each_alone, embed, embed_sets, leave, load_encoder


def test_minilm_gives_unit_vectors_in_order(encoder):
    vectors = embed(["a good film", "a bad film", "a good film"], encoder)
    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(vectors[0], vectors[2], atol=1e-6)
    assert vectors[0] @ vectors[1] < 0.99


def test_meaning_is_closer_than_wording(encoder):
    near, far, other = embed(["the film was great", "a wonderful movie", "the tax was great"], encoder)
    assert near @ far > near @ other


def test_no_texts_give_no_rows(encoder):
    assert embed([], encoder).shape == (0, 384)


def test_a_row_that_is_no_text_is_named_by_its_index(encoder):
    with pytest.raises(InputError, match="row 1: expected a text"):
        embed(["fine", None], encoder)


def test_unknown_encoder_is_refused_offline():
    with pytest.raises(InputError, match="no-such-org/no-such-encoder"):
        load_encoder("no-such-org/no-such-encoder")


def test_a_folder_that_is_no_encoder_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_encoder(str(tmp_path))


def counting_encoder(digest="d"):
    calls = []

    def encode(texts):
        calls.append(list(texts))
        return np.array([[len(t), 1] for t in texts], dtype=np.float32)

    return Encoder(name="lengths", digest=digest, dimension=2, encode=encode), calls


def test_a_text_is_read_once_in_alphabetical_order_whatever_the_order_of_the_texts(tmp_path):
    encoder, calls = counting_encoder()
    for cache in (None, tmp_path):
        calls.clear()
        assert embed(["bb", "a", "bb", "a"], encoder, cache=cache)[:, 0].tolist() == [2, 1, 2, 1]
        assert calls == [["a", "bb"]]


def test_the_real_encoder_reads_each_text_once_over_sets_and_calls(encoder, tmp_path):
    read = []

    def noted(texts):
        read.extend(texts)
        return encoder.encode(texts)

    wrapped = dataclasses.replace(encoder, encode=noted)
    sets = {"one": ["a good film", "a bad film", "a good film"], "none": [], "two": ["a dull story", "a good film"]}
    found = embed_sets(sets, partial(embed, encoder=wrapped, cache=tmp_path))
    assert sorted(read) == ["a bad film", "a dull story", "a good film"]
    assert {name: rows.shape for name, rows in found.items()} == {"one": (3, 384), "none": (0, 384), "two": (2, 384)}
    assert found["one"][0].tobytes() == found["one"][2].tobytes() == found["two"][1].tobytes()
    later = embed(["a dull story", "a new story"], wrapped, cache=tmp_path)
    assert read[3:] == ["a new story"]
    assert later[0].tobytes() == found["two"][0].tobytes()
    assert np.allclose(later, encoder.encode(["a dull story", "a new story"]), atol=1e-6)


@pytest.mark.parametrize("texts", [[], ["one"], ["one", "two words", "three words here", "one", "a fifth one"]])
def test_texts_are_computed_alone_to_the_same_bytes_with_any_number_of_threads(encoder, texts):
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            found.append([vector.tobytes() for vector in each_alone(texts, encoder)])
            assert torch.get_num_threads() == threads
            if threads == 1:
                assert found[0] == [encoder.encode([text])[0].tobytes() for text in texts]
        finally:
            torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


def test_what_is_computed_alone_is_left_for_later_calls(tmp_path):
    encoder, calls = counting_encoder()
    texts = ["bb", "a", "cccc"]
    alone = dict(zip(texts, each_alone(texts, encoder), strict=True))
    leave(alone, encoder, tmp_path)
    leave({}, encoder, tmp_path)
    assert embed(texts, encoder, cache=tmp_path).tolist() == [alone[text].tolist() for text in texts]
    assert calls == [[text] for text in texts], "nothing is computed again"
    assert embed(["a", "dd"], encoder, cache=tmp_path)[:, 0].tolist() == [1, 2]
    assert calls[len(texts) :] == [["dd"]]


def test_an_error_of_one_text_leaves_the_threads_as_they_were():
    def encode(texts):
        if texts == ["bad"]:
            raise ValueError("bad")
        return np.ones((1, 2), np.float32)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="bad"):
            list(each_alone(["a", "b", "bad", "c"], Encoder("ones", "d", 2, encode)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_encoder_runs_where_it_is_told():
    with pytest.raises(Exception, match="no-such-device"):
        load_encoder(device="no-such-device")
    assert load_encoder(device="cpu").device == "cpu"


@pytest.mark.gpu
def test_on_a_gpu_the_encoder_computes_there():
    import torch

    before = torch.cuda.memory_allocated()
    encoder = load_encoder(device="cuda")
    assert torch.cuda.memory_allocated() > before
    assert np.allclose(encoder.encode(["a good film"]), load_encoder().encode(["a good film"]), atol=1e-4)


def test_cache_returns_the_same_bytes_without_encoding_again(tmp_path):
    encoder, calls = counting_encoder()
    first = embed(["a", "bb"], encoder, cache=tmp_path / "c")
    second = embed(["a", "bb"], encoder, cache=tmp_path / "c")
    assert calls == [["a", "bb"]]
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("count", [0, 3, 25])
def test_parts_give_what_the_whole_gives_and_tell_of_as_many_steps_whatever_the_number_of_texts(count, tmp_path):
    texts = [f"{'a' * number} text" for number in range(count)]
    (encoder, _), told = counting_encoder(), []
    for cache in (None, tmp_path):
        found = embed(texts, encoder, cache=cache, parts=10, progress=lambda *step: told.append(step))
        assert found.tobytes() == embed(texts, encoder).tobytes()
        assert told == [(part, 10) for part in range(1, 11)]
        told.clear()


def test_parts_that_a_killed_call_encoded_are_not_encoded_again(tmp_path):
    texts = [f"text {number:02}" for number in range(40)]
    encoder, calls = counting_encoder()

    def killed(part, _):
        if part == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(texts, encoder, cache=tmp_path, parts=4, progress=killed)
    assert calls == [texts[:10], texts[10:20], texts[20:30]]
    found = embed(texts, encoder, cache=tmp_path, parts=4)
    assert calls[3:] == [texts[30:]]
    assert found.shape == (40, 2)


def test_cache_tells_lists_apart_that_concatenate_alike(tmp_path):
    encoder, calls = counting_encoder()
    assert embed(["ab", "c"], encoder, cache=tmp_path).tolist() == [[2, 1], [1, 1]]
    assert embed(["a", "bc"], encoder, cache=tmp_path).tolist() == [[1, 1], [2, 1]]
    assert len(calls) == 2


def test_cache_is_not_shared_between_encoders(tmp_path):
    (one, calls), (other, other_calls) = counting_encoder("d"), counting_encoder("e")
    embed(["a"], one, cache=tmp_path)
    embed(["a"], other, cache=tmp_path)
    assert (len(calls), len(other_calls)) == (1, 1)
    embed(["a"], dataclasses.replace(one, device="cuda"), cache=tmp_path)
    assert len(calls) == 2, "another device gives other last digits"
    embed(["a"], one, cache=tmp_path)
    assert len(calls) == 2


def test_cache_names_are_keyed_by_the_directory_and_private(tmp_path):
    encoder, _ = counting_encoder()
    for folder in ("one", "other"):
        embed(["a secret"], encoder, cache=tmp_path / folder)
    files = [next((tmp_path / folder).glob("*.entries")) for folder in ("one", "other")]
    entries = [path.name for path in files]
    names = [np.load(io.BytesIO(path.read_bytes())).tolist() for path in files]
    assert entries[0] != entries[1], "the name of an entry must not be a digest of its content alone"
    assert names[0] != names[1]
    assert all(len(name) == 1 and b"secret" not in path.read_bytes() for name, path in zip(names, files, strict=True))
    key = tmp_path / "one" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o700
    assert sorted(os.listdir(tmp_path / "one")) == sorted([entries[0], "key"])


def test_nothing_is_written_without_a_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encoder, _ = counting_encoder()
    embed(["a"], encoder)
    assert list(tmp_path.rglob("*")) == []


def test_a_full_disk_is_told_with_the_file_that_could_not_be_written(tmp_path):
    """numpy says that so many bytes were requested and fewer written, of which file and why it does not."""
    encoder, _ = counting_encoder()
    cache = tmp_path / "cache"
    embed(["in time"], encoder, cache=cache)
    texts = ["a" * length for length in range(1, 1000)]
    with files_of_at_most(4096), pytest.raises(OSError, match="File too large") as found:
        embed(texts, encoder, cache=cache)
    assert is_of_disk(found.value)
    assert Path(found.value.filename).parent == cache
    assert len(list(cache.iterdir())) == 2, "the key and what was kept in time"
    assert np.array_equal(embed(texts, encoder, cache=cache), embed(texts, encoder))


def test_a_full_disk_that_takes_no_key_is_told_with_its_place(tmp_path):
    encoder, _ = counting_encoder()
    with files_of_at_most(0), pytest.raises(OSError, match="File too large") as found:
        embed(["a"], encoder, cache=tmp_path / "cache")
    assert is_of_disk(found.value)
    assert found.value.filename == str(tmp_path / "cache" / "key")
    assert not list((tmp_path / "cache").iterdir())

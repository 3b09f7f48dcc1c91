"""Documents to clients to samples to means: nothing lost, nobody counted twice, nobody moved by another."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.data.readers import read_source
from understudy.data.tables import check_clients
from understudy.errors import InputError, RowError
from understudy.methods.preference_optimization.clients import (
    LEAST_TOKENS,
    Clients,
    build_clients,
    build_texts,
    check_tokenizer,
    client_means,
    embed_samples,
)
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.models.loading import load_model
from understudy.progress import Course

DAY = "Today I took the steep path, and later I saw a grey heron by the river, patient as a stone. "
TOKENIZERS = {name: load_model(name).tokenizer for name in ("tiny-llama", "tiny-gpt2")}


def without_client(clients, slot):
    """The neighbouring data set: the same slots, with a null client in this one."""
    keep = clients.owner != slot
    dropped = clients.dropped_tokens.copy()
    dropped[slot] = 0
    samples = tuple(text for text, kept in zip(clients.samples, keep, strict=True) if kept)
    return replace(clients, samples=samples, owner=clients.owner[keep], dropped_tokens=dropped)


def table(*rows: tuple[str, str]) -> pa.Table:
    return check_clients(pa.table({"client_id": [who for who, _ in rows], "text": [text for _, text in rows]})).table


def tokens(tokenizer, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_documents_become_consecutive_samples_in_slots_of_first_appearance(name):
    tokenizer = TOKENIZERS[name]
    long, other = DAY * 20, "né 🐦 " * 60
    rows = [("zoe", long), ("adam", "Slow, but fine."), ("zoe", other), ("mia", " "), ("mia", DAY)]
    clients = build_clients(table(*rows), tokenizer, 64)
    assert clients.slots == 3
    assert len(clients.samples) == len(clients.owner) == clients.counts.sum()
    by_slot = dict(clients.by_slot())
    assert by_slot[1] == ("Slow, but fine.",)
    assert by_slot[2] == (DAY,)
    pieces = list(by_slot[0])
    of_long = next(i for i, piece in enumerate(pieces) if piece.startswith("n"))
    assert long.startswith("".join(pieces[:of_long]))
    assert other.startswith("".join(pieces[of_long:])), "samples do not reach over the end of a document"
    assert clients.counts.tolist() == [len(pieces), 1, 1]
    lost = long.removeprefix("".join(pieces[:of_long])), other.removeprefix("".join(pieces[of_long:]))
    total = tokens(tokenizer, long), tokens(tokenizer, other)
    assert clients.dropped_tokens.tolist() == [sum(n % 64 for n in total if n % 64 < LEAST_TOKENS), 0, 0]
    assert [bool(text) for text in lost] == [0 < n % 64 < LEAST_TOKENS for n in total]
    whole = [tokens(tokenizer, piece) for piece in pieces[: of_long - 1]]
    assert whole == [64] * len(whole)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("ab .é🐦\n")), max_size=120),
    size=st.integers(2, 20),
)
def test_samples_are_the_document_letter_for_letter(name, text, size):
    tokenizer = TOKENIZERS[name]
    rows = table(("a", text), ("a", "a"), ("b", "there"))
    clients = build_clients(rows, tokenizer, size)
    samples = list(dict(clients.by_slot())[0])
    assert samples.pop() == "a"
    if not text.strip():
        assert samples == []
        assert clients.dropped_tokens[0] == 0
        return
    assert samples, "a document that says something has a sample"
    assert all(sample.strip() for sample in samples)
    position = 0
    for sample in samples:  # in order, apart by white space only
        found = text.index(sample, position)
        assert not text[position:found].strip()
        position = found + len(sample)
    if clients.dropped_tokens[0] == 0:
        assert not text[position:].strip()
    assert 0 <= clients.dropped_tokens[0] < min(LEAST_TOKENS, size)


def test_last_piece_is_left_out_only_if_it_is_short_and_not_alone():
    tokenizer = TOKENIZERS["tiny-llama"]

    def built(count: int) -> tuple[int, int]:
        ids = tokenizer(DAY * 20, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        text = (DAY * 20)[: ids[count - 1][1]]
        assert tokens(tokenizer, text) == count
        clients = build_clients(table(("a", text), ("b", "Slow")), tokenizer, 16)
        return int(clients.counts[0]), int(clients.dropped_tokens[0])

    assert built(3) == (1, 0)
    assert built(16) == (1, 0)
    assert built(16 + LEAST_TOKENS - 1) == (1, LEAST_TOKENS - 1)
    assert built(16 + LEAST_TOKENS) == (2, 0)
    assert built(33) == (2, 1)


def test_a_client_whose_words_stand_behind_white_space_keeps_them():
    tokenizer = TOKENIZERS["tiny-gpt2"]
    clients = build_clients(table(("a", "\n" * 40 + "hi"), ("b", "there")), tokenizer, 8)
    assert "".join(dict(clients.by_slot())[0]).strip() == "hi"
    assert clients.dropped_tokens.tolist() == [0, 0]


def test_how_many_clients_there_are_beyond_the_declared_number_is_for_the_terminal():
    with pytest.raises(RowError, match="3 clients: expected at most slots=2"):
        build_clients(table(("a", "x"), ("b", "y"), ("c", "z")), TOKENIZERS["tiny-gpt2"], 8, slots=2)


def test_shipped_clients():
    rows = check_clients(read_source("sample:clients")).table
    clients = build_clients(rows, TOKENIZERS["tiny-llama"], 64)
    assert clients.slots == 40
    assert clients.counts.min() >= 1
    assert (clients.owner == np.sort(clients.owner)).all()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", "x"), ("b", " \n"), ("b", "\t")], "column 'text', row 1: expected a text of this client"),
        ([("a", "x"), ("b", "y"), ("A", "z")], "column 'client_id', row 2: duplicate client ids"),
        ([("a", "x"), ("b", "y"), ("b ", "z")], "row 2: .* expected the identifier of row 1"),
        ([("ﬁn", "x"), ("b", "y"), ("fin", "z")], "row 2: .* expected the identifier of row 0"),
    ],
)
def test_bad_rows_never_become_clients(rows, message):
    with pytest.raises(RowError, match=message) as error:
        build_clients(table(*rows), TOKENIZERS["tiny-llama"], 64)
    assert not {"'x'", "'y'", "'z'", "'A'", "'fin'"} & set(str(error.value).split())


def test_one_held_out_client_is_enough():
    rows = pa.table({"client_id": ["a", "a"], "text": [DAY, "Slow"]})
    clients = build_clients(rows, TOKENIZERS["tiny-llama"], 64)
    assert dict(clients.by_slot()) == {0: (DAY, "Slow")}


def test_a_tokenizer_without_offsets_is_refused():
    check_tokenizer(TOKENIZERS["tiny-llama"])
    with pytest.raises(InputError, match=r"offsets; use .*tokenizer\.json"):
        check_tokenizer(SimpleNamespace(is_fast=False))


def test_too_short_samples_are_refused():
    with pytest.raises(InputError, match="sample_tokens=1"):
        build_clients(table(("a", "x"), ("b", "y")), TOKENIZERS["tiny-llama"], 1)


def test_central_units_are_texts_and_null_texts_keep_their_slots():
    clients = build_texts(["one", None, DAY * 30, "one"])
    assert clients.slots == 4
    assert clients.samples == ("one", DAY * 30, "one")
    assert clients.owner.tolist() == [0, 2, 3]
    with pytest.raises(RowError, match=r"row 1: .*white space"):
        build_texts(["one", " ", "two"])
    with pytest.raises(RowError, match=r"row 2: .*empty text"):
        build_texts(["one", "two", ""])
    assert build_texts(["one"]).samples == ("one",), "one held-out text is enough"


def test_a_null_client_keeps_its_slot():
    rows = [("a", DAY * 9), ("b", DAY * 4), ("c", "fine")]
    clients = build_clients(table(*rows), TOKENIZERS["tiny-llama"], 16)
    neighbour = without_client(clients, 1)
    assert neighbour.slots == 3
    assert neighbour.counts.tolist() == [clients.counts[0], 0, 1]
    assert dict(neighbour.by_slot()) == {**dict(clients.by_slot()), 1: ()}
    assert dict(without_client(clients, 0).by_slot())[0] == ()
    assert without_client(clients, 0).dropped_tokens[0] == 0


def encode_with_batch_noise(texts):
    """An encoder whose last bits depend on what else is in the batch, as those of real ones do."""
    rows = [[len(text), text.count("e") + 1.0, text.count(" ")] for text in texts]
    return np.array(rows, dtype=np.float32) * (1 + 1e-6 * len(texts))


def test_no_clients_embedding_depends_on_another_client():
    clients = Clients(4, ("one", "two two", "three", "four e", "e"), np.array([0, 0, 2, 2, 3]), np.zeros(4, np.int64))
    found = embed_samples(clients, encode_with_batch_noise, dimension=3)
    assert found.dtype == np.float32
    for slot, samples in clients.by_slot():
        assert np.array_equal(found[clients.owner == slot], encode_with_batch_noise(samples).reshape(-1, 3))
    neighbour = embed_samples(without_client(clients, 2), encode_with_batch_noise, dimension=3)
    assert np.array_equal(neighbour, found[clients.owner != 2])
    assert not np.array_equal(encode_with_batch_noise(clients.samples), found), "one batch of all would differ"


@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_clients_that_a_killed_process_embedded_are_not_embedded_again(killed_at, tmp_path):
    clients = Clients(4, ("one", "two two", "three", "four e", "e"), np.array([0, 0, 2, 2, 3]), np.zeros(4, np.int64))
    read = []

    def encode(texts):
        read.extend(texts)
        return encode_with_batch_noise(texts)

    class Killed(TrainingCheckpoint):
        def save(self, step, tensors):
            super().save(step, tensors)
            if step == killed_at:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_samples(clients, encode, dimension=3, course=Course(Killed(tmp_path, every=1)))
    found = embed_samples(clients, encode, dimension=3, course=Course(TrainingCheckpoint(tmp_path, every=1)))
    assert read == list(clients.samples), "each once"
    assert np.array_equal(found, embed_samples(clients, encode_with_batch_noise, dimension=3))


@pytest.mark.parametrize("sizes", [[1] * 40, [37, 0, 0, 1, 2], [0, 3], [0]])
def test_progress_is_told_in_tenths_of_all_samples_and_not_client_by_client(sizes):
    """Otherwise somebody who looks on would see at which client it stands still."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    clients = Clients(len(sizes), tuple("e" * (n + 1) for n in range(len(owner))), owner, np.zeros(len(sizes), int))
    told = []
    course = Course(progress=lambda *step: told.append(step))
    embed_samples(clients, encode_with_batch_noise, dimension=3, course=course)
    assert told == [(tenth, 10) for tenth in range(1, 11)] * (len(owner) > 0)


def test_means_of_unit_embeddings_are_not_scaled_again():
    rows = np.array([[3.0, 0.0], [0.0, 0.5], [0.0, 0.0], [3.0, 4.0], [1.0, np.nan]], dtype=np.float32)
    means = client_means(rows, np.array([0, 0, 2, 3, 4]), slots=6)
    assert means.dtype == np.float64
    np.testing.assert_allclose(means[:4], [[0.5, 0.5], [0, 0], [0, 0], [0.6, 0.8]], atol=1e-12)
    assert not np.isfinite(means[4]).all()
    assert not means[5].any()


def test_class_means_stand_side_by_side():
    rows = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 7.0]])
    means = client_means(rows, np.array([0, 0, 0, 2]), slots=3, labels=np.array([1, 0, 1, 1]), classes=2)
    np.testing.assert_allclose(means, [[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), slots=st.integers(1, 6), classes=st.integers(1, 3))
def test_means_are_functions_of_one_client_to_the_last_bit(data, slots, classes):
    owner = np.array(sorted(data.draw(st.lists(st.integers(0, slots - 1), max_size=20))), dtype=np.int64)
    generator = np.random.default_rng(len(owner))
    rows = generator.normal(size=(len(owner), 5)).astype(np.float32)
    labels = generator.integers(classes, size=len(owner))
    means = client_means(rows, owner, slots=slots, labels=labels, classes=classes).reshape(slots, classes, 5)
    for slot in range(slots):
        for label in range(classes):
            own = [row.astype(float) for row, o, k in zip(rows, owner, labels, strict=True) if (o, k) == (slot, label)]
            expected = sum(row / math.sqrt(sum(x * x for x in row)) for row in own) / len(own) if own else np.zeros(5)
            np.testing.assert_allclose(means[slot, label], expected, atol=1e-15)
    gone = data.draw(st.integers(0, slots - 1))
    keep = owner != gone
    neighbour = client_means(rows[keep], owner[keep], slots=slots, labels=labels[keep], classes=classes)
    assert np.array_equal(np.delete(neighbour.reshape(means.shape), gone, 0), np.delete(means, gone, 0))
    assert not neighbour[gone].any()


def test_bad_owners_and_labels_are_refused():
    rows = np.ones((2, 3))
    for owner, labels, classes in (([1, 0], None, 1), ([0, 3], None, 1), ([-1, 0], None, 1), ([0, 1], [0, 2], 2)):
        with pytest.raises(ValueError, match="expected"):
            client_means(
                rows,
                np.array(owner),
                slots=3,
                labels=None if labels is None else np.array(labels),
                classes=classes,
            )
    with pytest.raises(ValueError, match="expected N rows"):
        client_means(rows, np.array([0]), slots=3)

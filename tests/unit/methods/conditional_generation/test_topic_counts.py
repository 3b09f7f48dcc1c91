"""Topics of rows by hand, the histogram over them, and the rows that it gives each topic."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.data.private_rows import PrivateRows
from understudy.evaluation.texts import encoder
from understudy.evaluation.texts.encoder import Encoder
from understudy.methods.conditional_generation.encode import count_topics, encode
from understudy.methods.conditional_generation.fitting import train_on_table
from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
from understudy.methods.conditional_generation.topic_counts import topic_sizes, topics_of_rows
from understudy.models.checkpoints import TrainingCheckpoint

TOPICS = (("ferry", "harbour"), ("soup",), ("snow", "ice"))
PLACES = {"ferry": 0, "harbour": 0, "soup": 1, "snow": 2, "ice": 2}


def vectors(texts):
    """Counts of the words of each topic, times a length that must not matter."""
    found = np.zeros((len(texts), 3), np.float32)
    for row, text in enumerate(texts):
        for word in text.replace(",", "").split():
            if word in PLACES:
                found[row, PLACES[word]] += 1
    return found * np.array([[1 + 9 * ("ferry" in text)] for text in texts], np.float32)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """In the place of the sentence encoder; it says with how many texts it was called."""
    calls = []

    def encode_(texts):
        calls.append(len(texts))
        return vectors(texts)

    plain = Encoder(name="by words", digest="e" * 64, dimension=3, encode=encode_)
    monkeypatch.setattr(encoder, "load_encoder", lambda **_: plain)
    return calls


def test_a_row_has_the_topic_whose_words_are_nearest_and_is_read_alone(stand_in):
    texts = ["soup", "snow and snow on a ferry", None, "the harbour", "", "snow snow soup"]
    assert topics_of_rows(texts, TOPICS).tolist() == [1, 2, 0, 0, 0, 2]
    assert set(stand_in) == {1}
    assert len(stand_in) == 3 + 5


def test_without_topics_no_row_is_read(stand_in):
    assert topics_of_rows(["soup", None], ()).tolist() == [0, 0]
    assert not stand_in


@pytest.fixture
def counted(make_config, tokenizer, label_names):
    config = make_config(topics={"keywords": TOPICS})

    def counted(texts, labels):
        return count_topics(encode(PrivateRows(texts, labels, label_names), tokenizer=tokenizer, config=config))

    return counted


ROWS = ["soup", "ferry", None, "snow", "soup", "harbour ferry"], [0, 2, None, 1, 0, 2]


def test_rows_are_counted_in_one_cell_and_null_rows_in_none(counted):
    assert counted(*ROWS).tolist() == [0, 2, 0, 0, 0, 1, 2, 0, 0]


@pytest.mark.parametrize("row", range(6))
def test_a_row_that_becomes_null_moves_one_count_by_one(counted, row):
    """The sensitivity that is charged: replace by null."""
    texts, labels = ([*part[:row], None, *part[row + 1 :]] for part in ROWS)
    moved = (counted(*ROWS) - counted(texts, labels)).abs()
    assert moved.sum() == (ROWS[0][row] is not None)


def test_a_labels_rows_are_shared_out_as_its_own_topics_are():
    sizes, names = {"a": 7, "b": 4}, ["a", "b", "c"]
    counts = [30, -5, 10, 0, -3, -1, 9, 9, 9]
    assert topic_sizes(sizes, names, counts, topics=3) == [5, 0, 2, 2, 1, 1, 0, 0, 0]
    assert topic_sizes(sizes, names, None, topics=3) == [3, 2, 2, 2, 1, 1, 0, 0, 0]
    assert topic_sizes(sizes, names, None, topics=1) == [7, 4, 0]


@given(
    sizes=st.lists(st.integers(0, 500), min_size=2, max_size=2),
    counts=st.lists(st.integers(-50, 500), min_size=8, max_size=8),
)
def test_every_label_keeps_its_number_of_rows(sizes, counts):
    wanted = torch.tensor(topic_sizes(dict(zip("ab", sizes, strict=True)), ["a", "b"], counts, topics=4)).view(2, 4)
    assert wanted.sum(1).tolist() == sizes
    assert (wanted >= 0).all()


def test_a_text_is_embedded_once_for_its_topic_and_its_class(
    stand_in, make_base, make_config, make_mechanisms, label_names, tmp_path
):
    """And the means are those of a run without topics, to the bit; what the evaluation finds is kept too."""
    private, found = PrivateRows(ROWS[0] * 3, ROWS[1] * 3, label_names), {}
    for name, topics in (("with", {"keywords": TOPICS}), ("without", {})):
        train = {"epochs": 1.0, "batch_size": 4}
        config = make_config(variant="naive", selection={"draws": 2}, topics=topics, train=train)
        schedule = schedule_of(queries_of(config, n=len(private), epsilon=math.inf, delta=1e-3, cache=tmp_path))
        asked = Asked(config, schedule, make_mechanisms(schedule))
        stand_in.clear()
        stored = train_on_table(private, asked, base=make_base(), embeddings=tmp_path / name)
        found[name] = stored.class_means
        assert len(stand_in) == sum(text is not None for text in private.valid_texts) + len(topics and TOPICS)
        stand_in.clear()
        encoder.embed([text for text in ROWS[0] if text is not None], encoder.load_encoder(), cache=tmp_path / name)
        assert not stand_in, "the evaluation finds them"
    assert (found["with"].vectors == found["without"].vectors).all()


class Killed(Exception):
    """The run's process died."""


def test_a_killed_run_goes_on_to_the_same_counts_and_weights(
    make_base, make_config, make_mechanisms, label_names, tmp_path
):
    """Its rows are read again for their topics, and the histogram is asked for again."""
    train = {"epochs": 2.0, "batch_size": 4, "checkpoint_every": 1}
    config = make_config(variant="naive", selection={"draws": 1}, topics={"keywords": TOPICS}, train=train)
    texts, labels = ROWS[0] * 3, ROWS[1] * 3
    schedule = schedule_of(queries_of(config, n=len(texts), epsilon=8.0, delta=1e-3, cache=tmp_path))
    private = PrivateRows(texts, labels, label_names)

    def run(name, progress):
        kept = TrainingCheckpoint(tmp_path / name, every=1)
        asked = Asked(config, schedule, make_mechanisms(schedule))
        return train_on_table(private, asked, base=make_base(), checkpoints=lambda _: kept, progress=progress)

    def dies(step, _steps):
        if step == 4:
            raise Killed

    whole = run("whole", None)
    with pytest.raises(Killed):
        run("killed", dies)
    resumed = run("killed", None)
    assert whole.topic_counts is not None
    assert len(whole.topic_counts) == len(label_names) * len(TOPICS)
    assert resumed.topic_counts == whole.topic_counts
    expected, found = (stored.trained.model.state_dict() for stored in (whole, resumed))
    assert all(found[name].equal(value) for name, value in expected.items())

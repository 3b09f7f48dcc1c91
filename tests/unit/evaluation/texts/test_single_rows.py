import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.evaluation.common_metrics import KIND_WORDS
from understudy.evaluation.texts.identifiers import KINDS, identify
from understudy.evaluation.texts.single_rows import KindReplay, Replay, replay_beside, replay_by_kind
from understudy.evaluation.texts.words import tokenize


def beside(made, private, holdout):
    return replay_beside(*tokenize(made, private, holdout), level=0.95)


def test_only_words_of_one_row_of_all_count():
    found = beside(["anna and carl met"], ["anna sat", "bert sat sat", "we"], ["carl ran", "we"])
    # Alone: anna, bert, and on the other side carl, ran. "sat" stands in two rows, "we" on both sides.
    assert (found.private, found.holdout) == (Replay(2, 1), Replay(2, 1))
    assert found.difference.value == 0


def test_a_side_without_any_has_no_share():
    found = beside(["a"], ["a b", "a b"], ["c"])
    assert found.private == Replay(0, 0)
    assert found.private.share == 0
    assert found.difference is None


rows = st.lists(st.lists(st.sampled_from("abcdefg"), max_size=5).map(" ".join), max_size=5)


@given(rows, rows, rows)
def test_agrees_with_looking_at_every_row(made, private, holdout):
    sets = [set(text.split()) for text in (*private, *holdout)]
    written = {word for text in made for word in text.split()}
    alone = [{word for word in own if sum(word in other for other in sets) == 1} for own in sets]
    expected = [
        Replay(sum(len(own) for own in side), sum(len(own & written) for own in side))
        for side in (alone[: len(private)], alone[len(private) :])
    ]
    found = beside(made, private, holdout)
    assert [found.private, found.holdout] == expected


def texts(generator, number, length=8, words=3000):
    return [" ".join(f"w{word}" for word in generator.integers(0, words, length)) for _ in range(number)]


def test_memorised_rows_are_told_from_chance_and_fresh_text_is_not():
    """With sides of other sizes too: the interval of fresh text leaves zero out in about one of twenty draws."""
    missed = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        private, holdout = texts(generator, 300), texts(generator, 100)
        missed += not _holds(beside(texts(generator, 150), private, holdout).difference, 0.0)
    assert missed <= 12  # 13 or more have probability 0.001 at one in twenty
    copied = beside([*private[:30], *texts(generator, 100)], private, holdout).difference
    assert copied.low > 0


def test_things_that_come_together_widen_the_interval():
    """Ten rows that were copied whole are ten findings and not a hundred."""
    private = [" ".join(f"p{row}x{word}" for word in range(10)) for row in range(100)]
    holdout = [" ".join(f"h{row}x{word}" for word in range(10)) for row in range(100)]
    rows = beside(private[:10], private, holdout).difference
    words = beside([" ".join(f"p{row}x0" for row in range(100))], private, holdout).difference
    assert rows.value == words.value == pytest.approx(0.1)
    assert rows.high - rows.low > 2 * (words.high - words.low)


def _holds(interval, value):
    return interval.low <= value <= interval.high


def test_kinds_are_counted_over_all_private_rows():
    private = ["a@x.org, 123456", "a@x.org", "no. 654321 and 777777"]
    found = replay_by_kind(*identify(["A@X.org 12-34-56, 999999"], private))
    assert found == {"email": KindReplay(1, 1, 0), "number": KindReplay(3, 1, 1)}


def test_every_kind_has_words():
    assert set(KIND_WORDS) == set(KINDS)

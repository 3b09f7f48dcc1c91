import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import InputError
from understudy.methods.gradient_matching.config import FilterConfig, VerbalizerConfig
from understudy.methods.gradient_matching.filters import (
    balance_mean_losses,
    checked_labels,
    exemplars_of,
    few_shot_labels,
    filter_texts,
    keep_lowest_losses,
    keep_where,
)
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.models.loading import load_model

NAMES = ("negative", "positive")
WORDS = VerbalizerConfig(words={"negative": "bad", "positive": "great"})
TEXTS = ["a wonderful , moving film", "dull and far too long", "so", "i loved every minute of this brilliant comedy"]
EXAMPLES = {"negative": ("the plot is a mess",), "positive": ("a warm and clever story", "superb")}

# Losses on a grid, so that ties are common.
table = st.lists(st.tuples(st.integers(0, 8).map(lambda i: i / 4), st.integers(0, 2)), max_size=24).map(
    lambda rows: (np.array([r[0] for r in rows], np.float64), np.array([r[1] for r in rows], np.int64))
)


def counts_of(kept, labels):
    """What the counts must be, from the rows alone."""
    gone = [row for row in range(len(labels)) if row not in set(kept.rows.tolist())]
    return tuple(sum(int(labels[row]) == label for row in gone) for label in range(3))


@given(table, st.one_of(st.integers(1, 9), st.sampled_from([0.1, 0.25, 0.5, 1 / 3, 1.0])))
def test_the_lowest_losses_stay_and_the_counts_add_up(rows, keep):
    losses, labels = rows
    kept = keep_lowest_losses(losses, labels, keep=keep, classes=3)
    assert kept.reason == "high_loss"
    assert sorted(set(kept.rows.tolist())) == kept.rows.tolist()
    assert kept.dropped == counts_of(kept, labels)
    for label in range(3):
        own = [row for row in range(len(labels)) if labels[row] == label]
        stay = [row for row in own if row in kept.rows]
        wanted = min(keep, len(own)) if isinstance(keep, int) else math.ceil(round(keep * len(own), 6))
        assert len(stay) == wanted
        # no dropped row is lower, and of equals the earlier ones stay
        assert stay == sorted(sorted(own, key=lambda row: (losses[row], row))[:wanted])


@given(table, st.sampled_from([0.01, 0.25, 0.5, 1.0]))
def test_balancing_drops_one_highest_loss_after_another(rows, least):
    """An independent loop: while a label's mean exceeds the lowest mean and rows are left, drop its highest loss."""
    losses, labels = rows
    kept = balance_mean_losses(losses, labels, classes=3, least_share=least)
    groups = [[row for row in range(len(labels)) if labels[row] == label] for label in range(3)]
    means = [float(np.mean(losses[group])) for group in groups if group]
    expected = []
    for group in groups:
        left = sorted(group, key=lambda row: (losses[row], row))
        floor = math.ceil(round(least * len(group), 6))
        while len(left) > floor and float(np.mean(losses[left])) > min(means) + 1e-12:
            left.pop()
        expected += left
    assert kept.rows.tolist() == sorted(expected)
    assert kept.dropped == counts_of(kept, labels)
    assert kept.reason == "unbalanced"


def test_balancing_by_hand():
    losses = np.array([0.2, 0.4, 0.6, 0.3, 0.5, 0.9, 1.1])  # means 0.4 and 0.7
    labels = np.array([0, 0, 0, 1, 1, 1, 1])
    kept = balance_mean_losses(losses, labels, classes=2)
    assert kept.rows.tolist() == [0, 1, 2, 3, 4]  # 0.3 and 0.5 have the mean 0.4
    assert kept.dropped == (0, 2)
    far = balance_mean_losses(losses + 2 * labels, labels, classes=2)
    assert far.rows.tolist() == [0, 1, 2, 3]  # nothing can balance them: a quarter stays
    assert balance_mean_losses(losses, np.ones(7, np.int64), classes=3).rows.tolist() == list(range(7))


def test_a_label_without_rows_changes_nothing():
    losses, labels = np.array([0.1, 0.9]), np.array([2, 2])
    assert balance_mean_losses(losses, labels, classes=3).dropped == (0, 0, 0)
    assert keep_lowest_losses(losses, labels, keep=1, classes=3).rows.tolist() == [0]
    empty = np.zeros(0), np.zeros(0, np.int64)
    assert balance_mean_losses(*empty, classes=2).rows.tolist() == []
    assert keep_lowest_losses(*empty, keep=0.5, classes=2).dropped == (0, 0)


@pytest.mark.parametrize("keep", [0, 0.0, 1.5, -1])
def test_an_impossible_share_is_refused(keep):
    with pytest.raises(ValueError, match="expected a whole number"):
        keep_lowest_losses(np.zeros(2), np.zeros(2, np.int64), keep=keep, classes=2)


def test_what_is_no_loss_or_no_label_is_refused():
    with pytest.raises(ValueError, match="finite"):
        balance_mean_losses(np.array([np.nan]), np.array([0]), classes=2)
    with pytest.raises(ValueError, match=r"0\.\.1"):
        balance_mean_losses(np.array([0.1]), np.array([2]), classes=2)
    with pytest.raises(ValueError, match=r"found \(2,\) and \(3,\)"):
        keep_lowest_losses(np.zeros(2), np.zeros(3, np.int64), keep=1, classes=2)


def test_examples_come_with_the_labels_in_turn():
    config = FilterConfig(examples=EXAMPLES)
    assert exemplars_of(config, NAMES) == [("the plot is a mess", 0), ("a warm and clever story", 1), ("superb", 1)]
    assert exemplars_of(FilterConfig(), NAMES) == []
    with pytest.raises(InputError, match=r"\['neutral'\]"):
        exemplars_of(FilterConfig(examples={"neutral": ("x",)}), NAMES)


@pytest.mark.parametrize("exemplars", [[], [("a warm and clever story", 1), ("the plot is a mess", 0)]])
def test_the_label_check_asks_row_by_row_what_it_asks_in_a_batch(exemplars):
    base = load_model("tiny-gpt2")
    encode = base.tokenizer.encode
    words = [encode(" bad")[0], encode(" great")[0]]
    before = [0]
    for text, label in exemplars:
        before += encode(" " + text) + encode(" It was") + [words[label]] + encode("\n\n")
    by_hand = []
    for text in TEXTS:
        ids = torch.tensor([before + encode(" " + text)[:6] + encode(" It was")])
        with torch.no_grad():
            by_hand.append(int(base.model(input_ids=ids).logits[0, -1, words].argmax()))
    verbalizer = build_verbalizer(base.tokenizer, NAMES, WORDS)
    found = few_shot_labels(TEXTS, base=base, verbalizer=verbalizer, exemplars=exemplars, max_length=6)
    assert found.tolist() == by_hand
    assert set(by_hand) == {0, 1}


def test_the_prior_over_words_is_taken_off_where_no_examples_are_shown():
    base = load_model("tiny-gpt2")
    verbalizer = build_verbalizer(base.tokenizer, NAMES, WORDS)

    def said(*, exemplars=(), prior=()):
        return few_shot_labels(
            TEXTS, base=base, verbalizer=verbalizer, exemplars=exemplars, max_length=6, prior=prior
        ).tolist()

    # What a word is given for free counts against it.
    assert (said(prior=(100.0, 0.0)), said(prior=(0.0, 100.0))) == ([1] * 4, [0] * 4)
    # Examples bring a prior of their own, which the one of the bare question is not.
    exemplars = [("a warm and clever story", 1), ("the plot is a mess", 0)]
    assert said(exemplars=exemplars, prior=(100.0, 0.0)) == said(exemplars=exemplars)


def test_examples_beyond_the_context_are_refused():
    base = load_model("tiny-gpt2")
    verbalizer = build_verbalizer(base.tokenizer, NAMES, WORDS)
    with pytest.raises(InputError, match=r"filter\.examples: 2 examples .*200 tokens .*512"):
        few_shot_labels(["a"], base=base, verbalizer=verbalizer, exemplars=[("word " * 300, 0)] * 2, max_length=200)


def test_all_steps_in_order_and_counted(make_base, tokenizer):
    base = make_base()
    verbalizer = build_verbalizer(tokenizer, NAMES, WORDS)
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(["good", "bad", "film", "plot", "cast"], 4)) for _ in range(40)] + ["", " \n"]
    labels = np.arange(42) % 2
    losses = generator.random(42) + 0.2 * labels
    config = FilterConfig(label_check=True, keep_lowest=8, examples=EXAMPLES)
    found = filter_texts(texts, losses, labels, base=base, verbalizer=verbalizer, config=config, max_length=10)
    said = few_shot_labels(
        texts, base=base, verbalizer=verbalizer, exemplars=exemplars_of(config, NAMES), max_length=10
    )
    rows = np.array([row for row in range(40) if said[row] == labels[row]])
    assert 8 < len(rows) < 40
    rows = rows[keep_lowest_losses(losses[rows], labels[rows], keep=8, classes=2).rows]
    rows = rows[balance_mean_losses(losses[rows], labels[rows], classes=2).rows]
    assert found.rows.tolist() == rows.tolist()
    assert len(found.spare) == sum(found.steps[-1].dropped)
    assert not set(found.spare.tolist()) & set(rows.tolist())
    assert found.checked == (20, 20)
    assert [step.reason for step in found.steps] == ["empty", "wrong_label", "high_loss", "unbalanced"]
    report = found.report(NAMES)
    assert report["empty"] == {"negative": 1, "positive": 1}
    assert sum(sum(drops.values()) for drops in report.values()) + len(found.rows) == 42
    for name, label in zip(NAMES, (0, 1), strict=True):
        assert sum(drops[name] for drops in report.values()) == 21 - int((labels[found.rows] == label).sum())


def test_the_label_check_reads_the_named_labels_only():
    base = load_model("tiny-gpt2")
    verbalizer = build_verbalizer(base.tokenizer, NAMES, WORDS)
    texts, labels, losses = TEXTS * 10, np.arange(40) // 4 % 2, np.ones(40)
    said = few_shot_labels(texts, base=base, verbalizer=verbalizer, exemplars=[], max_length=10)
    config = FilterConfig(label_check=("positive",), balance=False)
    found = filter_texts(texts, losses, labels, base=base, verbalizer=verbalizer, config=config, max_length=10)
    assert found.rows.tolist() == [row for row in range(40) if labels[row] == 0 or said[row] == 1]
    assert 20 < len(found.rows) < 40
    assert found.checked == (0, 20)
    assert found.report(NAMES)["wrong_label"] == {"negative": 0, "positive": 40 - len(found.rows)}


def test_the_labels_that_are_checked_are_declared_ones():
    given = {True: NAMES, False: (), "auto": (), ("positive",): ("positive",)}
    assert all(checked_labels(FilterConfig(label_check=said), NAMES) == found for said, found in given.items())
    with pytest.raises(InputError, match=r"label_check names \['neutral'\]"):
        checked_labels(FilterConfig(label_check=("neutral",)), NAMES)


def test_steps_can_be_left_out(make_base, tokenizer):
    base, verbalizer = make_base(), build_verbalizer(tokenizer, NAMES, WORDS)
    config = FilterConfig(label_check=False, balance=False, keep_lowest=1.0)
    losses, labels = np.array([0.9, 0.1, 0.5], np.float32), [0, 1, 1]
    found = filter_texts(["a", "b", "c"], losses, labels, base=base, verbalizer=verbalizer, config=config, max_length=4)
    assert found.rows.tolist() == [0, 1, 2]
    assert found.report(NAMES) == {
        "empty": {"negative": 0, "positive": 0},
        "high_loss": {"negative": 0, "positive": 0},
    }
    with pytest.raises(ValueError, match=r"found \(3,\) and \(3,\)"):
        filter_texts(["a"], losses, labels, base=base, verbalizer=verbalizer, config=config, max_length=4)


def test_keep_where_names_its_reason():
    kept = keep_where(np.array([True, False, True]), np.array([0, 1, 1]), reason="wrong_label", classes=3)
    assert (kept.rows.tolist(), kept.reason, kept.dropped) == ([0, 2], "wrong_label", (0, 1, 0))

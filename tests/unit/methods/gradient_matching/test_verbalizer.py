import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.errors import InputError
from understudy.methods.gradient_matching.config import VerbalizerConfig
from understudy.methods.gradient_matching.verbalizer import build_verbalizer, encode_rows

NAMES = ("negative", "positive")


def test_words_become_the_tokens_that_follow_the_template(tokenizer):
    words = build_verbalizer(tokenizer, NAMES, VerbalizerConfig(words={"positive": "great", "negative": " bad "}))
    assert words.label_names == NAMES
    assert tokenizer.decode(words.token_ids) == " bad great"
    assert tokenizer.decode(words.template_ids) == " It was"
    assert words.prefix_ids.tolist() == [tokenizer.bos_token_id]
    whole = tokenizer.encode(" a film It was great", add_special_tokens=False)
    assert whole[-len(words.template_ids) - 1 :] == [*words.template_ids.tolist(), int(words.token_ids[1])]


def test_without_words_the_names_are_verbalised(tokenizer):
    found = build_verbalizer(tokenizer, NAMES, VerbalizerConfig())
    expected = [tokenizer.encode(" " + name, add_special_tokens=False)[0] for name in NAMES]
    assert found.token_ids.tolist() == expected


def test_labels_with_one_first_token_are_refused_by_both_names(tokenizer):
    words = {"good": "great", "fine": "terrible", "superb": "great!"}
    with pytest.raises(InputError, match="same token") as refused:
        build_verbalizer(tokenizer, list(words), VerbalizerConfig(words=words))
    token = tokenizer.encode(" great", add_special_tokens=False)[0]
    message = str(refused.value)
    assert "'good' ('great')" in message
    assert "'superb' ('great!')" in message
    assert f"' great' ({token})" in message


@pytest.mark.parametrize(
    ("names", "config", "message"),
    [
        (["one"], {}, "at least two labels"),
        (NAMES, {"words": {"positive": "great"}}, r"none for \['negative'\]"),
        (NAMES, {"words": {"positive": "great", "negative": "bad", "neutral": "so"}}, r"unknown labels \['neutral'\]"),
        (NAMES, {"words": {"positive": "great", "negative": " "}}, "'negative' has no token"),
    ],
)
def test_words_that_do_not_fit_the_labels_are_refused(tokenizer, names, config, message):
    with pytest.raises(InputError, match=message):
        build_verbalizer(tokenizer, names, VerbalizerConfig(**config))


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.none() | st.text(max_size=60), min_size=1, max_size=6), max_length=st.integers(1, 12))
def test_rows_hold_prefix_text_and_template_in_one_public_shape(tokenizer, texts, max_length):
    words = build_verbalizer(tokenizer, NAMES, VerbalizerConfig())
    rows = encode_rows(texts, tokenizer=tokenizer, verbalizer=words, max_length=max_length)
    assert rows.input_ids.shape == (len(texts), 1 + max_length + len(words.template_ids))
    for row, text in enumerate(texts):
        expected = [] if text is None else tokenizer.encode(" " + text.strip(), add_special_tokens=False)[:max_length]
        last = int(rows.last[row])
        whole = [tokenizer.bos_token_id, *expected, *words.template_ids.tolist()]
        assert rows.input_ids[row, : last + 1].tolist() == whole
        assert (rows.input_ids[row, last + 1 :] == tokenizer.pad_token_id).all()
        assert rows.text_tokens[row] == len(expected)
    assert rows.input_ids.dtype == rows.last.dtype == torch.int64


def test_a_long_private_text_is_not_warned_of(tokenizer, caplog, capfd):
    words = build_verbalizer(tokenizer, NAMES, VerbalizerConfig())
    encode_rows(["word " * 5000], tokenizer=tokenizer, verbalizer=words, max_length=8)
    assert not caplog.records
    assert capfd.readouterr().err == ""

import copy

import pytest
import torch

from understudy.data.private_rows import PrivateRows
from understudy.errors import InputError
from understudy.generation.prompts import encode_prompts, encode_text
from understudy.methods.conditional_generation.encode import encode


def encode_rows(texts, labels, *, tokenizer, config, label_names):
    return encode(PrivateRows(texts, labels, label_names), tokenizer=tokenizer, config=config)


def test_a_row_reads_prompt_text_eos(tokenizer, make_config, label_names):
    text = "a slow film"
    for label, name in enumerate(label_names):
        rows = encode_rows([text], [label], tokenizer=tokenizer, config=make_config(), label_names=label_names)
        expected = [*encode_prompts(tokenizer, name), *encode_text(tokenizer, text), tokenizer.eos_token_id]
        assert rows.input_ids[0][rows.attention_mask[0].bool()].tolist() == expected
        lost = rows.input_ids[0][rows.loss_mask[0]].tolist()
        assert lost == [*encode_text(tokenizer, text), tokenizer.eos_token_id]
        assert rows.loss_mask[0].nonzero()[0] == rows.prompts.width


def test_a_text_ends_as_the_chat_ends_an_answer(tokenizer, make_config, label_names):
    chat = copy.deepcopy(tokenizer)
    chat.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    chat.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"
    rows = encode_rows(["a slow film"], [0], tokenizer=chat, config=make_config(), label_names=label_names)
    lost = rows.input_ids[0][rows.loss_mask[0]].tolist()
    assert lost == [*encode_text(chat, "a slow film", lead=""), chat.convert_tokens_to_ids("<|im_end|>")]


def test_shapes_are_public(tokenizer, make_config, label_names):
    config = make_config()
    short = encode_rows(["a"], [0], tokenizer=tokenizer, config=config, label_names=label_names)
    long = encode_rows(["word " * 99], [2], tokenizer=tokenizer, config=config, label_names=label_names)
    for name in ("input_ids", "attention_mask", "loss_mask", "label", "valid"):
        assert getattr(short, name).shape == getattr(long, name).shape
    assert short.input_ids.shape == (1, short.prompts.width + config.train.max_length)
    assert (short.prompts.width, short.label_span) == (long.prompts.width, long.label_span)


def test_long_texts_are_cut_without_an_end_and_counted(tokenizer, make_config, label_names):
    texts = ["word " * 99, "short", "word " * 98]
    rows = encode_rows(texts, [0, 1, 2], tokenizer=tokenizer, config=make_config(), label_names=label_names)
    assert rows.truncated == 2
    assert rows.loss_mask[0, rows.prompts.width :].all()
    assert tokenizer.eos_token_id not in rows.input_ids[0, rows.prompts.width :].tolist()


@pytest.mark.parametrize(("text", "label"), [(None, 1), ("text", None), (None, None)])
def test_a_null_row_keeps_its_slot_and_says_nothing(tokenizer, make_config, label_names, text, label):
    rows = encode_rows(["a", text], [0, label], tokenizer=tokenizer, config=make_config(), label_names=label_names)
    empty = encode_rows([None], [None], tokenizer=tokenizer, config=make_config(), label_names=label_names)
    assert rows.valid.tolist() == [True, False]
    assert not rows.loss_mask[1].any()
    for name in ("input_ids", "attention_mask", "loss_mask", "label"):
        assert torch.equal(getattr(rows, name)[1], getattr(empty, name)[0])


@pytest.mark.parametrize("label", [-1, 3])
def test_an_undeclared_label_is_refused_by_row_not_by_text(tokenizer, make_config, label_names, label):
    with pytest.raises(InputError, match="row 1") as refused:
        encode_rows(["a", "secret"], [0, label], tokenizer=tokenizer, config=make_config(), label_names=label_names)
    assert "secret" not in str(refused.value)


def test_no_rows_encode_to_nothing(tokenizer, make_config, label_names):
    rows = encode_rows([], [], tokenizer=tokenizer, config=make_config(), label_names=label_names)
    assert rows.input_ids.shape == (0, rows.prompts.width + 20)

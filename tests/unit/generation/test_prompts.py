import pytest
import torch

from understudy.errors import InputError
from understudy.generation.prompts import (
    PromptFormat,
    build_prompts,
    encode_prompts,
    encode_text,
    position_ids,
    row_seeds,
)

NAMES = ["negative", "positive", "rather undecided"]


def test_prompt_reads_bos_label_separator(tiny_llama):
    tokenizer = tiny_llama.tokenizer
    ids = encode_prompts(tokenizer, "positive", PromptFormat(separator=" |"))
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:]) == " positive |"


def test_text_goes_on_where_the_prompt_ends(tiny_llama):
    tokenizer = tiny_llama.tokenizer
    assert tokenizer.decode(encode_text(tokenizer, "  a fine film \n")) == " a fine film"


def test_prompts_share_one_width_and_end_alike(tiny_llama):
    tokenizer = tiny_llama.tokenizer
    table = build_prompts(tokenizer, NAMES)
    for row, name in enumerate(NAMES):
        ids = encode_prompts(tokenizer, name)
        assert table.input_ids[row, table.width - len(ids) :].tolist() == ids
        assert table.attention_mask[row].tolist() == [0] * (table.width - len(ids)) + [1] * len(ids)
    assert table.width == max(len(encode_prompts(tokenizer, name)) for name in NAMES)


def test_label_span_covers_the_widest_label_and_nothing_else(tiny_llama):
    tokenizer = tiny_llama.tokenizer
    prompt = PromptFormat(before="A review,", separator=":")
    table = build_prompts(tokenizer, NAMES, prompt)
    start, stop = table.label_span
    widest = int(table.attention_mask.sum(1).argmax())
    assert tokenizer.decode(table.input_ids[widest, start:stop]) == " rather undecided"
    assert tokenizer.decode(table.neutral_ids[1:start]) == "A review,"
    assert tokenizer.decode(table.neutral_ids[stop:]) == ":"
    assert not set(tokenizer.all_special_ids) & set(table.ordinary_ids.tolist())
    assert len(table.ordinary_ids) == len(tokenizer) - len(set(tokenizer.all_special_ids))


@pytest.mark.parametrize("names", [["good", "good"], ["good", " good "]])
def test_labels_with_the_same_tokens_are_refused(tiny_llama, names):
    with pytest.raises(InputError, match="same tokens"):
        build_prompts(tiny_llama.tokenizer, names)


@pytest.mark.parametrize("names", [[], ["only"]])
def test_fewer_than_two_labels_are_refused(tiny_llama, names):
    with pytest.raises(InputError, match="at least two"):
        build_prompts(tiny_llama.tokenizer, names)


def test_positions_count_real_tokens_only():
    mask = torch.tensor([[0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1, 2, 2], [0, 1, 2, 3, 4, 5]]


def test_a_rows_seed_depends_on_its_number_alone():
    seeds = row_seeds(7, range(100), purpose="text/0")
    assert row_seeds(7, [42], purpose="text/0") == [seeds[42]]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert row_seeds(8, [42], purpose="text/0") != [seeds[42]]
    assert row_seeds(7, [42], purpose="text/1") != [seeds[42]]

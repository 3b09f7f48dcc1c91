import copy
from dataclasses import replace

import pytest
import torch
from tokenizers import AddedToken

from understudy.errors import InputError
from understudy.generation import own_texts
from understudy.generation.prompts import (
    PromptFormat,
    build_prompts,
    encode_prompts,
    encode_text,
    end_token,
    position_ids,
    row_seeds,
    special_token_ids,
    uses_chat,
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


def test_with_topics_each_label_has_a_prompt_for_each_and_all_one_width(tiny_llama):
    tokenizer, topics = tiny_llama.tokenizer, (("ferry", "ticket"), ("crew",))
    table = build_prompts(tokenizer, NAMES, about="notes", topics=topics)
    said = [f"{name} about {words}" for name in NAMES for words in ("ferry, ticket", "crew")]
    assert (table.topics, table.input_ids.shape) == (2, (6, table.width))
    for row, words in enumerate(said):
        ids = encode_prompts(tokenizer, words, about="notes")
        assert table.input_ids[row, table.width - len(ids) :].tolist() == ids
        assert int(table.attention_mask[row].sum()) == len(ids)
    start, stop = table.label_span
    widest = int(table.attention_mask.sum(1).argmax())
    assert tokenizer.decode(table.input_ids[widest, start:stop]) == f" {said[widest]}"
    with pytest.raises(InputError, match="same tokens"):
        build_prompts(tokenizer, NAMES, topics=(("crew",), ("crew",)))


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


SYSTEM_AND_USER = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
USER_ONLY = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + SYSTEM_AND_USER
)

# Branches for user and assistant, and none for the system: it is left out, and nothing is said of that.
SILENT = SYSTEM_AND_USER.replace("<{{ m['role'] }}>", "{% if m['role'] != 'system' %}<{{ m['role'] }}>").replace(
    "</>\n", "</>\n{% endif %}"
)
SHORTENING = SYSTEM_AND_USER.replace(
    "{{ m['content'] }}", "{{ m['content'][:9] if m['role'] == 'system' else m['content'] }}"
)


@pytest.fixture
def with_template(tiny_llama):
    def made(template: str):
        tokenizer = copy.deepcopy(tiny_llama.tokenizer)
        tokenizer.chat_template = template
        return tokenizer

    return made


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (SYSTEM_AND_USER, "<system>You write film reviews.</>\n<user>positive</>\n<assistant>\n"),
        (USER_ONLY, "<user>You write film reviews.\n\npositive</>\n<assistant>\n"),
        (SILENT, "<user>You write film reviews.\n\npositive</>\n<assistant>\n"),
        (SHORTENING, "<user>You write film reviews.\n\npositive</>\n<assistant>\n"),
    ],
    ids=["system", "user only", "system left out", "system shortened"],
)
def test_an_instruct_model_is_asked_through_its_chat_template(with_template, template, expected):
    tokenizer = with_template(template)
    assert tokenizer.decode(encode_prompts(tokenizer, "positive", about="film reviews")) == expected
    table = build_prompts(tokenizer, NAMES, about="film reviews")
    start, stop = table.label_span
    widest = int(table.attention_mask.sum(1).argmax())
    assert tokenizer.decode(table.input_ids[widest, start:stop]) == "rather undecided"
    assert table.lead == ""
    assert tokenizer.decode(encode_text(tokenizer, " a fine film ", lead=table.lead)) == "a fine film"


# A template that ends turns with a special token of its own, as those of Gemma and ChatML do.
TURNS = SYSTEM_AND_USER.replace("</>", "<|im_end|>")


def test_a_text_ends_as_the_chat_template_ends_an_answer(with_template):
    tokenizer = with_template(TURNS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    turn = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert turn != tokenizer.eos_token_id
    assert build_prompts(tokenizer, NAMES).end == end_token(tokenizer, in_chat=True) == turn
    plain = PromptFormat(style="plain")
    assert build_prompts(tokenizer, NAMES, plain).end == end_token(tokenizer, in_chat=False) == tokenizer.eos_token_id
    # Where the template writes ordinary text behind an answer, that ends nothing.
    ordinary = with_template(SYSTEM_AND_USER)
    assert build_prompts(ordinary, NAMES).end == ordinary.eos_token_id


def test_a_token_that_is_only_added_as_special_ends_a_text_and_others_are_never_drawn(
    with_template, tiny_llama, monkeypatch
):
    """As in Phi-3: turns end with `<|end|>`, which is no `eos` and not among `all_special_ids`."""
    tokenizer = with_template(SYSTEM_AND_USER.replace("</>", "<|end|>"))
    tokenizer.add_tokens([AddedToken(name, special=True) for name in ("<|end|>", "<|user|>")])
    tokenizer.add_tokens([AddedToken("ordinary", special=False)])
    turn, other, ordinary = tokenizer.convert_tokens_to_ids(["<|end|>", "<|user|>", "ordinary"])
    assert not {turn, other} & set(tokenizer.all_special_ids)
    assert set(special_token_ids(tokenizer)) == {*tokenizer.all_special_ids, turn, other}
    table = build_prompts(tokenizer, NAMES)
    assert table.end == end_token(tokenizer, in_chat=True) == turn
    assert {turn, other}.isdisjoint(table.ordinary_ids.tolist())
    assert ordinary in table.ordinary_ids
    asked = []

    def scripted(model, prompts, *, seeds, eos, forbidden, **_):
        asked.append((eos, set(forbidden)))
        return [[ordinary] for _ in seeds]

    monkeypatch.setattr(own_texts, "sample", scripted)
    own_texts.write_own_texts(replace(tiny_llama, tokenizer=tokenizer), NAMES, about="", per_label=1, tokens=4)
    assert asked == [(turn, set(special_token_ids(tokenizer)))]


def test_a_chat_template_that_shows_nothing_of_a_message_is_refused(with_template):
    with pytest.raises(InputError, match=r"film reviews.*prompt\.style=plain"):
        encode_prompts(with_template("<user></>"), "positive", about="film reviews")


def test_a_format_of_ones_own_goes_before_the_template(with_template):
    tokenizer = with_template(SYSTEM_AND_USER)
    own = PromptFormat(separator=" |")
    assert tokenizer.decode(encode_prompts(tokenizer, "positive", own)[1:]) == " positive |"
    assert tokenizer.decode(encode_prompts(tokenizer, "positive", PromptFormat(style="plain"))[1:]) == " positive:"
    assert not uses_chat(tokenizer, PromptFormat(style="plain"))


def test_a_chat_without_a_template_is_refused(tiny_llama):
    with pytest.raises(InputError, match="chat template"):
        encode_prompts(tiny_llama.tokenizer, "positive", PromptFormat(style="chat"))


def test_a_base_model_reads_the_words_before_the_label(tiny_llama):
    tokenizer = tiny_llama.tokenizer
    plain = encode_prompts(tokenizer, "positive", about="film reviews")
    own = encode_prompts(tokenizer, "positive", PromptFormat(before="A review,"), about="film reviews")
    assert tokenizer.decode(plain[1:]) == " film reviews, positive:"
    assert tokenizer.decode(own[1:]) == "A review, positive:"

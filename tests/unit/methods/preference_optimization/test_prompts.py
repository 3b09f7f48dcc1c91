import copy
import json
from collections import Counter
from dataclasses import replace

import pytest

from understudy.errors import InputError
from understudy.generation.config import SamplingConfig
from understudy.methods.preference_optimization.config import CandidateConfig, PreferenceOptimizationConfig
from understudy.methods.preference_optimization.method import METHOD, resolve
from understudy.methods.preference_optimization.prompts import RoundSeed, prompt_tokens, round_prompts
from understudy.models.folders import model_folder
from understudy.models.loading import LoadedModel, load_model

SEEDS = [f"seed text number {number} about the weather" for number in range(30)]
SMALL = CandidateConfig(prompts=8, per_prompt=3, seed_tokens=12, sampling=SamplingConfig(max_new_tokens=10, top_p=1.0))
RATE = {"learning_rate": 1e-3}  # what is chosen otherwise has its own tests
CHAT = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>\n{% endfor %}<assistant>{{ '\n' }}"
SPECIAL = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return load_model("tiny-llama")


@pytest.fixture
def with_template(llama):
    def made(template: str) -> LoadedModel:
        tokenizer = copy.deepcopy(llama.tokenizer)
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
        tokenizer.chat_template = template
        return replace(llama, tokenizer=tokenizer)

    return made


def prompts_of(loaded, config=SMALL, seeds=SEEDS, *, label=None, about="", **more):
    seed = RoundSeed(**{"round": 0, "public_seed": 0, **more})
    return round_prompts(seeds, config, loaded=loaded, seed=seed, label=label, about=about)


def shown(prompt: str) -> list[str]:
    return [line.partition(": ")[2] for line in prompt.splitlines() if line.startswith("Text ") and ": " in line]


def test_a_prompt_lists_different_public_texts_and_asks_for_the_next(llama):
    prompts = prompts_of(llama)
    assert len(prompts) == 8
    for prompt in prompts:
        assert prompt.endswith("\n\nText 4:")
        assert [line.split(":")[0] for line in prompt.splitlines() if line.startswith("Text")] == [
            "Text 1",
            "Text 2",
            "Text 3",
            "Text 4",
        ]
        assert len(set(shown(prompt))) == 3
        assert set(shown(prompt)) <= set(SEEDS)


def test_every_public_text_is_as_likely_as_any_other(llama):
    config = SMALL.model_copy(update={"prompts": 2000})
    counts = Counter(text for prompt in prompts_of(llama, config) for text in shown(prompt))
    statistic = sum((counts[text] - 200) ** 2 / 200 for text in SEEDS)
    assert len(counts) == 30
    assert statistic < 58.3  # 99.9 % of chi-squared with 29 degrees; drawing without repetition only lowers it


def test_a_prompt_depends_on_seed_round_label_and_number_alone(llama):
    config = SMALL.model_copy(update={"instruction": "About {label}:"})
    wider = SMALL.model_copy(update={"prompts": 20})
    prompts = prompts_of(llama)
    assert prompts_of(llama, wider)[:8] == prompts
    others = [
        prompts_of(llama, public_seed=1),
        prompts_of(llama, round=1),
        prompts_of(llama, config, label="rain"),
        prompts_of(llama, config, label="snow"),
    ]
    drawn = [[shown(prompt) for prompt in some] for some in [prompts, *others]]
    assert all(one != other for i, one in enumerate(drawn) for other in drawn[:i])


@pytest.mark.parametrize(
    ("given", "label", "heading"),
    [
        ({"about": "film reviews"}, None, "A list of different film reviews:"),
        ({"about": "film reviews", "variant": "central_conditional"}, "bad", "A list of different film reviews, bad:"),
        ({"about": "film reviews", "candidates": {"instruction": "Films:"}}, None, "Films:"),
        ({"about": ""}, None, "A list of different texts:"),
    ],
)
def test_a_prompt_opens_with_what_the_texts_are_about_unless_its_words_are_given(llama, given, label, heading):
    config = resolve(PreferenceOptimizationConfig.model_validate({**given, "preferences": RATE}), 100)
    prompts = prompts_of(llama, SMALL.model_copy(update={"instruction": config.candidates.instruction}), label=label)
    assert {prompt.splitlines()[0] for prompt in prompts} == {heading}


def test_texts_are_cut_by_tokens_and_stand_on_one_line(llama):
    long = [
        "one two\n\nText 9: three   four five six seven eight nine ten",
        "a  b",
        "ü " * 40,
        "日本語のとても長い文章です",
    ]
    config = SMALL.model_copy(update={"seed_tokens": 4, "seeds_per_prompt": 4})
    for prompt in prompts_of(llama, config, long):
        lines = [line for line in prompt.splitlines() if line.startswith("Text ")]
        assert len(lines) == 5
        for text in shown(prompt):
            whole = [" ".join(text.split()) for text in long]
            assert any(other.startswith(text) for other in whole)
            assert len(llama.tokenizer.encode(" " + text)) <= 4
        assert "a b" in shown(prompt)
        assert "\ufffd" not in prompt


def test_the_label_stands_in_the_instruction(llama):
    config = SMALL.model_copy(update={"instruction": "Reviews that are {label}:"})
    assert all(p.startswith("Reviews that are good:\n\nText 1: ") for p in prompts_of(llama, config, label="good"))
    with pytest.raises(InputError, match=r"expected \{label\} in it"):
        prompts_of(llama, label="good")


@pytest.mark.parametrize("seeds", [[], ["one", "two"], ["one", "two", " \n"]])
def test_too_few_public_texts_are_refused(llama, seeds):
    with pytest.raises(InputError, match=f"seeds_per_prompt=3 .*found {min(len(seeds), 2)}"):
        prompts_of(llama, seeds=seeds)


def test_prompts_fill_the_context_up_to_its_last_token(llama):
    longest = max(len(prompt_tokens(llama, prompt)) for prompt in prompts_of(llama))

    def with_new(tokens):
        return SMALL.model_copy(update={"sampling": SamplingConfig(max_new_tokens=tokens)})

    assert len(prompts_of(llama, with_new(512 - longest))) == 8
    with pytest.raises(InputError, match=f"{longest} tokens.*max_new_tokens={513 - longest}.*513.*512"):
        prompts_of(llama, with_new(513 - longest))


def test_in_a_chat_the_examples_are_answers_that_were_given_before(with_template):
    config = SMALL.model_copy(update={"style": "chat", "instruction": "Write about the weather."})
    prompts = prompts_of(with_template(CHAT), config, about="letters")
    listed = prompts_of(with_template(CHAT))
    for chat, plain in zip(prompts, listed, strict=True):
        asked = "<user>Write about the weather.</>\n"
        earlier = "".join(f"{asked}<assistant>{text}</>\n" for text in shown(plain))
        assert chat == f"<system>You write letters.</>\n{earlier}{asked}<assistant>\n"


def test_a_chat_without_examples_is_the_request_alone(with_template):
    config = SMALL.model_copy(update={"style": "chat", "seeds_per_prompt": 0, "instruction": "Write, {label}."})
    prompts = prompts_of(with_template(CHAT), config, seeds=[], label="rain")
    assert prompts == ["<system>You write texts.</>\n<user>Write, rain.</>\n<assistant>\n"] * 8


def test_a_template_without_a_system_message_gets_its_words_in_the_first_request(with_template):
    no_system = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHAT
    config = SMALL.model_copy(update={"style": "chat", "seeds_per_prompt": 1, "instruction": "Write."})
    prompt = prompts_of(with_template(no_system), config, seeds=["one text"], about="letters")[0]
    first, answer, second, opening = prompt.split("</>\n")
    assert (first, answer) == ("<user>You write letters.\n\nWrite.", "<assistant>one text")
    assert (second, opening) == ("<user>Write.", "<assistant>\n")


def test_a_template_that_leaves_the_system_message_out_gets_its_words_in_the_first_request(with_template):
    """Phi-3's first template has no branch for it, and refuses nothing."""
    silent = (
        "{% for m in messages %}{% if m['role'] == 'user' %}<user>{{ m['content'] }}</>\n<assistant>"
        "{% elif m['role'] == 'assistant' %}{{ m['content'] }}</>\n{% endif %}{% endfor %}"
    )
    config = SMALL.model_copy(update={"style": "chat", "seeds_per_prompt": 1, "instruction": "Write."})
    prompt = prompts_of(with_template(silent), config, seeds=["one text"], about="letters")[0]
    assert prompt == "<user>You write letters.\n\nWrite.</>\n<assistant>one text</>\n<user>Write.</>\n<assistant>"


def test_a_template_that_leaves_out_both_is_refused(with_template):
    deaf = "{% for m in messages %}<{{ m['role'] }}>{% endfor %}<assistant>"
    config = SMALL.model_copy(update={"style": "chat"})
    with pytest.raises(InputError, match=r"leaves out 'You write letters\.'.*set candidates\.style=plain"):
        prompts_of(with_template(deaf), config, about="letters")


def test_a_prompt_has_one_bos_whether_the_template_writes_it_or_not(with_template):
    config = SMALL.model_copy(update={"style": "chat"})
    bos = with_template(CHAT).tokenizer.bos_token_id
    for template, first in ((CHAT, bos), ("{{ bos_token }}" + CHAT, bos), (SPECIAL, "<|im_start|>")):
        loaded = with_template(template)
        ids = prompt_tokens(loaded, prompts_of(loaded, config)[0])
        assert ids[0] == (loaded.tokenizer.convert_tokens_to_ids(first) if isinstance(first, str) else first)
        assert ids.count(bos) == (first == bos)


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no users') }}"])
def test_a_chat_without_a_usable_template_is_refused(with_template, template):
    with pytest.raises(InputError, match=r"candidates.style=chat.*set candidates.style=plain"):
        prompts_of(with_template(template), SMALL.model_copy(update={"style": "chat"}))


@pytest.mark.parametrize("where", ["chat_template.jinja", "tokenizer_config.json"])
def test_an_instruct_model_is_asked_in_a_chat_unless_the_user_says_otherwise(where, tmp_path):
    for file in model_folder("tiny-llama").iterdir():
        (tmp_path / file.name).symlink_to(file)
    if where.endswith("jinja"):
        (tmp_path / where).write_text(CHAT)
    else:
        known = json.loads((tmp_path / where).read_text())
        (tmp_path / where).unlink()
        (tmp_path / where).write_text(json.dumps({**known, "chat_template": CHAT}))
    config = PreferenceOptimizationConfig(about="film reviews", model=str(tmp_path), preferences=RATE)
    chat = METHOD.preparation.resolve(config, 100, ())
    assert (chat.candidates.style, chat.candidates.instruction) == (
        "chat",
        "Write one, and nothing else.",
    )
    plain = config.model_copy(update={"candidates": config.candidates.model_copy(update={"style": "plain"})})
    assert METHOD.preparation.resolve(plain, 100, ()).candidates.style == "plain"
    assert METHOD.preparation.resolve(chat, 100, ()) == chat
    tiny = METHOD.preparation.resolve(PreferenceOptimizationConfig(preferences=RATE), 100, ())
    assert tiny.candidates.style == "plain"

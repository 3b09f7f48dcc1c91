from collections import Counter

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from understudy.errors import InputError
from understudy.generation.config import SamplingConfig
from understudy.generation.prompts import row_seeds
from understudy.generation.sampling import sample
from understudy.methods.preference_optimization import candidates
from understudy.methods.preference_optimization.candidates import (
    RoundSeed,
    continue_prompts,
    first_line,
    prompt_tokens,
    request_continuations,
    round_prompts,
)
from understudy.methods.preference_optimization.config import (
    CandidateConfig,
    EndpointConfig,
    PreferenceOptimizationConfig,
)
from understudy.methods.preference_optimization.method import resolve
from understudy.models.loading import LoadedModel, load_model

SEEDS = [f"seed text number {number} about the weather" for number in range(30)]
SMALL = CandidateConfig(prompts=8, per_prompt=3, seed_tokens=12, sampling=SamplingConfig(max_new_tokens=10, top_p=1.0))


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return load_model("tiny-llama")


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2"])
def loaded(request) -> LoadedModel:
    return load_model(request.param)


@pytest.fixture(scope="module")
def breaks_lines() -> LoadedModel:
    """A model that writes a line break about every fourth token, and words or the end token otherwise."""
    tokenizer = load_model("tiny-gpt2").tokenizer
    size = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(size).eval()
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(len(tokenizer), 16))
    model.transformer.ln_f.weight = torch.nn.Parameter(torch.zeros(16))
    model.transformer.ln_f.bias = torch.nn.Parameter(torch.ones(16))
    for token, weight in [(tokenizer.encode("\n")[0], 10.0), (tokenizer.eos_token_id, 8.0)]:
        model.lm_head.weight.data[token] = (torch.log(torch.tensor(len(tokenizer) / 3)) * weight / 10 / 16).item()
    return LoadedModel(model=model, tokenizer=tokenizer, digest="", name="breaks", notes=())


def prompts_of(loaded, config=SMALL, seeds=SEEDS, *, label=None, **more):
    seed = RoundSeed(**{"round": 0, "public_seed": 0, **more})
    return round_prompts(seeds, config, loaded=loaded, seed=seed, label=label)


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
    config = resolve(PreferenceOptimizationConfig.model_validate(given), 100)
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


def one_by_one(loaded, prompts, per_prompt, sampling, public_seed, round):
    """Each text by itself: no shared prompt, no padding, no early end; the definition of the result."""
    texts = []
    for row in range(len(prompts) * per_prompt):
        ids = torch.tensor([[0, *loaded.tokenizer.encode(prompts[row // per_prompt])]])
        seed = row_seeds(public_seed, [row], purpose=f"candidate/{round}")
        drawn = sample(
            loaded.model,
            (ids, torch.ones_like(ids)),
            config=sampling,
            seeds=seed,
            eos=loaded.tokenizer.eos_token_id,
            forbidden=tuple(loaded.tokenizer.all_special_ids),
        )[0]
        lines = [line.strip() for line in loaded.tokenizer.decode(drawn).splitlines() if line.strip()]
        texts.append(lines[0] if lines else "")
    return texts


def drawn_by(loaded, prompts, *, round=2, public_seed=0, progress=None, **more):
    config = SMALL.model_copy(update={"per_prompt": 3, **more})
    return continue_prompts(loaded, prompts, config, seed=RoundSeed(round, public_seed), progress=progress)


def test_texts_equal_those_drawn_one_by_one(loaded):
    prompts = ["Text 1: a\n\nText 2:", *prompts_of(loaded)[:3]]
    texts = drawn_by(loaded, prompts)
    assert texts == one_by_one(loaded, prompts, 3, SMALL.sampling, 0, 2)
    assert len(set(texts)) > 10


def test_a_line_break_after_words_ends_a_text_and_nothing_else_does(breaks_lines):
    prompts, sampling = ["A:", "B: c"], SamplingConfig(max_new_tokens=12, top_p=1.0)
    texts = drawn_by(breaks_lines, prompts, per_prompt=40, sampling=sampling)
    assert texts == one_by_one(breaks_lines, prompts, 40, sampling, 0, 2)
    assert not any("\n" in text for text in texts)
    assert len({len(text) for text in texts}) > 10
    assert 0 < texts.count("") < 40  # the end token, or line breaks to the end


def test_batches_and_their_borders_change_nothing(llama, monkeypatch):
    prompts, steps = prompts_of(llama)[:5], []
    whole = drawn_by(llama, prompts, progress=lambda *step: steps.append(step))
    monkeypatch.setattr(candidates, "_ROWS", 7)
    parts = []
    assert drawn_by(llama, prompts, progress=lambda *step: parts.append(step)) == whole
    assert steps == [(15, 15)]
    assert parts == [(6, 15), (12, 15), (15, 15)]


def test_rounds_and_seeds_draw_other_texts_and_the_global_generator_is_left_alone(llama):
    prompts, before = prompts_of(llama)[:1], torch.get_rng_state()
    results = [tuple(drawn_by(llama, prompts, round=r, public_seed=s)) for r, s in [(0, 0), (1, 0), (0, 1), (0, 0)]]
    assert len(set(results)) == 3
    assert results[0] == results[3]
    assert torch.equal(before, torch.get_rng_state())


def test_a_served_policy_gets_prompts_and_seeds_in_candidate_order(monkeypatch):
    calls = []

    def served(prompts, seeds, **more):
        calls.append((prompts, seeds, more))
        return [f"\n {prompt}{row} \n\nText 5: more" for row, prompt in enumerate(prompts)]

    monkeypatch.setattr(candidates, "complete", served)
    endpoint = EndpointConfig(url="http://host/v1")
    two = SMALL.model_copy(update={"per_prompt": 2})
    texts = request_continuations(["a", "b"], two, endpoint=endpoint, seed=RoundSeed(1, 5))
    assert texts == ["a0", "a1", "b2", "b3"]
    assert calls[0][1] == row_seeds(5, range(4), purpose="candidate/1")
    assert (calls[0][2]["sampling"], calls[0][2]["endpoint"]) == (SMALL.sampling, endpoint)


@pytest.mark.parametrize(
    ("text", "line"), [("", ""), (" \n\n ", ""), ("\n one two \nthree", "one two"), ("one\r\ntwo", "one"), (" x ", "x")]
)
def test_first_line(text, line):
    assert first_line(text) == line

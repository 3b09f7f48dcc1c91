import copy
from dataclasses import replace

import pytest
import torch
from completions_server import Completions
from transformers import GPT2Config, GPT2LMHeadModel

from understudy.errors import InputError
from understudy.generation import answers
from understudy.generation.config import SamplingConfig
from understudy.generation.prompts import row_seeds
from understudy.generation.sampling import sample
from understudy.methods.preference_optimization import candidates
from understudy.methods.preference_optimization.candidates import continue_prompts, first_line, request_continuations
from understudy.methods.preference_optimization.config import CandidateConfig, EndpointConfig
from understudy.methods.preference_optimization.prompts import RoundSeed, round_prompts
from understudy.models.loading import LoadedModel, load_model

SEEDS = [f"seed text number {number} about the weather" for number in range(30)]
SMALL = CandidateConfig(prompts=8, per_prompt=3, seed_tokens=12, sampling=SamplingConfig(max_new_tokens=6, top_p=1.0))


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


def prompts_of(loaded, config=SMALL):
    return round_prompts(SEEDS, config, loaded=loaded, seed=RoundSeed(0, 0))


def drawn_alone(loaded, prompts, per_prompt, sampling, public_seed, round):
    """The tokens of each text by itself: no shared prompt, no padding, no early end."""
    rows = []
    for row in range(len(prompts) * per_prompt):
        ids = torch.tensor([[0, *loaded.tokenizer.encode(prompts[row // per_prompt])]])
        seed = row_seeds(public_seed, [row], purpose=f"candidate/{round}")
        rows += sample(
            loaded.model,
            (ids, torch.ones_like(ids)),
            config=sampling,
            seeds=seed,
            eos=loaded.tokenizer.eos_token_id,
            forbidden=tuple(loaded.tokenizer.all_special_ids),
        )
    return rows


def one_by_one(loaded, *asked):
    """The definition of the result: the first line with words of each text."""
    texts = [loaded.tokenizer.decode(row).splitlines() for row in drawn_alone(loaded, *asked)]
    return [next((line.strip() for line in lines if line.strip()), "") for lines in texts]


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
    texts = drawn_by(breaks_lines, prompts, per_prompt=20, sampling=sampling)
    assert texts == one_by_one(breaks_lines, prompts, 20, sampling, 0, 2)
    assert not any("\n" in text for text in texts)
    assert len({len(text) for text in texts}) > 10
    assert 0 < texts.count("") < 20  # the end token, or line breaks to the end


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


def test_a_served_policy_gets_prompts_and_seeds_in_candidate_order(llama, monkeypatch, tmp_path):
    calls = []

    def served(prompts, seeds, **more):
        calls.append((prompts, seeds, more))
        return [f"\n {prompt}{row} \n\nText 5: more" for row, prompt in enumerate(prompts)]

    monkeypatch.setattr(answers, "complete", served)
    endpoint = EndpointConfig(url="http://host/v1", model="policy-1", timeout_seconds=7)
    two = SMALL.model_copy(update={"per_prompt": 2})
    texts = request_continuations(llama, ["a", "b"], two, endpoint=endpoint, seed=RoundSeed(1, 5), kept=tmp_path)
    assert texts == ["a0", "a1", "b2", "b3"]
    assert calls[0][1] == row_seeds(5, range(4), purpose="candidate/1")
    asked = calls[0][2]["endpoint"]
    assert (asked.url, asked.model, asked.timeout_seconds) == ("http://host/v1", "policy-1", 7)
    assert calls[0][2]["sampling"] == SMALL.sampling


def test_answers_of_a_step_that_failed_are_not_asked_for_again(llama, tmp_path):
    prompts = [f"prompt {number}" for number in range(8)]

    def ask():
        endpoint = EndpointConfig(url=server.url, model="policy-0")
        return request_continuations(llama, prompts, SMALL, endpoint=endpoint, seed=RoundSeed(0, 0), kept=tmp_path)

    with Completions(forgets_after=12) as server:
        with pytest.raises(InputError, match="no such model"):
            ask()
        kept = len(list(tmp_path.iterdir()))
        server.faults.clear()
        server.requests.clear()
        texts = ask()
        assert kept >= 8
        assert len(server.requests) == 24 - kept
    seeds = row_seeds(0, range(24), purpose="candidate/0")
    assert texts == [f"prompt {row // 3}/{seed}" for row, seed in enumerate(seeds)]


def in_a_chat(loaded: LoadedModel, template: str) -> LoadedModel:
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.chat_template = template
    return replace(loaded, tokenizer=tokenizer)


CHAT = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>\n{% endfor %}<assistant>{{ '\n' }}"


def test_in_a_chat_the_whole_answer_is_the_text(breaks_lines):
    """Its line breaks belong to it, and nothing but the end token ends it early."""
    chat, sampling = in_a_chat(breaks_lines, CHAT), SamplingConfig(max_new_tokens=12, top_p=1.0)
    prompts = ["A:", "B: c"]
    texts = drawn_by(chat, prompts, per_prompt=20, sampling=sampling, style="chat")
    rows = drawn_alone(chat, prompts, 20, sampling, 0, 2)
    assert texts == [chat.tokenizer.decode(row).strip() for row in rows]
    assert any("\n" in text for text in texts)


def test_a_served_chat_gets_one_bos_and_keeps_whole_answers(llama, monkeypatch, tmp_path):
    """A server puts BOS before a prompt where its tokenizer does; a template may have written one already."""
    chat, sent = in_a_chat(llama, "{{ bos_token }}" + CHAT), []

    def served(prompts, seeds, **_):
        sent.extend(prompts)
        return ["\n one \n two "] * len(prompts)

    monkeypatch.setattr(answers, "complete", served)
    one = SMALL.model_copy(update={"style": "chat", "per_prompt": 1, "prompts": 1})
    asked, where = prompts_of(chat, one), EndpointConfig(url="http://host/v1")
    assert asked[0].startswith(chat.tokenizer.bos_token + "<system>")

    def answered():
        return request_continuations(chat, asked, one, endpoint=where, seed=RoundSeed(0, 0), kept=tmp_path)

    assert answered() == ["one \n two"]
    monkeypatch.setattr(type(chat.tokenizer), "__call__", lambda *_, **__: {"input_ids": [chat.tokenizer.bos_token_id]})
    answered()
    assert sent == [asked[0], asked[0].removeprefix(chat.tokenizer.bos_token)]


@pytest.mark.parametrize(
    ("text", "line"), [("", ""), (" \n\n ", ""), ("\n one two \nthree", "one two"), ("one\r\ntwo", "one"), (" x ", "x")]
)
def test_first_line(text, line):
    assert first_line(text) == line

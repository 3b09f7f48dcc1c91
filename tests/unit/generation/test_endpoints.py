import logging
from dataclasses import dataclass

import pytest
import torch
from completions_server import Completions

from understudy.errors import InputError, UnderstudyError
from understudy.generation.config import SamplingConfig
from understudy.generation.endpoints import KEY_VARIABLE, Served, complete
from understudy.generation.prompts import special_ids
from understudy.generation.sampling import sample

SAMPLING = SamplingConfig(max_new_tokens=5, temperature=0.5, top_p=0.8)


@dataclass(frozen=True)
class Here:
    url: str | None
    model: str = "policy"
    timeout_seconds: float = 20.0


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def ask(server, prompts=("a",), seeds=(2,), **more):
    endpoint = more.pop("endpoint", Here(server.url))
    return complete(
        prompts, seeds, sampling=SAMPLING, endpoint=endpoint, sleep=more.pop("sleep", lambda _: None), **more
    )


def test_texts_come_back_in_order_whatever_order_they_were_written_in():
    prompts, seeds = [f"prompt {i}" for i in range(40)], list(range(100, 140))
    served, steps = [], []
    with Completions() as server:
        texts = ask(server, prompts, seeds, report=served.append, progress=lambda *step: steps.append(step))
    assert texts == [f"prompt {i}/{100 + i}" for i in range(40)]
    assert served == [Served(answers=40, cut=20, repeats=0)]
    assert steps == [(i, 40) for i in range(1, 41)]


def test_the_request_holds_what_was_asked_and_nothing_else():
    with Completions() as server:
        ask(server, ["one"], [7], stop=["\nText"])
        ask(server, ["two"], [8], endpoint=Here(server.url + "/completions/", model="policy-3"))
    assert server.requests == [
        {
            "model": name,
            "prompt": prompt,
            "seed": seed,
            "n": 1,
            "max_tokens": 5,
            "temperature": 0.5,
            "top_p": 0.8,
            **stop,
        }
        for name, prompt, seed, stop in [("policy", "one", 7, {"stop": ["\nText"]}), ("policy-3", "two", 8, {})]
    ]
    assert server.paths == ["/v1/completions"] * 2
    assert all("Authorization" not in headers for headers in server.headers)


def test_the_shipped_model_behind_the_protocol_gives_the_texts_it_gives_here(tiny_llama):
    def write(prompts, seeds):
        ids = torch.tensor([[0, *tiny_llama.tokenizer.encode(prompt)] for prompt in prompts])
        eos = special_ids(tiny_llama.tokenizer)[1]
        drawn = sample(tiny_llama.model, (ids, torch.ones_like(ids)), config=SAMPLING, seeds=seeds, eos=eos)
        return [tiny_llama.tokenizer.decode(tokens) for tokens in drawn]

    def answer(request):
        torch.set_num_threads(1)
        text = write([request["prompt"]], [request["seed"]])[0]
        return {"choices": [{"text": text, "finish_reason": "length"}]}

    prompts, seeds = ["The film was"] * 3, [1, 2, 3]
    with Completions(answer) as server:
        assert ask(server, prompts, seeds) == write(prompts, seeds)
    assert len(set(write(prompts, seeds))) > 1


@pytest.mark.parametrize(
    ("faults", "pauses"),
    [
        ([(500, {}, b"oh")], [0.5]),
        ([(503, {}, b""), (429, {"retry-after": "3"}, b""), (502, {}, b"")], [0.5, 3.0, 2.0]),
        ([(429, {"retry-after": "9999"}, b"")], [30.0]),
        (["hang up"], [0.5]),
    ],
)
def test_faults_that_pass_are_waited_out(faults, pauses):
    slept, served = [], []
    with Completions(faults=faults) as server:
        assert ask(server, sleep=slept.append, report=served.append) == ["a/2"]
    assert slept == pauses
    assert served == [Served(answers=1, cut=0, repeats=len(faults))]
    assert len(server.requests) == len(faults) + 1


def test_a_server_that_never_recovers_is_given_up():
    slept = []
    with Completions(faults=[(500, {}, b"")] * 50) as server:
        with pytest.raises(UnderstudyError, match=r"5 tries.*500.*timeout_seconds") as caught:
            ask(server, sleep=slept.append)
        assert not isinstance(caught.value, InputError)
        assert len(server.requests) == 5
    assert slept == [0.5, 1.0, 2.0, 4.0]


def test_a_server_that_does_not_answer_in_time_is_given_up():
    with (
        Completions(faults=["wait"] * 50) as server,
        pytest.raises(UnderstudyError, match=r"ReadTimeout after 0.05 s.*timeout_seconds"),
    ):
        ask(server, endpoint=Here(server.url, timeout_seconds=0.05))


def test_no_server_is_named_as_such():
    with Completions() as server:
        gone = server.url
    with pytest.raises(UnderstudyError, match="ConnectError"):
        complete(["a"], [0], sampling=SAMPLING, endpoint=Here(gone), sleep=lambda _: None)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"<html>hello</html>", "choices"),
        (b"{}", "choices"),
        (b'{"choices": []}', "choices"),
        (b'["choices"]', "choices"),
        (b'{"choices": [{"message": {"content": "x"}}]}', "chat endpoints"),
        (b'{"choices": [{"text": 5}]}', "of type int"),
        (b'{"choices": [{"text": "a"}, {"text": "b"}]}', "found 2 choices"),
    ],
)
def test_answers_of_another_protocol_are_refused_at_once(answer, found):
    with Completions(faults=[(200, {}, answer)] * 9) as server:
        with pytest.raises(InputError, match=found):
            ask(server)
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 301])
def test_a_refusal_is_not_repeated_and_the_key_stays_out_of_it(status, monkeypatch, caplog):
    monkeypatch.setenv(KEY_VARIABLE, "sk-very-secret")
    caplog.set_level(logging.DEBUG)
    said = b"no such model, your key sk-very-secret\n\nis fine"
    with Completions(faults=[(status, {"location": "/elsewhere"}, said)] * 9) as server:
        with pytest.raises(InputError, match=f"found {status}: no such model, your key .key. is fine") as caught:
            ask(server)
        assert len(server.requests) == 1
    assert server.headers[0]["Authorization"] == "Bearer sk-very-secret"
    assert "secret" not in str(caught.value) + caplog.text


def test_one_refusal_ends_the_whole_call():
    with Completions(faults=[(400, {}, b"no")]) as server:
        with pytest.raises(InputError, match="found 400"):
            ask(server, ["a"] * 500, list(range(500)))
        assert len(server.requests) < 500


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (None, "url=None"),
        ("ftp://host/v1", "http:// or https://"),
        ("host:8000/v1", "http:// or https://"),
        ("http://", "http:// or https://"),
        ("http://me:pass-word@host/v1", "no password"),
        ("https://host/v1?api_key=pass-word", "no password"),
        ("me:pass-word@host/v1", "http:// or https://"),
        ("http://host:notaport/v1", "found no URL"),
    ],
)
def test_urls_that_cannot_be_used_are_refused_without_their_secrets(url, found):
    with pytest.raises(InputError, match=found) as caught:
        complete(["a"], [0], sampling=SAMPLING, endpoint=Here(url))
    assert "pass-word" not in str(caught.value)


def test_a_broken_key_is_refused_unseen(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "sécret")
    with pytest.raises(InputError, match="printable ASCII") as caught:
        complete(["a"], [0], sampling=SAMPLING, endpoint=Here("http://127.0.0.1:9/v1"))
    assert "cret" not in str(caught.value)


def test_every_prompt_needs_a_seed():
    with pytest.raises(InputError, match=r"len\(seeds\)=1: .* 2 prompts"):
        complete(["a", "b"], [0], sampling=SAMPLING, endpoint=Here("http://127.0.0.1:9/v1"))

"""Answers of an endpoint are asked for once: against a real server on this machine, that can fail."""

import pytest
from completions_server import Completions

from understudy.errors import InputError, UnderstudyError
from understudy.generation.answers import Asking, asked_once
from understudy.generation.config import SamplingConfig

SAMPLING = SamplingConfig(max_new_tokens=8)


@pytest.fixture
def server():
    """A completions server's address, what it was asked, and the faults that it answers with first."""

    def answer(request):
        return {"choices": [{"text": f"re: {request['prompt']}", "finish_reason": "stop"}]}

    with Completions(answer) as serving:
        yield serving.url, serving.requests, serving.faults


def ask(url, prompts, kept, *, per_minute=0, waits=None):
    sleep = (lambda _: None) if waits is None else waits.append
    asking = Asking(url, "professional", per_minute=per_minute, timeout_seconds=10)
    return asked_once(prompts, range(len(prompts)), asking=asking, sampling=SAMPLING, kept=kept, sleep=sleep)


def test_what_was_answered_is_not_asked_again(server, tmp_path):
    url, bodies, _ = server
    assert ask(url, ["a", "b"], tmp_path) == ["re: a", "re: b"]
    assert ask(url, ["a", "b", "c"], tmp_path) == ["re: a", "re: b", "re: c"]
    assert sorted(body["prompt"] for body in bodies) == ["a", "b", "c"]


def test_another_prompt_seed_or_sampling_is_another_question(server, tmp_path):
    url, bodies, _ = server
    ask(url, ["a", "a"], tmp_path)
    asked_once(["a"], [0], asking=Asking(url, "professional"), sampling=SamplingConfig(max_new_tokens=9), kept=tmp_path)
    assert len(bodies) == 3


def test_a_server_that_is_busy_is_asked_again_and_what_it_said_before_is_kept(server, tmp_path):
    url, bodies, fails = server
    fails += [(429, {}, b"slow down"), (503, {}, b"")]
    waits: list[float] = []
    assert ask(url, ["a"], tmp_path, waits=waits) == ["re: a"]
    assert (len(bodies), len(waits)) == (3, 2)
    fails += [(500, {}, b"")] * 50
    prompts = ["a", *(f"p{i}" for i in range(3))]
    with pytest.raises(UnderstudyError, match="no answer after 5 tries"):
        ask(url, prompts, tmp_path)
    fails.clear()
    before = len(bodies)
    assert ask(url, prompts, tmp_path) == [f"re: {prompt}" for prompt in prompts]
    assert len(bodies) - before == 3


@pytest.mark.parametrize("garbage", [b"<html>", b"[]", b'{"choices": []}', b'{"choices": [{"text": 3}]}'])
def test_an_answer_that_is_none_is_refused_and_not_kept(garbage, server, tmp_path):
    url, _, fails = server
    fails.append((200, {}, garbage))
    with pytest.raises(InputError, match="completions endpoint"):
        ask(url, ["a"], tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert ask(url, ["a"], tmp_path) == ["re: a"]


def test_no_more_than_so_many_a_minute(server, tmp_path):
    url, bodies, _ = server
    waits: list[float] = []
    ask(url, [str(i) for i in range(7)], tmp_path, per_minute=3, waits=waits)
    assert len(bodies) == 7
    assert waits == [60.0, 60.0], "lots of three, three and one"


def test_a_server_that_is_down_is_told_by_its_address(tmp_path):
    with pytest.raises(UnderstudyError, match=r"127\.0\.0\.1:9.*ConnectError"):
        ask("http://127.0.0.1:9/v1", ["a"], tmp_path)

"""Continuations from an OpenAI-compatible completions endpoint: public or released prompts only.

Nothing is sent anywhere but to the URL that the user gave; redirects are not followed. The key, if the server wants
one, comes from the environment variable UNDERSTUDY_ENDPOINT_KEY and appears in no message.
*Limits*: whether the same seed gives the same text is the server's affair, so texts from an endpoint are stored, not
drawn again. Each sample is a request of its own with its own seed, for `n` samples of one request share one seed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from understudy.addresses import public_address
from understudy.errors import InputError, UnderstudyError
from understudy.generation.config import SamplingConfig
from understudy.progress import Progress
from understudy.settings import ENDPOINT_KEY

KEY_VARIABLE = ENDPOINT_KEY

_PARALLEL = 8
_TRIES = 5
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_SHOWN = 200  # characters of a server's message


class Endpoint(Protocol):
    """Where a model is served: `EndpointConfig` of a method is one."""

    @property
    def url(self) -> str | None:
        """Base of the endpoint, e.g. http://host:8000/v1."""

    @property
    def model(self) -> str:
        """Name of the model at the endpoint."""

    @property
    def timeout_seconds(self) -> float:
        """Longest wait for one answer."""


@dataclass(frozen=True)
class Served:
    """What the server did, for the run's notes.

    Attributes:
        answers: texts in all.
        cut: answers that the server ended at `max_new_tokens`.
        repeats: requests that were sent again after a fault.
    """

    answers: int
    cut: int
    repeats: int


@dataclass(frozen=True)
class _Answer:
    text: str
    cut: bool
    repeats: int


def complete(
    prompts: Sequence[str],
    seeds: Sequence[int],
    *,
    sampling: SamplingConfig,
    endpoint: Endpoint,
    stop: Sequence[str] = (),
    sleep: Callable[[float], None] = time.sleep,
    progress: Progress | None = None,
    report: Callable[[Served], None] | None = None,
) -> list[str]:
    """One continuation per prompt, in order, as the server wrote it.

    Args:
        prompts: public or released texts; the server sees them.
        seeds: one public seed per prompt, sent along.
        sampling: temperature, nucleus mass and longest continuation, which the server applies.
        endpoint: URL, model name and timeout.
        stop: the server ends a text before any of these; at most four.
        sleep: waits between tries.
        progress: called with (texts there, texts).
        report: called once, at the end.

    Returns:
        Texts, as long as `prompts`; an empty one is an answer.

    Raises:
        InputError: no URL, a URL with a password or query, a request that the server refuses (4xx), or an answer that
            is not the completions protocol's.
        UnderstudyError: no answer after several tries (unreachable, too slow, 5xx or 429).
    """
    if len(seeds) != len(prompts):
        raise InputError(f"len(seeds)={len(seeds)}: expected one seed for each of {len(prompts)} prompts")
    address = check_address(endpoint.url)
    bodies = [
        _body(prompt, seed, sampling=sampling, model=endpoint.model, stop=stop)
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    answers: dict[int, _Answer] = {}
    with httpx.Client(timeout=endpoint.timeout_seconds, headers=_headers(), follow_redirects=False) as client:
        pool = ThreadPoolExecutor(max_workers=_PARALLEL)
        try:
            waiting = {pool.submit(_ask, client, address, body, sleep): row for row, body in enumerate(bodies)}
            for future in as_completed(waiting):
                answers[waiting[future]] = future.result()
                if progress is not None:
                    progress(len(answers), len(bodies))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    if report is not None:
        report(
            Served(len(answers), sum(a.cut for a in answers.values()), sum(a.repeats for a in answers.values())),
        )
    return [answers[row].text for row in range(len(bodies))]


def _body(prompt: str, seed: int, *, sampling: SamplingConfig, model: str, stop: Sequence[str]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": seed,
        "n": 1,
    }
    return {**body, "stop": list(stop)} if stop else body


def check_address(url: str | None, *, setting: str = "endpoint.url") -> httpx.URL:
    """Where completions are asked for.

    Args:
        url: base of the endpoint.
        setting: that named it, for the message.

    Raises:
        InputError: no URL, or one that is not to be kept.
    """
    if url is None:
        raise InputError(f"{setting}=None: expected the base of an OpenAI-compatible endpoint, http://host:8000/v1")
    try:
        base = httpx.URL(url.rstrip("/"))
    except httpx.InvalidURL as error:
        raise InputError(f"{setting}: expected http://host:port/v1, found no URL; fix it") from error
    if base.userinfo or base.query:
        raise InputError(
            f"{setting}: expected no password and no query in it, for it is kept with the run's settings; "
            f"put the key into the environment variable {KEY_VARIABLE}"
        )
    if base.scheme not in ("http", "https") or not base.host:
        raise InputError(f"{setting}={public_address(url)!r}: expected http:// or https:// and a host; fix it")
    return base if base.path.endswith("/completions") else base.copy_with(path=base.path.rstrip("/") + "/completions")


def _headers() -> dict[str, str]:
    key = _key()
    return {"Authorization": f"Bearer {key}"} if key else {}


def _key() -> str:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable():
        raise InputError(f"{KEY_VARIABLE}: expected printable ASCII characters in one line; set it again")
    return key


def _ask(client: httpx.Client, address: httpx.URL, body: dict[str, Any], sleep: Callable[[float], None]) -> _Answer:
    """Send one request, again after a fault that may pass: none of these answers was a refusal."""
    fault = ""
    for attempt in range(_TRIES):
        try:
            response = client.post(address, json=body)
        except httpx.TransportError as error:
            fault, asked = _fault(error, client), 0.0
        else:
            if response.status_code != 429 and response.status_code < 500:
                text, cut = _read(response)
                return _Answer(text, cut, attempt)
            fault, asked = f"status {response.status_code}", _seconds(response.headers.get("retry-after", ""))
        if attempt + 1 < _TRIES:
            sleep(min(max(_FIRST_PAUSE * 2**attempt, asked), _LONGEST_PAUSE))
    raise UnderstudyError(
        f"endpoint {address}: no answer after {_TRIES} tries ({fault}); see whether the server runs and can be "
        "reached, or raise its timeout_seconds in the settings, then run again: stored texts are not asked for again"
    )


def _fault(error: httpx.TransportError, client: httpx.Client) -> str:
    if isinstance(error, httpx.TimeoutException):
        return f"{type(error).__name__} after {client.timeout.read} s"
    return type(error).__name__


def _seconds(value: str) -> float:
    """The server's Retry-After in seconds; its other form, a date, counts as none."""
    return float(value) if value.isascii() and value.isdigit() else 0.0


def _read(response: httpx.Response) -> tuple[str, bool]:
    """The text of an answer and whether the server cut it at the longest continuation."""
    if response.status_code != 200:
        raise InputError(
            f"endpoint {response.url}: expected status 200, found {response.status_code}: {_message(response)}; see "
            f"its URL and the model's name in the settings, and {KEY_VARIABLE} if the server wants a key"
        )
    try:
        content = response.json()
        choices = content["choices"]
        text, ended = choices[0]["text"], choices[0].get("finish_reason")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise _not_the_protocol(response, "choices[0].text is missing") from error
    if len(choices) != 1:
        raise _not_the_protocol(response, f"found {len(choices)} choices, expected 1")
    if not isinstance(text, str):
        raise _not_the_protocol(response, f"choices[0].text is of type {type(text).__name__}, expected a string")
    return text, ended == "length"


def _not_the_protocol(response: httpx.Response, found: str) -> InputError:
    return InputError(
        f"endpoint {response.url}: the answer is not that of an OpenAI-compatible completions endpoint: {found}; "
        "give the base URL of one (chat endpoints do not serve)"
    )


def _message(response: httpx.Response) -> str:
    """The start of the server's own words, on one line, without the key if it repeats it."""
    words = " ".join(response.text.split())
    key = _key()
    return (words.replace(key, "[key]") if key else words)[:_SHOWN] or "no message"

"""Candidates of a round: what the policy writes after the prompts, here or at an endpoint.

Paper: POPri, algorithm 1 (line 5), appendix B.2 and Figure 5.
*Deviations*: in a list a line break ends a text, as the paper's next heading does; line breaks before the first word
are passed over. In a chat the whole answer is the text.
Everything here is public or comes from released adapters; random choices come from the public seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from understudy.generation.answers import Asking, asked_once
from understudy.generation.endpoints import Endpoint
from understudy.generation.prompts import end_token, padded_left, special_ids, special_token_ids
from understudy.generation.rows import rows_in_flight
from understudy.generation.sampling import Step, StepHook, sample
from understudy.methods.preference_optimization.config import CandidateConfig
from understudy.methods.preference_optimization.prompts import RoundSeed, prompt_tokens
from understudy.models.loading import LoadedModel
from understudy.progress import Progress

_ROWS = 64


def continue_prompts(
    loaded: LoadedModel,
    prompts: Sequence[str],
    config: CandidateConfig,
    *,
    seed: RoundSeed,
    progress: Progress | None = None,
) -> list[str]:
    """J continuations of each prompt by the policy in this process.

    Args:
        loaded: the policy: base model with the round's adapter.
        prompts: `round_prompts`.
        config: J, and how tokens are drawn.
        seed: a text is a function of it, its prompt and its index, whatever is drawn beside it.
        progress: called with (texts drawn, texts).

    Returns:
        K * J texts, candidate j of prompt k at k * J + j, and empty where nothing came before the end. A list's text is
        one line, ended by a line break, the end token or `max_new_tokens`; a chat's is the whole answer.

    Raises:
        InputError: a prompt does not fit the model's context beside `max_new_tokens`.
    """
    encoded = [prompt_tokens(loaded, prompt) for prompt in prompts]
    texts: list[str] = []
    per_prompt = config.per_prompt
    longest = max(map(len, encoded), default=1)
    rows_together = rows_in_flight(
        loaded.model, "auto", on_cpu=_ROWS, prompt=longest, new=config.sampling.max_new_tokens
    )
    together = max(1, rows_together // per_prompt)
    for start in range(0, len(prompts), together):
        batch = encoded[start : start + together]
        rows = range(start * per_prompt, (start + len(batch)) * per_prompt)
        texts += _draw(loaded, batch, config, seeds=seed.of_texts(rows))
        if progress is not None:
            progress(len(texts), len(prompts) * per_prompt)
    return texts


def request_continuations(
    loaded: LoadedModel,
    prompts: Sequence[str],
    config: CandidateConfig,
    *,
    endpoint: Endpoint,
    seed: RoundSeed,
    kept: Path,
    progress: Progress | None = None,
) -> list[str]:
    """As `continue_prompts`, by a policy that is served elsewhere; `endpoint` must name this round's adapter.

    Of the loaded model only the tokenizer counts: a server puts BOS before a prompt as that tokenizer does, so one that
    a chat template wrote is left out. The server sees public seed texts and writes synthetic ones. It is not told to
    stop at line breaks, which some policies write first: the rest of a list's text is cut here.

    An answer is kept as soon as it is there, under the question. The name of a served model says nothing about its
    adapter, so `kept` must belong to one step of one run.

    Args:
        loaded: the base model, for its tokenizer.
        prompts: `round_prompts`.
        config: J, and how the server draws.
        endpoint: where, and the name of this round's policy there.
        seed: as of `continue_prompts`.
        kept: folder of the answers of this step, from which an attempt that failed goes on.
        progress: called with (texts there, texts).

    Raises:
        InputError: `asked_once`.
        UnderstudyError: `asked_once`.
    """
    rows, sent = range(len(prompts) * config.per_prompt), [_without_bos(loaded.tokenizer, one) for one in prompts]
    answers = asked_once(
        [sent[row // config.per_prompt] for row in rows],
        seed.of_texts(rows),
        asking=Asking(endpoint.url, endpoint.model, endpoint.timeout_seconds),
        sampling=config.sampling,
        kept=kept,
        progress=progress,
    )
    return [_text_of(answer, config) for answer in answers]


def first_line(text: str) -> str:
    """The first line with words in it, stripped; what the paper takes between two headings."""
    return next(iter(text.strip().splitlines()), "").strip()


def _text_of(answer: str, config: CandidateConfig) -> str:
    return answer.strip() if config.in_chat else first_line(answer)


def _without_bos(tokenizer: Any, prompt: str) -> str:
    added = tokenizer("a", verbose=False)["input_ids"][:1] == [tokenizer.bos_token_id]
    return prompt.removeprefix(tokenizer.bos_token) if added else prompt


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def _draw(
    loaded: LoadedModel, prompts: Sequence[list[int]], config: CandidateConfig, *, seeds: Sequence[int]
) -> list[str]:
    """J texts for each of some prompts; `sample` reads each prompt once."""
    eos, pad = end_token(loaded.tokenizer, in_chat=config.in_chat), special_ids(loaded.tokenizer)[2]
    ids, mask = padded_left(prompts, pad=pad, device=next(loaded.model.parameters()).device)
    drawn = sample(
        loaded.model,
        (ids.repeat_interleave(config.per_prompt, 0), mask.repeat_interleave(config.per_prompt, 0)),
        config=config.sampling,
        seeds=seeds,
        eos=eos,
        forbidden=special_token_ids(loaded.tokenizer),
        step_hook=None if config.in_chat else _end_at_line_break(loaded.tokenizer, rows=len(seeds), eos=eos),
    )
    return [_text_of(_decode(loaded.tokenizer, tokens), config) for tokens in drawn]


def _end_at_line_break(tokenizer: Any, *, rows: int, eos: int) -> StepHook:
    """Let a row end once it holds words and a line break after them: the rest would be cut anyway."""
    held: list[list[int]] = [[] for _ in range(rows)]

    def hook(_: Any, step: Step) -> Tensor:
        logits = step.logits
        for place, (row, token) in enumerate(zip(step.rows.tolist(), step.tokens[:, 0].tolist(), strict=True)):
            if step.index[place] == 0:
                continue
            held[row].append(token)
            if "\n" in _decode(tokenizer, [token]) and "\n" in _decode(tokenizer, held[row]).lstrip():
                logits[place] = -math.inf
                logits[place, eos] = 0.0
        return logits

    return hook

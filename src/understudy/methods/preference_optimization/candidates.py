"""Candidates of a round: prompts of public seed texts, and what the policy writes after them.

Paper: POPri, algorithm 1 (lines 4-5), appendix B.2 and Figure 5, after PrE-Text (Hou et al. 2024).
*Deviations*: the list form is the paper's, the wording is ours and every text stands on one line behind its number,
so that the line break ends a text as the paper's next heading does; line breaks before the first word are passed over.
Central conditional: a public instruction with the label's name stands before the list (the paper has none).
Everything here is public or comes from released adapters; random choices come from the public seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from understudy.errors import InputError
from understudy.generation.endpoints import Endpoint, Served, complete
from understudy.generation.prompts import padded_left, row_seeds, special_ids
from understudy.generation.sampling import Step, StepHook, sample
from understudy.methods.preference_optimization.config import CandidateConfig
from understudy.models.loading import LoadedModel
from understudy.progress import Progress

_HEADING = "A list of different texts:"
_ROWS = 64


@dataclass(frozen=True)
class RoundSeed:
    """What prompts and texts of one round are functions of.

    Attributes:
        round: number of the round.
        public_seed: of the run.
    """

    round: int
    public_seed: int

    def of_prompts(self, count: int, label: str | None) -> list[int]:
        """A seed per prompt of a label."""
        return row_seeds(self.public_seed, range(count), purpose=f"prompt/{self.round}/{label or ''}")

    def of_texts(self, rows: Sequence[int]) -> list[int]:
        """A seed per text, whatever is drawn beside it."""
        return row_seeds(self.public_seed, rows, purpose=f"candidate/{self.round}")


def round_prompts(
    seeds: Sequence[str], config: CandidateConfig, *, loaded: LoadedModel, seed: RoundSeed, label: str | None = None
) -> list[str]:
    """The K prompts of a round; each shows `seeds_per_prompt` public texts, drawn without repetition.

    Args:
        seeds: public texts; empty ones are passed over.
        config: K, texts per prompt, their greatest length, the instruction.
        loaded: the base model, whose tokenizer cuts the texts and whose context must hold prompt and continuation.
        seed: a prompt is a function of it, the label and its number; each round has other prompts.
        label: central conditional: name of the label; `{label}` in the instruction is replaced by it.

    Returns:
        K prompts that end where the new text begins; its first token brings its own space.

    Raises:
        InputError: fewer texts than a prompt shows, a label without an instruction that names it, or a prompt that
            does not fit the model's context beside `max_new_tokens`.
    """
    heading = _heading(config.instruction, label)
    shown = [text for text in seeds if text.strip()]
    if len(shown) < config.seeds_per_prompt:
        raise InputError(
            f"seeds: expected at least seeds_per_prompt={config.seeds_per_prompt} public texts, found {len(shown)} "
            "that are not empty; give more, or lower candidates.seeds_per_prompt"
        )
    prompts = []
    for number in seed.of_prompts(config.prompts, label):
        chosen = np.random.default_rng(number).choice(len(shown), size=config.seeds_per_prompt, replace=False)
        cut = [_one_line(loaded.tokenizer, shown[row], tokens=config.seed_tokens) for row in chosen]
        prompts.append(_prompt(heading, cut))
    _check_context(loaded, prompts, config)
    return prompts


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
        K * J texts of one line, candidate j of prompt k at k * J + j; ended by a line break, the end token or
        `max_new_tokens`, and empty where nothing came before the end.

    Raises:
        InputError: a prompt does not fit the model's context beside `max_new_tokens`.
    """
    encoded = [prompt_tokens(loaded, prompt) for prompt in prompts]
    texts: list[str] = []
    per_prompt = config.per_prompt
    together = max(1, _ROWS // per_prompt)
    for start in range(0, len(prompts), together):
        batch = encoded[start : start + together]
        rows = range(start * per_prompt, (start + len(batch)) * per_prompt)
        texts += _draw(loaded, batch, config, seeds=seed.of_texts(rows))
        if progress is not None:
            progress(len(texts), len(prompts) * per_prompt)
    return texts


def request_continuations(
    prompts: Sequence[str],
    config: CandidateConfig,
    *,
    endpoint: Endpoint,
    seed: RoundSeed,
    progress: Progress | None = None,
    report: Callable[[Served], None] | None = None,
) -> list[str]:
    """As `continue_prompts`, by a policy that is served elsewhere; `endpoint` must name this round's adapter.

    The server sees public seed texts and writes synthetic ones. It is not told to stop at line breaks, which some
    policies write first: the rest of a text is cut here.

    Raises:
        InputError: `complete`.
        UnderstudyError: `complete`.
    """
    rows = range(len(prompts) * config.per_prompt)
    answers = complete(
        [prompts[row // config.per_prompt] for row in rows],
        seed.of_texts(rows),
        sampling=config.sampling,
        endpoint=endpoint,
        progress=progress,
        report=report,
    )
    return [first_line(answer) for answer in answers]


def first_line(text: str) -> str:
    """The first line with words in it, stripped; what the paper takes between two headings."""
    return next(iter(text.strip().splitlines()), "").strip()


def prompt_tokens(loaded: LoadedModel, prompt: str) -> list[int]:
    """Token ids of a prompt behind BOS, as the policy reads it; DPO trains on the same ids."""
    tokenizer: Any = loaded.tokenizer
    return [special_ids(tokenizer)[0], *tokenizer.encode(prompt, add_special_tokens=False, verbose=False)]


def _heading(instruction: str, label: str | None) -> str:
    if label is None:
        return instruction.strip() or _HEADING
    if "{label}" not in instruction:
        raise InputError(
            f"candidates.instruction={instruction!r}: expected {{label}} in it, where the name of a label goes, for "
            'texts are made per label; give one such as "A list of different texts about {label}:"'
        )
    return instruction.replace("{label}", label).strip()


def _prompt(heading: str, texts: Sequence[str]) -> str:
    shown = [f"Text {number}: {text}" for number, text in enumerate(texts, start=1)]
    return "\n\n".join([heading, *shown, f"Text {len(texts) + 1}:"])


def _one_line(tokenizer: Any, text: str, *, tokens: int) -> str:
    """A public text on one line, cut to so many tokens; a character that the cut splits goes."""
    line = " ".join(text.split())
    ids = tokenizer.encode(" " + line, add_special_tokens=False, verbose=False)
    return line if len(ids) <= tokens else _decode(tokenizer, ids[:tokens]).rstrip("\ufffd").strip()


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def _check_context(loaded: LoadedModel, prompts: Sequence[str], config: CandidateConfig) -> None:
    context = getattr(loaded.model.config, "max_position_embeddings", None)
    longest = max(len(prompt_tokens(loaded, prompt)) for prompt in prompts)
    new = config.sampling.max_new_tokens
    if context is not None and longest + new > context:
        raise InputError(
            f"candidates: the longest prompt takes {longest} tokens and max_new_tokens={new}, together "
            f"{longest + new}; {loaded.name}'s context holds {context}: lower "
            f"seeds_per_prompt={config.seeds_per_prompt}, seed_tokens={config.seed_tokens} or max_new_tokens"
        )


def _draw(
    loaded: LoadedModel, prompts: Sequence[list[int]], config: CandidateConfig, *, seeds: Sequence[int]
) -> list[str]:
    """J texts for each of some prompts; `sample` reads each prompt once."""
    eos, pad = special_ids(loaded.tokenizer)[1:]
    ids, mask = padded_left(prompts, pad=pad, device=next(loaded.model.parameters()).device)
    drawn = sample(
        loaded.model,
        (ids.repeat_interleave(config.per_prompt, 0), mask.repeat_interleave(config.per_prompt, 0)),
        config=config.sampling,
        seeds=seeds,
        eos=eos,
        forbidden=tuple(loaded.tokenizer.all_special_ids),
        step_hook=_end_at_line_break(loaded.tokenizer, rows=len(seeds), eos=eos),
    )
    return [first_line(_decode(loaded.tokenizer, tokens)) for tokens in drawn]


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

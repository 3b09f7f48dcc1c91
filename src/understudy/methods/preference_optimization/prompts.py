"""Prompts of a round: what the policy is asked with, around public seed texts.

Paper: POPri, algorithm 1 (line 4), appendix B.2 and Figure 5, after PrE-Text (Hou et al. 2024).
*Deviations*: a base model continues a list, which is the paper's form in our wording, and every text stands on one line
behind its number. An instruct model is asked through its chat template, which the paper does not do: it is told what it
writes, seed texts are answers that it gave before, and the next answer is the text (ADR 0027). Central conditional: the
label's name stands in the public words (the paper has none).
Everything here is public; random choices come from the public seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jinja2 import TemplateError

from understudy.errors import InputError
from understudy.generation.prompts import row_seeds, special_ids, special_token_ids
from understudy.methods.preference_optimization.config import CandidateConfig, public_words
from understudy.models.loading import LoadedModel


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
    seeds: Sequence[str],
    config: CandidateConfig,
    *,
    loaded: LoadedModel,
    seed: RoundSeed,
    label: str | None = None,
    about: str = "",
) -> list[str]:
    """The K prompts of a round; each shows `seeds_per_prompt` public texts, drawn without repetition.

    Args:
        seeds: public texts; empty ones are passed over.
        config: K, texts per prompt, their greatest length, the instruction, and the style; `auto` is plain here.
        loaded: the base model, whose tokenizer cuts the texts and whose context must hold prompt and continuation.
        seed: a prompt is a function of it, the label and its number; each round has other prompts.
        label: central conditional: name of the label; `{label}` in the instruction is replaced by it.
        about: public words that say what the texts are; a chat is told them.

    Returns:
        K prompts that end where the new text begins. In a list its first token brings its own space.

    Raises:
        InputError: fewer texts than a prompt shows, a label without an instruction that names it, a chat without a
            chat template, or a prompt that does not fit the model's context beside `max_new_tokens`.
    """
    words = _words(config, label)
    shown = [text for text in seeds if text.strip()]
    if len(shown) < config.examples:
        raise InputError(
            f"seeds: expected at least seeds_per_prompt={config.examples} public texts, found {len(shown)} "
            "that are not empty; give more, or lower candidates.seeds_per_prompt"
        )
    prompts = []
    for number in seed.of_prompts(config.prompts, label):
        chosen = np.random.default_rng(number).choice(len(shown), size=config.examples, replace=False)
        cut = [_one_line(loaded.tokenizer, shown[row], tokens=config.seed_tokens) for row in chosen]
        prompts.append(_chat(loaded.tokenizer, about, words, cut) if config.in_chat else _list(words, cut))
    _check_context(loaded, prompts, config)
    return prompts


def prompt_tokens(loaded: LoadedModel, prompt: str) -> list[int]:
    """Token ids of a prompt behind BOS, as the policy reads it; a chat template brings its own."""
    tokenizer: Any = loaded.tokenizer
    ids: list[int] = tokenizer.encode(prompt, add_special_tokens=False, verbose=False)
    return ids if ids and ids[0] in special_token_ids(tokenizer) else [special_ids(tokenizer)[0], *ids]


def _words(config: CandidateConfig, label: str | None) -> str:
    instruction = config.instruction
    if label is None:
        return instruction.strip() or public_words("chat" if config.in_chat else "plain", "")
    if "{label}" not in instruction:
        raise InputError(
            f"candidates.instruction={instruction!r}: expected {{label}} in it, where the name of a label goes, for "
            'texts are made per label; give one such as "A list of different texts about {label}:"'
        )
    return instruction.replace("{label}", label).strip()


def _list(heading: str, texts: Sequence[str]) -> str:
    shown = [f"Text {number}: {text}" for number, text in enumerate(texts, start=1)]
    return "\n\n".join([heading, *shown, f"Text {len(texts) + 1}:"])


def _chat(tokenizer: Any, about: str, request: str, texts: Sequence[str]) -> str:
    """The request and the opening of its answer, as the template writes them; examples are answers given before.

    A template that refuses a system message, or leaves its words out, gets them in front of the first request.
    """
    told, asked = f"You write {about.strip() or 'texts'}.", {"role": "user", "content": request}
    turns = [turn for text in texts for turn in (asked, {"role": "assistant", "content": text})] + [asked]
    merged = {"role": "user", "content": f"{told}\n\n{request}"}
    refused = ""
    for way in ([{"role": "system", "content": told}, *turns], [merged, *turns[1:]]):
        try:
            chat = cast("str", tokenizer.apply_chat_template(way, tokenize=False, add_generation_prompt=True))
        except (ValueError, TemplateError) as error:
            refused = str(error)
            continue
        if told in chat:
            return chat
        refused = f"it leaves out {told!r}"
    raise InputError(
        f"candidates.style=chat: the model's chat template cannot be used ({refused}); set candidates.style=plain or "
        "choose another model"
    )


def _one_line(tokenizer: Any, text: str, *, tokens: int) -> str:
    """A public text on one line, cut to so many tokens; a character that the cut splits goes."""
    line = " ".join(text.split())
    ids = tokenizer.encode(" " + line, add_special_tokens=False, verbose=False)
    if len(ids) <= tokens:
        return line
    cut: str = tokenizer.decode(ids[:tokens], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return cut.rstrip("\ufffd").strip()


def _check_context(loaded: LoadedModel, prompts: Sequence[str], config: CandidateConfig) -> None:
    context = getattr(loaded.model.config, "max_position_embeddings", None)
    longest = max(len(prompt_tokens(loaded, prompt)) for prompt in prompts)
    new = config.sampling.max_new_tokens
    if context is not None and longest + new > context:
        raise InputError(
            f"candidates: the longest prompt takes {longest} tokens and max_new_tokens={new}, together "
            f"{longest + new}; {loaded.name}'s context holds {context}: lower "
            f"seeds_per_prompt={config.examples}, seed_tokens={config.seed_tokens} or max_new_tokens"
        )

"""Labels as tokens: `BOS <text> <template>`, and the label is the next token (GRADMM, section 3).

Deviation from the paper: every text begins after BOS, as everywhere in this project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from understudy.errors import InputError
from understudy.generation.prompts import encode_text, special_ids
from understudy.methods.gradient_matching.config import VerbalizerConfig

_OF_THE_PAPER = " It was"


@dataclass(frozen=True)
class Verbalizer:
    """One token per label and the public tokens around a text.

    Attributes:
        label_names: K names, in the order of the label indices.
        token_ids: `(K,)` int64, all different.
        template_ids: `(T,)` int64, between the text and the label's token.
        prefix_ids: `(P,)` int64, before the text: BOS.
    """

    label_names: tuple[str, ...]
    token_ids: Tensor
    template_ids: Tensor
    prefix_ids: Tensor


@dataclass(frozen=True)
class RowTokens:
    """Encoded texts; private where the texts are.

    Attributes:
        input_ids: `(n, width)` int64.
        last: `(n,)` int64, column of the template's last token.
        text_tokens: `(n,)` int64, tokens of the text alone, after cutting.
    """

    input_ids: Tensor = field(repr=False)
    last: Tensor = field(repr=False)
    text_tokens: Tensor = field(repr=False)


def build_verbalizer(tokenizer: Any, label_names: Sequence[str], config: VerbalizerConfig) -> Verbalizer:
    """Encode template and words.

    Args:
        tokenizer: Of the base model.
        label_names: Every label, public; at least two.
        config: Template and words.

    Raises:
        InputError: Fewer than two labels, words that do not fit the labels, a word or template without tokens, or two
            labels with the same first token.
    """
    check_words(label_names, config)
    words = _words(label_names, config)
    text = template_of(config)
    template = _encode(tokenizer, text)
    if not template:
        raise InputError(f"verbalizer.template={text!r}: expected at least one token, found none")
    tokens = [first_token(tokenizer, text, word) for word in words.values()]
    _check_tokens(tokenizer, words, tokens)
    return Verbalizer(
        label_names=tuple(label_names),
        token_ids=torch.tensor(tokens, device="cpu"),
        template_ids=torch.tensor(template, device="cpu"),
        prefix_ids=torch.tensor(special_ids(tokenizer)[:1], device="cpu"),
    )


def encode_rows(texts: Sequence[str | None], *, tokenizer: Any, verbalizer: Verbalizer, max_length: int) -> RowTokens:
    """Texts as `BOS <text> <template>`, padded on the right to one public width.

    A language model reads from left to right, so what stands to the right of the template's last token changes
    nothing before it, and no attention mask is needed.

    Args:
        texts: Private or synthetic texts; None is the null row, which is encoded like an empty text.
        tokenizer: Of the base model.
        verbalizer: Gives prefix and template.
        max_length: Tokens of a text that are kept.
    """
    pad = special_ids(tokenizer)[2]
    prefix, template = verbalizer.prefix_ids.tolist(), verbalizer.template_ids.tolist()
    pieces = [[] if text is None else encode_text(tokenizer, text)[:max_length] for text in texts]
    ids = torch.full((len(texts), len(prefix) + max_length + len(template)), pad, device="cpu")
    for row, piece in enumerate(pieces):
        whole = torch.tensor([*prefix, *piece, *template], device="cpu")
        ids[row, : len(whole)] = whole
    tokens = torch.tensor([len(piece) for piece in pieces], dtype=torch.long, device="cpu")
    return RowTokens(ids, tokens + len(prefix) + len(template) - 1, tokens)


def check_words(label_names: Sequence[str], config: VerbalizerConfig) -> None:
    """Refuse fewer than two labels, and words that do not fit them.

    Raises:
        InputError: as `build_verbalizer`.
    """
    if len(label_names) < 2:
        raise InputError(
            f"label_names={list(label_names)}: expected at least two labels; declare every label of the data"
        )
    _words(label_names, config)


def template_of(config: VerbalizerConfig) -> str:
    """The template; that of the paper where none was calibrated."""
    return _OF_THE_PAPER if config.template == "auto" else config.template


def _words(label_names: Sequence[str], config: VerbalizerConfig) -> dict[str, str]:
    """Label name -> word."""
    if isinstance(config.words, str):
        return {name: name for name in label_names}
    missing = [name for name in label_names if name not in config.words]
    unknown = sorted(set(config.words) - set(label_names))
    if missing or unknown:
        raise InputError(
            f"verbalizer.words={config.words}: expected one word for each of the labels {list(label_names)}, found "
            f"none for {missing} and unknown labels {unknown}"
        )
    return {name: config.words[name] for name in label_names}


def first_token(tokenizer: Any, template: str, word: str) -> int | None:
    """The token that follows the template's where the word does; None if the word has no token."""
    before = _encode(tokenizer, template)
    together = _encode(tokenizer, f"{template} {word.strip()}")
    # A tokenizer that joins the word to the template would give the template other tokens: encode the word alone.
    after = together[len(before) :] if together[: len(before)] == before else _encode(tokenizer, f" {word.strip()}")
    return after[0] if word.strip() and after else None


def _check_tokens(tokenizer: Any, words: dict[str, str], tokens: Sequence[int | None]) -> None:
    seen: dict[int, str] = {}
    for (name, word), token in zip(words.items(), tokens, strict=True):
        if token is None:
            raise InputError(
                f"verbalizer.words: the word {word!r} of label {name!r} has no token: expected a word that the "
                "tokenizer can write; give another with verbalizer.words"
            )
        if token in seen:
            other = seen[token]
            raise InputError(
                f"verbalizer.words: labels {other!r} ({words[other]!r}) and {name!r} ({word!r}) begin with the same "
                f"token {tokenizer.decode([token])!r} ({token}): expected words whose first tokens differ; give "
                "others with verbalizer.words"
            )
        seen[token] = name


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))

"""How useful a small labelled table is: fine-tune a target model on it, test on real rows.

Paper: GRADMM, section 5.1 (200 steps of Adam, batch 16, linear decay) and Tables 1 and 2 (models
of several families, "transfer"). Loss and verdict are those of `evaluation.label_model`; the default loss is the
paper's.

*Deviations*. The LAST checkpoint is evaluated; the paper takes the best of several on the test rows, a choice made by
the rows that judge. Dropout, weight decay, warm-up and gradient clipping, of which it says nothing, are off. Where
there are fewer rows than the batch holds, a step takes all of them. The `tiny` profile trains the upper layers only
and computes the states that enter them once per row: the update is that of frozen lower layers, for less work.
With tied embeddings, frozen lower layers freeze the output head too.

A model that was trained or tested on real rows is an evaluation model: neither its weights nor its verdicts may
influence anything that is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from understudy.compute import copied_to
from understudy.errors import InputError
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.utility.classifier import check_labels
from understudy.evaluation.utility.label_model import (
    LabelModel,
    LabelWords,
    Loss,
    encode_rows,
    label_loss,
    last_states,
    padded,
)
from understudy.frozen import Profile, Profiled, Profiles
from understudy.models.loading import load_model
from understudy.models.upper_layers import entering_states, freeze_lower_layers, last_state
from understudy.quantities import Count, CountOrZero, LearningRate, NonEmpty, Size, setting

_STATES_KEPT = 1024  # rows whose entering states are remembered: 50 MB at 48 tokens and 256 wide
_CHUNK = 64

_TINY: dict[str, Any] = {"base": "tiny-llama", "learning_rate": 3e-4, "max_length": 48, "frozen_lower_layers": 3}

WordsOf = Callable[[Any], LabelWords]  # tokenizer -> the label words in it
Callback = Callable[[int, LabelModel], None]  # (steps done, the model as it is)
Sequences = list[list[int]]


class TransferConfig(Profiled):
    """The target model and how it is fine-tuned; public values only."""

    profiles: ClassVar[Profiles] = {"tiny": _TINY}

    profile: Profile = "paper"
    base: NonEmpty = setting(
        "microsoft/phi-1_5",
        "Target model: shipped name, local folder or hub id. tiny tiny-llama, paper microsoft/phi-1_5.",
    )
    steps: Count = setting(200, "Adam steps, at least 1; paper 200.")
    batch_size: Size = setting(16, "Rows per step, at least 1; all rows where there are fewer. Paper 16.")
    learning_rate: LearningRate = setting(
        7e-6, "First step size, falling linearly to 0; above 0. tiny 3e-4, paper 7e-6 of {7e-6, 1e-5, 1.5e-5}."
    )
    max_length: Count = setting(
        128, "Tokens of a text that are read, at least 1; longer ones are cut. tiny 48, paper 128 (unsaid)."
    )
    loss: Loss = setting(
        "vocabulary", "Cross-entropy of the label's word over the whole vocabulary (paper) or over the label words."
    )
    frozen_lower_layers: CountOrZero = setting(
        0, "First transformer layers left untrained, with the embeddings; 0 trains all. tiny 3, paper 0."
    )
    measure_every: Count = setting(50, "Steps between two calls of the callback, at least 1; paper 50.")


def load_label_model(*, label_words: WordsOf, config: TransferConfig, device: str = "cpu") -> LabelModel:
    """The target model before fine-tuning (the paper's "pretrained").

    Args:
        label_words: builds the verbaliser for the target model's own tokenizer.
        config: names the target model.
        device: torch device.

    Raises:
        InputError: when the model is unknown or its context too short, or what `label_words` raises.
    """
    loaded = load_model(config.base)
    words = label_words(loaded.tokenizer)
    context = getattr(loaded.model.config, "max_position_embeddings", None)
    longest = 1 + config.max_length + len(words.template_ids)
    if context is not None and longest > context:
        raise InputError(
            f"max_length={config.max_length}: BOS, text and template take up to {longest} tokens, the context of "
            f"{config.base!r} holds {context}; expected at most {context - longest + config.max_length}"
        )
    model = loaded.model.requires_grad_(False).to(device)
    return LabelModel(model, loaded.tokenizer, words, config.max_length, config.loss)


def fine_tune(
    rows: LabelledTexts,
    *,
    label_words: WordsOf,
    config: TransferConfig,
    seed: int,
    device: str = "cpu",
    callback: Callback | None = None,
) -> LabelModel:
    """Fine-tune a fresh copy of the target model; the weights after the last step are returned.

    Args:
        rows: training rows: synthetic, prompted or real.
        label_words: builds the verbaliser for the target model's tokenizer.
        config: target model and constants.
        seed: of the order of rows, the only random choice.
        device: torch device.
        callback: called before the first step, after every `measure_every` and after the last. It reads the model,
            may compute gradients, and leaves weights and `requires_grad` as they are.

    Returns:
        The tuned model. It carries the label of its training rows.

    Raises:
        InputError: when the model is unknown, there is no row, a label is out of range, a text does not fit the
            context, or too many layers are frozen.
    """
    target = load_label_model(label_words=label_words, config=config, device=device)
    truth = torch.from_numpy(check_labels(rows.texts, rows.labels, classes=target.classes))
    freeze_lower_layers(target.model, config.frozen_lower_layers)
    states_of = _states_of(target, encode_rows(target, rows.texts), config.frozen_lower_layers)
    optimizer = torch.optim.Adam([p for p in target.model.parameters() if p.requires_grad], lr=config.learning_rate)
    stream = _row_stream(len(truth), torch.Generator().manual_seed(seed))
    head = target.model.get_output_embeddings()
    for step in range(config.steps):
        if callback is not None and step % config.measure_every == 0:
            callback(step, target)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * (1 - step / config.steps)
        batch = [next(stream) for _ in range(min(config.batch_size, len(truth)))]
        logits = head(states_of(batch))
        losses = label_loss(logits, copied_to(truth[batch], logits.device), words=target.words, loss=config.loss)
        torch.autograd.backward(losses.mean())
        optimizer.step()
        # Now rather than before the next gradient: neither the callback nor who gets the model needs this one.
        optimizer.zero_grad(set_to_none=True)
    target.model.requires_grad_(False)
    if callback is not None:
        callback(config.steps, target)
    return target


def _row_stream(rows: int, generator: torch.Generator) -> Iterator[int]:
    """One random order of the rows after another."""
    while True:
        yield from torch.randperm(rows, generator=generator).tolist()


def _states_of(target: LabelModel, encoded: Sequences, frozen: int) -> Callable[[list[int]], Tensor]:
    """Rows -> what enters the output head at their last token, (rows, d), differentiable by what is trained."""
    if frozen == 0:
        return lambda rows: last_states(target, [encoded[row] for row in rows])

    def entering(rows: list[int]) -> list[Tensor]:
        sequences = [encoded[row] for row in rows]
        ids, mask = padded(target, sequences)
        states = entering_states(target.model, frozen, input_ids=ids, attention_mask=mask)
        return [state[: len(sequence)].clone() for state, sequence in zip(states, sequences, strict=True)]

    kept: list[Tensor] | None = None
    if len(encoded) <= _STATES_KEPT:
        chunks = torch.split(torch.arange(len(encoded), device="cpu"), _CHUNK)
        kept = [state for chunk in chunks for state in entering(chunk.tolist())]

    def states_of(rows: list[int]) -> Tensor:
        ids, mask = padded(target, [encoded[row] for row in rows])
        states = pad_sequence([kept[row] for row in rows] if kept is not None else entering(rows), batch_first=True)
        return last_state(target.model, frozen, input_ids=ids, attention_mask=mask, states=states)

    return states_of

"""From released targets to texts, one shard of synthetic examples at a time (GRADMM, Algorithm 1 up to its line 12).

Each example starts at the embeddings of random public tokens and is matched to the target of its label on its own; its
text is the nearest to the target of all rounds', or with emit=last the projection of X after the last round, as in the
paper (ADR 0009), brought nearer by swapping tokens (ADR 0011). All of this is post-processing of the targets.

An example's random start is a function of the public seed, its label and its number; shards and batches change nothing
but the last bits of float arithmetic. Deviation from the paper: the loss of the emitted string, tokenised again, stands
beside the loss of the projected tokens, for a tokenizer need not give back the tokens it was decoded from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import torch
from torch import Tensor

from understudy.compute import copied_to, widened_weights
from understudy.errors import InputError
from understudy.generation.prompts import Instruction, encode_text, instruction_ids, padded_left, row_seeds, special_ids
from understudy.methods.gradient_matching.admm import AdmmState, Objective, Project, admm
from understudy.methods.gradient_matching.config import GradientMatchingConfig, ProjectionConfig
from understudy.methods.gradient_matching.full_gradient import full_objective
from understudy.methods.gradient_matching.loss import embed, objective
from understudy.methods.gradient_matching.projection import (
    allowed_tokens,
    check_projection,
    l2_projection,
    top_k_projection,
)
from understudy.methods.gradient_matching.release import FULL, Target
from understudy.methods.gradient_matching.swaps import Propose, Swapped, any_token, likely_tokens, swap_tokens
from understudy.methods.gradient_matching.targets import target_space
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.models.loading import LoadedModel
from understudy.progress import CheckpointSink, Course, Progress

Checkpoints = Callable[[str], CheckpointSink]
Example = tuple[int, int]  # label index, number of the example among those of its label

SCHEMA = pa.schema(
    {
        "text": pa.string(),
        "label": pa.int32(),
        "example": pa.int64(),
        "projected_loss": pa.float32(),  # of the tokens, before they become a string
        "emitted_loss": pa.float32(),  # of the emitted string, tokenised again
        "relaxed": pa.list_(pa.float32()),  # f(X), warm start first, then per round
        "losses": pa.list_(pa.float32()),  # f(Z) per round
        "residuals": pa.list_(pa.float32()),  # |X - Z| per round
        "swapped": pa.list_(pa.float32()),  # f of the tokens before the first sweep of swaps and after each
    }
)


def match_shard(
    base: LoadedModel,
    target: Target,
    *,
    config: GradientMatchingConfig,
    examples: Sequence[Example],
    public_seed: int,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
) -> pa.Table:
    """Match some synthetic examples; a resumed run gives the same rows.

    Args:
        base: Public base model, on the device to be used; its parameters are frozen.
        target: Released, or private at epsilon = inf; the rows are of the same kind. Sketch, verbaliser and the
            length of the texts are its own.
        config: Of matching and projection.
        examples: The shard.
        public_seed: Of the random starts.
        checkpoints: Name of a batch (`batch-00000`) -> sink of its state, which holds what the target does.
        progress: Called with (completed rounds and sweeps, all of them) over all batches.

    Returns:
        One row per example in the given order, of `SCHEMA`. A text may be empty.

    Raises:
        InputError: The target is another model's, an example has no label, or k or length do not fit the model.
    """
    _check_shard(base, target, examples)
    names, settings = target.label_names, config.projection
    losses = objectives(base, target)
    device = next(base.model.parameters()).device
    allowed = allowed_tokens(base.tokenizer, settings.allowed).to(device)
    ids, mask = (part.to(device) for part in _prompts(base, names, config))
    size, steps = config.matching.batch_size, config.matching.rounds + config.matching.swap_sweeps
    table = embed(base.model, torch.arange(base.model.get_input_embeddings().num_embeddings, device=device))
    batches = [examples[start : start + size] for start in range(0, len(examples), size)]
    rows: list[dict[str, Any]] = []
    for number, batch in enumerate(batches):
        labels = torch.tensor([label for label, _ in batch], device=device)
        start = starting_tokens(batch, names, length=target.length, allowed=allowed, public_seed=public_seed)
        project = _projection(base.model, settings, (ids[labels], mask[labels]), allowed)
        state = admm(
            losses(labels),
            project,
            embed(base.model, start),
            config=config.matching,
            course=Course(
                None if checkpoints is None else checkpoints(f"batch-{number:05d}"),
                None if progress is None else _shifted(progress, number * steps, len(batches) * steps),
            ),
        )
        swapped = swap_tokens(
            losses(labels),
            _proposals(base.model, settings, (ids[labels], mask[labels]), allowed),
            _final_tokens(state, project, losses(labels), emit=config.matching.emit),
            table=table,
            sweeps=config.matching.swap_sweeps,
            width=config.matching.swap_width,
        )
        if progress is not None:
            progress((number + 1) * steps, len(batches) * steps)
        texts = emit_texts(base.tokenizer, swapped.token_ids)
        emitted = _emitted_losses(base, texts, labels, losses=losses, max_length=target.settings.max_length)
        rows += _rows(batch, state, swapped, texts=texts, emitted=emitted)
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def check_matching(base: LoadedModel, label_names: Sequence[str], *, config: GradientMatchingConfig) -> None:
    """Refuse before anything is charged what could not be projected.

    Raises:
        InputError: k exceeds the allowed tokens, or instruction and text do not fit the model's context.
    """
    settings = config.projection
    check_projection(
        base.model,
        prompt_width=_prompts(base, label_names, config)[0].shape[1],
        length=config.max_length if config.length == "as_in_data" else config.length,
        allowed=allowed_tokens(base.tokenizer, settings.allowed),
        k=settings.k,
        kind=settings.kind,
    )


def _prompts(base: LoadedModel, label_names: Sequence[str], config: GradientMatchingConfig) -> tuple[Tensor, Tensor]:
    return instruction_prompts(base.tokenizer, label_names, instruction_of(config))


def instruction_of(config: GradientMatchingConfig) -> Instruction:
    """How the language model is asked for texts: by the run's own instruction, else by its public words."""
    return Instruction(config.projection.instruction, config.about)


def instruction_prompts(tokenizer: Any, label_names: Sequence[str], instruction: Instruction) -> tuple[Tensor, Tensor]:
    """The prompt of every label.

    Args:
        tokenizer: Of the model.
        label_names: K names, public.
        instruction: Public.

    Returns:
        Token ids and attention mask `(K, width)` int64, padded on the left.
    """
    pad = special_ids(tokenizer)[2]
    rows = [instruction_ids(tokenizer, name, instruction) for name in label_names]
    return padded_left(rows, pad=pad)


def starting_tokens(
    examples: Sequence[Example], label_names: Sequence[str], *, length: int, allowed: Tensor, public_seed: int
) -> Tensor:
    """Random public tokens `(len(examples), length)` int64, each example's from a stream of its own."""
    choices = allowed.nonzero()[:, 0].cpu()
    rows = []
    for label, example in examples:
        seed = row_seeds(public_seed, [example], purpose=f"gradient-matching/start/{label_names[label]}")[0]
        drawn = torch.randint(len(choices), (length,), generator=torch.Generator().manual_seed(seed))
        rows.append(choices[drawn])
    return copied_to(torch.stack(rows), allowed.device)


def objectives(base: LoadedModel, target: Target) -> Callable[[Tensor], Objective]:
    """Labels `(batch,)` -> objective of a batch, in the charged settings' own space."""
    settings, model = target.settings, widened_weights(base.model) if target.kind == FULL else base.model
    verbalizer = build_verbalizer(base.tokenizer, target.label_names, settings.verbalizer)
    space = target_space(model, verbalizer, settings.target, public_seed=settings.public_seed)
    stacked = target.stacked.to(space.token_ids.device)
    make = full_objective if target.kind == FULL else objective
    return lambda labels: make(model, space, stacked, verbalizer, labels)


def _projection(model: Any, settings: ProjectionConfig, prompts: tuple[Tensor, Tensor], allowed: Tensor) -> Project:
    """Projection of one batch, given each example's instruction."""
    if settings.kind == "l2":
        return partial(l2_projection, model, allowed=allowed)
    return partial(top_k_projection, model, prompts=prompts, allowed=allowed, k=settings.k, metric=settings.metric)


def _proposals(model: Any, settings: ProjectionConfig, prompts: tuple[Tensor, Tensor], allowed: Tensor) -> Propose:
    """What a swap may put in: the tokens that the projection chooses from."""
    if settings.kind == "l2":
        return any_token(allowed, model.get_input_embeddings().num_embeddings)
    return likely_tokens(model, prompts, allowed=allowed, k=settings.k)


def _final_tokens(state: AdmmState, project: Project, f: Objective, *, emit: Literal["nearest", "last"]) -> Tensor:
    """Tokens `(batch, length)` that ADMM ends with: of X_T's projection, or of a nearer Z before it."""
    last = project(state.x)
    if emit == "last":
        return last.token_ids
    nearer = state.best_loss < f(last.embeddings.to(state.x.dtype)).detach()
    return torch.where(nearer[:, None], state.best_tokens, last.token_ids)


def _rows(
    examples: Sequence[Example], state: AdmmState, swapped: Swapped, *, texts: Sequence[str], emitted: Tensor
) -> list[dict[str, Any]]:
    """The table's rows of one batch."""
    final = swapped.losses[:, -1]
    columns = (final, emitted, state.relaxed, state.losses, state.residuals, swapped.losses)
    values = zip(*(column.tolist() for column in columns), strict=True)
    names = SCHEMA.names[3:]
    return [
        {"text": text, "label": label, "example": example, **dict(zip(names, row, strict=True))}
        for (label, example), text, row in zip(examples, texts, values, strict=True)
    ]


def emit_texts(tokenizer: Any, token_ids: Tensor) -> list[str]:
    """Texts of tokens `(batch, length)`, stripped."""
    rows = token_ids.tolist()
    decode = tokenizer.decode
    return [decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False).strip() for row in rows]


def _emitted_losses(
    base: LoadedModel, texts: Sequence[str], labels: Tensor, *, losses: Callable[[Tensor], Objective], max_length: int
) -> Tensor:
    """Losses `(batch,)` of texts as a reader tokenises them, each at its own length."""
    found = []
    for row, text in enumerate(texts):
        ids = torch.tensor([encode_text(base.tokenizer, text)[:max_length]], dtype=torch.long, device=labels.device)
        found.append(losses(labels[row : row + 1])(embed(base.model, ids)).detach())
    return torch.cat(found)


def _check_shard(base: LoadedModel, target: Target, examples: Sequence[Example]) -> None:
    if base.digest != target.model_digest:
        raise InputError(
            f"model={base.name!r} is not the model whose gradient the target is: expected digest "
            f"{target.model_digest[:12]}, found {base.digest[:12]}; load the charged one"
        )
    unknown = sorted({label for label, _ in examples if not 0 <= label < len(target.label_names)})
    if not examples or unknown:
        raise InputError(
            f"examples: expected at least one, with label indices from 0 to {len(target.label_names) - 1}, found "
            f"{len(examples)} examples and the indices {unknown}"
        )


def _shifted(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)

"""The professional model's responses (paper, section 3.3): in this process, batched, or from a served model.

A served model sees released instructions only. Each of its answers is stored under its prompt as soon as it arrives, so
that a step that was killed asks for none twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from understudy.compute import ON_CPU, Compute
from understudy.errors import InputError
from understudy.generation.answers import Asking, asked_once
from understudy.generation.instructions import Pair, PairEncoder, plain_text
from understudy.generation.prompts import row_seeds
from understudy.generation.self_instruct import write_answers
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig, ProfessionalConfig
from understudy.models.loading import LoadedModel, load_model
from understudy.progress import Progress


def load_professional(config: ProfessionalConfig, compute: Compute = ON_CPU) -> LoadedModel:
    """The professional model of this process.

    Raises:
        InputError: it is unknown, or not the one that the run began with.
    """
    try:
        return load_model(config.model, digest=config.model_digest, compute=compute)
    except InputError as error:
        raise InputError(f"professional.{error}") from None


def write_responses(
    requests: Sequence[str],
    model: LoadedModel,
    config: KnowledgeDistillationConfig,
    progress: Progress | None = None,
    *,
    first: int = 0,
) -> list[str]:
    """One response per instruction, by a model of this process; an empty one is an answer.

    Args:
        requests: instructions, released.
        model: the professional one, or any other to compare with.
        config: template, sampling, batch and public seed.
        progress: called with (responses, instructions).
        first: number of the first instruction.
    """
    settings = config.professional
    encoder = PairEncoder(model.tokenizer, settings.template)
    ids, mask, _ = _prompts(requests, model, encoder, config)
    return write_answers(
        model,
        encoder,
        (ids, mask),
        sampling=settings.sampling,
        seeds=_seeds(config, first, len(requests)),
        batch_size=config.instructions.batch_size,
        progress=progress,
    )


def count_cut_requests(instructions: Sequence[str], model: LoadedModel, config: KnowledgeDistillationConfig) -> int:
    """How many instructions `write_responses` cuts to the model's context; of private ones private."""
    encoder = PairEncoder(model.tokenizer, config.professional.template)
    return _prompts(instructions, model, encoder, config)[2]


def _prompts(
    instructions: Sequence[str], model: LoadedModel, encoder: PairEncoder, config: KnowledgeDistillationConfig
) -> tuple[Tensor, Tensor, int]:
    """Ids and mask of the prompts, which leave room for an answer, and how many were cut."""
    context = int(getattr(model.model.config, "max_position_embeddings", 0) or 4096)
    room = context - config.professional.sampling.max_new_tokens
    return encoder.prompts([Pair(text) for text in instructions], max_length=room)


def request_responses(
    instructions: Sequence[str],
    config: KnowledgeDistillationConfig,
    *,
    kept: Path,
    first: int = 0,
    progress: Progress | None = None,
) -> list[str]:
    """One response per instruction from the endpoint.

    Args:
        instructions: released; the server sees them.
        config: endpoint, sampling and public seed.
        kept: folder of answers by prompt.
        first: number of the first instruction.
        progress: called with (responses, instructions).

    Raises:
        InputError: the server refuses, or does not speak the protocol.
        UnderstudyError: it does not answer.
    """
    settings = config.professional
    asking = Asking(
        url=settings.url,
        model=settings.served_name,
        timeout_seconds=settings.timeout_seconds,
        per_minute=settings.requests_per_minute,
    )
    prompts = [plain_text(text) for text in instructions]
    seeds = _seeds(config, first, len(prompts))
    found = asked_once(prompts, seeds, asking=asking, sampling=settings.sampling, kept=kept, progress=progress)
    return [text.strip() for text in found]


def _seeds(config: KnowledgeDistillationConfig, first: int, count: int) -> list[int]:
    return row_seeds(config.public_seed, range(first, first + count), purpose="distillation/responses")


def check_context(model: LoadedModel, config: KnowledgeDistillationConfig) -> None:
    """Refuse answers that leave no room for an instruction.

    Raises:
        InputError: naming the setting.
    """
    context = int(getattr(model.model.config, "max_position_embeddings", 0) or 4096)
    PairEncoder(model.tokenizer, config.professional.template).check_width(
        context - config.professional.sampling.max_new_tokens,
        setting="professional: the context less professional.sampling.max_new_tokens",
    )

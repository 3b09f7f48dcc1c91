"""What one client sends in federated learning: a few steps of SGD on its own samples, as one clipped vector.

Paper: McMahan et al. 2017 (Federated Averaging), McMahan et al. 2018 (arXiv 1710.06963, Algorithm 1: UserUpdate with
flat clipping of the whole update).
*Deviations*: a fixed number of local steps in place of epochs, so that a client's cost and the run's are bounded and
public; adapters (LoRA) in place of all weights if so configured: a vector of fewer numbers meets less noise.

Clients are computed one after another. On a CPU a batch of one client is bound by arithmetic: computing eight at once
through torch.func.vmap took 1.1 (LoRA) to 1.6 times (all weights) as long per client as this loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from pydantic import Field
from torch import Tensor, nn

from understudy.errors import InputError
from understudy.evaluation.language_model import encode_texts, pad_token_of
from understudy.evaluation.next_token import next_token_loss
from understudy.frozen import Frozen
from understudy.generation.prompts import row_seeds
from understudy.models.loading import LoadedModel
from understudy.models.lora import attach, trainable_parameters

Weights = Mapping[str, nn.Parameter]


class LocalConfig(Frozen):
    """The downstream model and what a client does with it; public values only."""

    base: str = Field(
        default="tiny-gpt2",
        min_length=1,
        description="Downstream model: shipped name, local folder or hub id. tiny tiny-gpt2, paper DistilGPT2.",
    )
    sample_tokens: int = Field(
        default=64, ge=2, le=100_000, description="Tokens of a sample, the begin token included; paper 64."
    )
    lora_rank: int = Field(
        default=4, ge=0, le=4096, description="Rank of the adapters that are trained; 0: all weights. tiny 4, paper 0."
    )
    lora_alpha: float = Field(default=8, gt=0, le=1e5, description="LoRA alpha; without meaning at rank 0.")
    steps: int = Field(default=2, ge=1, le=100_000, description="SGD steps of a client per round. tiny 2.")
    batch_size: int = Field(default=2, ge=1, le=100_000, description="Samples per local step; paper 2.")
    learning_rate: float = Field(
        default=0.5, gt=0, le=1000, description="Of local SGD. tiny 0.5 (adapters), paper 0.1 of {0.001, 0.01, 0.1}."
    )
    l2_clip_norm: float = Field(
        default=0.5,
        gt=0,
        le=1e6,
        description="C, the largest norm of a client's update. tiny 0.5, paper 1 of {0.01, 0.1, 1}.",
    )


LOCAL_PAPER: dict[str, Any] = {
    "base": "distilbert/distilgpt2",
    "lora_rank": 0,
    "learning_rate": 0.1,
    "l2_clip_norm": 1.0,
}


@dataclass(frozen=True, eq=False)
class ClientTokens:
    """All clients' samples as tokens; private.

    Attributes:
        ids: (samples, length) int64, padded on the right, the samples of a client one after another.
        mask: (samples, length) int64, 1 on real tokens.
        starts: (n + 1,) ints; client i owns the samples from starts[i] up to starts[i + 1]. A null client owns none.
    """

    ids: Tensor
    mask: Tensor
    starts: tuple[int, ...]

    @property
    def n(self) -> int:
        """Slots, null clients included."""
        return len(self.starts) - 1


def encode_clients(tokenizer: Any, clients: Sequence[Sequence[str] | None], *, length: int) -> ClientTokens:
    """Tokens of every client's samples, padded to one public length.

    Args:
        tokenizer: Of the downstream model.
        clients: One per slot, private; None or no sample is the null client.
        length: Tokens kept, the begin token included.
    """
    texts = [text for samples in clients for text in samples or ()]
    encoded = encode_texts(tokenizer, texts, max_length=length)
    ids = torch.full((len(texts), length), pad_token_of(tokenizer))
    mask = torch.zeros((len(texts), length), dtype=torch.int64)
    for row, tokens in enumerate(encoded):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    starts = [0]
    for samples in clients:
        starts.append(starts[-1] + len(samples or ()))
    return ClientTokens(ids, mask, tuple(starts))


def trained_model(
    loaded: LoadedModel, config: LocalConfig, *, public_seed: int, device: str = "cpu"
) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """The model to train and its weights that are trained: adapters, or all of them.

    Args:
        loaded: Public downstream model; it is changed in place and belongs to the result.
        config: Rank and alpha.
        public_seed: Of the adapters' start values.
        device: torch device.

    Raises:
        InputError: The model's context is shorter than a sample.
    """
    context = getattr(loaded.model.config, "max_position_embeddings", None)
    if context is not None and config.sample_tokens > context:
        raise InputError(f"sample_tokens={config.sample_tokens}: expected at most the model's context of {context}")
    model: Any = loaded.model.eval()
    if config.lora_rank:
        generator = torch.Generator().manual_seed(row_seeds(public_seed, [0], purpose="federated/adapter")[0])
        model = attach(model, rank=config.lora_rank, alpha=config.lora_alpha, generator=generator)
    else:
        model.requires_grad_(True)
    model.to(device)
    return model, trainable_parameters(model)


def plain_model(model: nn.Module) -> Any:
    """The trained model without adapters around it, frozen; adapters are added to the weights."""
    whole: Any = model.merge_and_unload() if isinstance(model, PeftModel) else model
    return whole.eval().requires_grad_(False)


def clipped_update_sum(
    model: nn.Module,
    weights: Weights,
    tokens: ClientTokens,
    slots: Sequence[int],
    *,
    config: LocalConfig,
    public_seed: int,
    round: int,
) -> dict[str, Tensor]:
    """Sum of the slots' clipped updates: what the gateway noises.

    *Guarantee*: none by itself; the sum has sensitivity `config.l2_clip_norm` (unit client, add/remove one client
    realised as a null client in its slot), for a client's update depends on the weights, its slot and its own samples.

    Args:
        model: Dropout zero; its weights are as before on return.
        weights: Name -> the parameters that are trained, all on one device.
        tokens: Every client's samples; private.
        slots: Who takes part, private where it was drawn. A null client adds zero, as does an update that is not
            finite.
        config: Local steps and clip norm.
        public_seed: Of the order in which a client goes through its samples.
        round: Logical round, likewise.

    Returns:
        Name -> float64 sum, on the device of the weights.
    """
    start = {name: parameter.detach().clone() for name, parameter in weights.items()}
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
    for slot in slots:
        for ids, mask in _local_batches(tokens, slot, config, seed=_order_seed(public_seed, round, slot)):
            _descend(model, weights, ids, mask, learning_rate=config.learning_rate)
        with torch.no_grad():
            update = {name: (parameter - start[name]).double() for name, parameter in weights.items()}
            factor = _clip_factor(update, config.l2_clip_norm)
            for name, parameter in weights.items():
                parameter.copy_(start[name])
                if factor > 0:
                    total[name].add_(update[name], alpha=factor)
    return total


def _order_seed(public_seed: int, round: int, slot: int) -> int:
    return row_seeds(public_seed, [slot], purpose=f"federated/order/{round}")[0]


def _local_batches(
    tokens: ClientTokens, slot: int, config: LocalConfig, *, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The client's samples in random order, over and over, `batch_size` at a time; nothing for a null client."""
    begin, count = tokens.starts[slot], tokens.starts[slot + 1] - tokens.starts[slot]
    if count == 0:
        return
    order = begin + torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    for step in range(config.steps):
        rows = order[torch.arange(step * config.batch_size, (step + 1) * config.batch_size) % count]
        yield tokens.ids[rows], tokens.mask[rows]


def _descend(model: nn.Module, weights: Weights, ids: Tensor, mask: Tensor, *, learning_rate: float) -> None:
    device = next(iter(weights.values())).device
    parameters = list(weights.values())
    loss = next_token_loss(model, ids.to(device), mask.to(device))
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        if gradient is not None:
            parameter.data.sub_(gradient, alpha=learning_rate)


def _clip_factor(update: Mapping[str, Tensor], l2_clip_norm: float) -> float:
    """What brings the whole update to norm C where it is longer; 0 where it is not finite."""
    norm = float(torch.stack([value.square().sum() for value in update.values()]).sum().sqrt())
    if not norm < float("inf"):
        return 0.0
    return min(1.0, l2_clip_norm / norm) if norm > 0 else 1.0

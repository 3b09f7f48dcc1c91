"""DP-FedAvg: the downstream model is trained on the clients themselves, no text is made.

Paper: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models" (arXiv 1710.06963), Algorithm 1
with the fixed-denominator estimator and flat clipping; in POPri section 4 and appendix C.1 (20 rounds, all clients,
noise multipliers 19.3 and 3.35 at epsilon 1 and 7).
*Deviations*: local steps and adapters as `client_updates` says; momentum on the server if asked for (FedAvgM, Hsu et
al. 2019), which is post-processing; constants are fixed beforehand, where POPri picks learning rate, clip norm and
checkpoint on an evaluation set; noise is calibrated by PLD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from understudy.baselines.client_updates import (
    LOCAL_PAPER,
    ClientTokens,
    LocalConfig,
    Weights,
    clipped_update_sum,
    encode_clients,
    plain_model,
    trained_model,
)
from understudy.errors import InputError
from understudy.frozen import Profile, Profiled, Profiles
from understudy.models.loading import LoadedModel, load_model
from understudy.privacy.accounting import calibrate_noise_multiplier, sgd_event
from understudy.privacy.dpsgd.training import CheckpointSink, DpSgdPlan, Stream
from understudy.privacy.mechanisms import Gateway
from understudy.progress import Progress

NAME = "dp-fedavg"
STREAM = "updates"
_PROFILES: Profiles = {
    "tiny": {},
    "paper": {"local": LOCAL_PAPER, "rounds": 20, "sampling_probability": 1.0},
}


class DpFedAvgConfig(Profiled):
    """Rounds, who takes part, and what the server does with the sum; public values only."""

    profiles: ClassVar[Profiles] = _PROFILES

    profile: Profile = Field(default="tiny", description="Which column of defaults fills the fields not given.")
    local: LocalConfig = Field(default_factory=LocalConfig)
    rounds: int = Field(default=10, ge=1, le=10_000, description="T, at least 1. tiny 10, paper 20.")
    sampling_probability: float = Field(
        default=0.1, gt=0, le=1, description="Chance that a client takes part in a round. tiny 0.1, paper 1."
    )
    server_learning_rate: float = Field(default=1.0, gt=0, le=1000, description="Factor of the mean update; paper 1.")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="Of the server; paper 0.")
    public_seed: int = Field(default=0, ge=0, lt=2**63, description="Adapters' start values, order of samples.")


def plan(config: DpFedAvgConfig, *, n: int, epsilon: float, delta: float, cache: Path | None = None) -> DpSgdPlan:
    """Calibrate the noise of all rounds to one (epsilon, delta), by PLD.

    *Guarantee*: `plan(...).event`, T Poisson-sampled Gaussian queries, is (epsilon, delta)-DP (unit client, add/remove
    one client realised as a null client in its slot) against those who do not see who took part.

    Args:
        config: Rounds, sampling, clip norm.
        n: Client slots, null ones included; public.
        epsilon: Target; infinity gives zero noise.
        delta: Target.
        cache: Folder for calibrations; None for none.

    Raises:
        InputError: A value is out of range.
    """
    noise = calibrate_noise_multiplier(
        lambda z: sgd_event(sampling_probability=config.sampling_probability, noise_multiplier=z, steps=config.rounds),
        epsilon=epsilon,
        delta=delta,
        cache=cache,
    )
    return DpSgdPlan(
        name=NAME,
        n=n,
        sampling_probability=config.sampling_probability,
        steps=config.rounds,
        streams=(Stream(name=STREAM, l2_clip_norm=config.local.l2_clip_norm, noise_multiplier=noise),),
    )


def train(
    clients: Sequence[Sequence[str] | None],
    *,
    config: DpFedAvgConfig,
    plan: DpSgdPlan,
    gateway: Gateway,
    device: str = "cpu",
    checkpoint: CheckpointSink | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Train the downstream model on the clients.

    *Guarantee*: `plan.event` (unit client, add/remove one client realised as a null client in its slot, n public); at
    noise multiplier 0 none, and the model is private.

    Args:
        clients: Samples of each slot, private; None or no sample is the null client.
        config: The charged settings.
        plan: What was charged.
        gateway: Of the charge.
        device: torch device.
        checkpoint: Under the private root; a resumed run ends in the same bytes.
        progress: Called with (rounds done, rounds).

    Returns:
        The model after the last round, adapters merged.

    Raises:
        InputError: The plan is for other settings, or the model does not fit.
    """
    _check(config, plan, clients)
    loaded = load_model(config.local.base)
    tokens = encode_clients(loaded.tokenizer, clients, length=config.local.sample_tokens)
    model, weights = trained_model(loaded, config.local, public_seed=config.public_seed, device=device)
    momentum = {name: torch.zeros_like(parameter) for name, parameter in weights.items()}
    for round in range(_restore(checkpoint, weights, momentum), config.rounds):
        released = release_round(model, weights, tokens, config=config, plan=plan, gateway=gateway, round=round)
        apply_update(weights, momentum, released, config=config, expected_clients=plan.expected_batch)
        done = round + 1
        if checkpoint is not None and (done % checkpoint.every == 0 or done == config.rounds):
            checkpoint.save(done, _tensors(weights, momentum))
        if progress is not None:
            progress(done, config.rounds)
    return replace(loaded, model=plain_model(model))


def release_round(
    model: torch.nn.Module,
    weights: Weights,
    tokens: ClientTokens,
    *,
    config: DpFedAvgConfig,
    plan: DpSgdPlan,
    gateway: Gateway,
    round: int,
) -> dict[str, Tensor]:
    """The noised sum of one round's clipped updates.

    *Guarantee*: one Gaussian query of sensitivity C on a Poisson sample of the clients (unit client, add/remove one
    client realised as a null client in its slot).

    Returns:
        Name -> float32, on the device of the weights.
    """
    mask = gateway.poisson(step=round, n=plan.n, probability=plan.sampling_probability, purpose=plan.name)
    (stream,) = plan.streams
    exact = clipped_update_sum(
        model,
        weights,
        tokens,
        mask.nonzero().flatten().tolist(),
        config=config.local,
        public_seed=config.public_seed,
        round=round,
    )
    return gateway.gaussian_sum(
        exact,
        sensitivity=stream.l2_clip_norm,
        noise_multiplier=stream.noise_multiplier,
        step=round,
        purpose=f"{plan.name}/{stream.name}",
    )


def apply_update(
    weights: Weights,
    momentum: dict[str, Tensor],
    released: dict[str, Tensor],
    *,
    config: DpFedAvgConfig,
    expected_clients: float,
) -> None:
    """Move weights and momentum, in place, by the released sum over the public expected number of clients."""
    with torch.no_grad():
        for name, parameter in weights.items():
            momentum[name].mul_(config.momentum).add_(released[name], alpha=1.0 / expected_clients)
            parameter.add_(momentum[name], alpha=config.server_learning_rate)


def _check(config: DpFedAvgConfig, plan: DpSgdPlan, clients: Sequence[object]) -> None:
    expected = (config.rounds, config.sampling_probability, config.local.l2_clip_norm)
    found = (plan.steps, plan.sampling_probability, plan.streams[0].l2_clip_norm)
    if expected != found or len(plan.streams) != 1:
        raise InputError(
            f"expected a plan of this config (rounds, sampling probability, clip norm) {expected}, found {found}; "
            "plan again"
        )
    if plan.n != len(clients):
        raise InputError(f"plan.n={plan.n}: expected as many slots, found {len(clients)}; null clients keep theirs")


def _tensors(weights: Weights, momentum: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {f"weight/{name}": parameter.detach() for name, parameter in weights.items()}
    return found | {f"momentum/{name}": value for name, value in momentum.items()}


def _restore(checkpoint: CheckpointSink | None, weights: Weights, momentum: dict[str, Tensor]) -> int:
    found = None if checkpoint is None else checkpoint.load()
    if found is None:
        return 0
    done, tensors = found
    with torch.no_grad():
        for name, parameter in weights.items():
            parameter.copy_(tensors[f"weight/{name}"])
            momentum[name].copy_(tensors[f"momentum/{name}"])
    return done

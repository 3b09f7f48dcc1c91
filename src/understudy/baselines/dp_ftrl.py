"""DP-FTRL: the downstream model is trained on the clients without sampling, prefix sums noised in a tree.

Paper: Kairouz et al. 2021, "Practical and Private (Deep) Learning without Sampling or Shuffling" (arXiv 2103.00039),
Algorithm 1 with momentum (DP-FTRLM, section 5) and a fresh tree per epoch (DP-FTRL-TreeRestart, appendix D); in POPri
section 4 and appendix C.2.
The weights after t rounds of an epoch are those at its start plus a learning rate times the sum of all updates of the
epoch so far: only prefix sums are needed, and their noise grows with log t.

*Deviations*: clients' updates as in `client_updates`; a public permutation of the slots gives each client one round of
every epoch, in place of the order in which clients check in; a restart also clears the momentum; constants are fixed
beforehand. With one round per epoch (POPri's full participation) this is DP-FedAvg without sampling.

*Accounting*: Renyi DP is the headline, for PLD lacks the event; see `privacy.tree_accounting`. No amplification by
sampling is claimed: the figure holds against those who see who took part too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from dp_accounting import DpEvent
from pydantic import Field
from torch import Tensor

from understudy.baselines.client_updates import (
    LOCAL_PAPER,
    LocalConfig,
    Weights,
    clipped_update_sum,
    encode_clients,
    plain_model,
    trained_model,
)
from understudy.baselines.tree_aggregation import Block, Estimator, Tree, Values, add_value, prefix_sum
from understudy.errors import InputError
from understudy.frozen import Frozen, Profile, Profiled, Profiles
from understudy.generation.prompts import row_seeds
from understudy.models.loading import LoadedModel, load_model
from understudy.privacy.dpsgd.training import CheckpointSink
from understudy.privacy.mechanisms import Gateway
from understudy.privacy.queries import Queries, Query
from understudy.privacy.tree_accounting import calibrate_tree_noise, tree_event
from understudy.progress import Progress

NAME = "dp-ftrl"
_PROFILES: Profiles = {
    "tiny": {},
    "paper": {"local": LOCAL_PAPER, "epochs": 20, "rounds_per_epoch": 1},
}


class DpFtrlConfig(Profiled):
    """Epochs, rounds, and what the server does with prefix sums; public values only."""

    profiles: ClassVar[Profiles] = _PROFILES

    profile: Profile = Field(default="tiny", description="Which column of defaults fills the fields not given.")
    local: LocalConfig = Field(default_factory=LocalConfig)
    epochs: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Times that every client takes part, each with a tree of its own. tiny 1, paper 20.",
    )
    rounds_per_epoch: int = Field(
        default=10, ge=1, le=100_000, description="Groups into which the slots fall. tiny 10, paper 1."
    )
    estimator: Estimator = Field(
        default="honaker", description="honaker combines a block's noised sum with those of its halves; plain does not."
    )
    server_learning_rate: float = Field(
        default=1.0, gt=0, le=1000, description="Factor of the summed updates over the clients of one round."
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="Of DP-FTRLM; 0: DP-FTRL.")
    public_seed: int = Field(
        default=0, ge=0, lt=2**63, description="Who is in which round, adapters' start values, order of samples."
    )


class DpFtrlPlan(Frozen):
    """The one owner of rounds, clip norm, noise multiplier and event; public values only."""

    name: str = NAME
    n: int = Field(ge=1, description="Client slots, null ones included.")
    epochs: int = Field(ge=1)
    rounds_per_epoch: int = Field(ge=1)
    l2_clip_norm: float = Field(gt=0, allow_inf_nan=False)
    noise_multiplier: float = Field(ge=0, allow_inf_nan=False, description="Noise of every block over C; 0 is no DP.")

    @property
    def queries(self) -> Queries:
        """One series of queries per level of the tree. Their event is the tree's, which is less than all of them."""
        return tuple(
            Query(
                kind="gaussian_sum",
                name=f"{self.name}/level-{level:02d}",
                units=self.n,
                steps=self.epochs * self.rounds_per_epoch,
                sensitivity=self.l2_clip_norm,
                noise_multiplier=self.noise_multiplier,
            )
            for level in range(self.rounds_per_epoch.bit_length())
        )

    @property
    def event(self) -> DpEvent:
        """All trees as one event, to be charged before training, at its RDP epsilon."""
        return tree_event(noise_multiplier=self.noise_multiplier, rounds=self.rounds_per_epoch, epochs=self.epochs)

    @property
    def clients_per_round(self) -> float:
        """What summed updates are divided by: n / rounds_per_epoch."""
        return self.n / self.rounds_per_epoch


@dataclass(eq=False)
class FtrlState:
    """Where a training stands: tree and origin of the epoch under way, momentum. Private, for the tree is."""

    done: int
    tree: Tree
    origin: dict[str, Tensor]
    momentum: dict[str, Tensor]


def plan(config: DpFtrlConfig, *, n: int, epsilon: float, delta: float) -> DpFtrlPlan:
    """Calibrate the noise of every block to one (epsilon, delta), by Renyi DP.

    *Guarantee*: `plan(...).event` is (epsilon, delta)-DP (unit client, add/remove one client realised as a null client
    in its slot), whoever sees who took part.

    Args:
        config: Epochs, rounds, clip norm.
        n: Client slots, null ones included; public.
        epsilon: Target; infinity gives zero noise.
        delta: Target.

    Raises:
        InputError: A value is out of range, or a round would have no client.
    """
    if n < config.rounds_per_epoch:
        raise InputError(
            f"rounds_per_epoch={config.rounds_per_epoch}: expected at most one round per client, found {n} clients"
        )
    noise = calibrate_tree_noise(rounds=config.rounds_per_epoch, epochs=config.epochs, epsilon=epsilon, delta=delta)
    return DpFtrlPlan(
        n=n,
        epochs=config.epochs,
        rounds_per_epoch=config.rounds_per_epoch,
        l2_clip_norm=config.local.l2_clip_norm,
        noise_multiplier=noise,
    )


def slots_of_round(n: int, round: int, *, rounds_per_epoch: int, public_seed: int) -> list[int]:
    """Who takes part in a round: public, and each slot exactly once per epoch.

    Args:
        n: Slots.
        round: Logical round over all epochs.
        rounds_per_epoch: Groups.
        public_seed: Of the permutation, a new one per epoch.
    """
    epoch, group = divmod(round, rounds_per_epoch)
    order = np.random.default_rng(row_seeds(public_seed, [epoch], purpose="dp-ftrl/order")[0]).permutation(n)
    return sorted(int(slot) for slot in np.array_split(order, rounds_per_epoch)[group])


def train(
    clients: Sequence[Sequence[str] | None],
    *,
    config: DpFtrlConfig,
    plan: DpFtrlPlan,
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
        checkpoint: Under the private root, for it holds exact sums; a resumed run ends in the same bytes.
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
    state, rounds = _restored(checkpoint, weights, plan), plan.epochs * plan.rounds_per_epoch
    for round in range(state.done, rounds):
        slots = slots_of_round(plan.n, round, rounds_per_epoch=plan.rounds_per_epoch, public_seed=config.public_seed)
        exact = clipped_update_sum(
            model, weights, tokens, slots, config=config.local, public_seed=config.public_seed, round=round
        )
        state = take_round(state, exact, config=config, plan=plan, gateway=gateway)
        with torch.no_grad():
            for name, parameter in weights.items():
                step = config.server_learning_rate / plan.clients_per_round
                parameter.copy_(state.origin[name] + step * state.momentum[name])
        if checkpoint is not None and (state.done % checkpoint.every == 0 or state.done == rounds):
            checkpoint.save(state.done, _tensors(state, weights))
        if state.done % plan.rounds_per_epoch == 0:
            state = _restart(state.done, weights)
        if progress is not None:
            progress(state.done, rounds)
    return replace(loaded, model=plain_model(model))


def take_round(
    state: FtrlState, exact: Values, *, config: DpFtrlConfig, plan: DpFtrlPlan, gateway: Gateway
) -> FtrlState:
    """Put a round's sum into the tree and add the new prefix sum to the momentum (DP-FTRLM: v = gamma v + s).

    *Guarantee*: one Gaussian query of sensitivity C per completed block, under the round's step and a purpose of the
    block's level (unit client, add/remove one client realised as a null client in its slot).
    """

    def release(level: int, total: Values) -> Values:
        return gateway.gaussian_sum(
            total,
            sensitivity=plan.l2_clip_norm,
            noise_multiplier=plan.noise_multiplier,
            step=state.done,
            purpose=f"{plan.name}/level-{level:02d}",
        )

    tree = add_value(state.tree, exact, release=release, estimator=config.estimator)
    prefix = prefix_sum(tree)
    momentum = {name: value * config.momentum + prefix[name] for name, value in state.momentum.items()}
    return FtrlState(state.done + 1, tree, state.origin, momentum)


def _restart(done: int, weights: Weights) -> FtrlState:
    """An empty tree at the weights as they are."""
    origin = {name: parameter.detach().clone() for name, parameter in weights.items()}
    return FtrlState(done, Tree(), origin, {name: torch.zeros_like(value) for name, value in origin.items()})


def _check(config: DpFtrlConfig, plan: DpFtrlPlan, clients: Sequence[object]) -> None:
    expected = (config.epochs, config.rounds_per_epoch, config.local.l2_clip_norm)
    found = (plan.epochs, plan.rounds_per_epoch, plan.l2_clip_norm)
    if expected != found:
        raise InputError(
            f"expected a plan of this config (epochs, rounds per epoch, clip norm) {expected}, found {found}; "
            "plan again"
        )
    if plan.n != len(clients):
        raise InputError(f"plan.n={plan.n}: expected as many slots, found {len(clients)}; null clients keep theirs")


def _tensors(state: FtrlState, weights: Weights) -> dict[str, Tensor]:
    found = {f"weight/{name}": parameter.detach() for name, parameter in weights.items()}
    for name in weights:
        found[f"origin/{name}"], found[f"momentum/{name}"] = state.origin[name], state.momentum[name]
        for block in state.tree.blocks:
            found[f"exact/{block.level}/{name}"] = block.exact[name]
            found[f"estimate/{block.level}/{name}"] = block.estimate[name]
    return found


def _restored(checkpoint: CheckpointSink | None, weights: Weights, plan: DpFtrlPlan) -> FtrlState:
    """The state of the newest checkpoint; the blocks are the binary writing of the rounds in the epoch."""
    found = None if checkpoint is None else checkpoint.load()
    if found is None:
        return _restart(0, weights)
    done, tensors = found

    def part(kind: str) -> dict[str, Tensor]:
        return {name: tensors[f"{kind}/{name}"].to(parameter.device) for name, parameter in weights.items()}

    with torch.no_grad():
        for name, value in part("weight").items():
            weights[name].copy_(value)
    if done % plan.rounds_per_epoch == 0:
        return _restart(done, weights)
    count = done % plan.rounds_per_epoch
    levels = [level for level in reversed(range(count.bit_length())) if count >> level & 1]
    blocks = tuple(Block(level, part(f"exact/{level}"), part(f"estimate/{level}")) for level in levels)
    return FtrlState(done, Tree(blocks), part("origin"), part("momentum"))

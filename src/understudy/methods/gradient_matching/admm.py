"""ADMM over embeddings (GRADMM, Algorithm 1), for any objective f and any projection onto the set E of texts.

    X0 = argmin f(X), from random public tokens;  Z0 = X0;  Lambda0 = 0
    X <- argmin f(X) + rho/2 |X - Z + Lambda/rho|^2      (eq. 8)
    Z <- projection of X + Lambda/rho onto E             (eqs. 9 to 13)
    Lambda <- Lambda + rho (X - Z)                       (eq. 10)

The paper's eq. 7 writes |X - Z - Lambda/rho|^2, which does not follow from its own eq. 6 and would push X away from Z:
completing the square of <Lambda, X - Z> + rho/2 |X - Z|^2 gives the plus above. Its eqs. 9 to 13 have the right sign.

Beyond the paper: the texts that came nearest to the target are kept beside the state (ADR 0009). The paper's final
text, the projection of X_T, forgets the dual variable and is often worse than a Z on the way.

What the paper leaves open: a minimisation is `inner_steps` steps of Adam, the warm start too; Adam's moments begin
afresh with each, so that a round is a function of (X, Z, Lambda) alone; the gradient of the whole bracket is clipped
to a norm.

Every example is matched on its own: the loss is a sum over examples, clipping is per example and Adam per coordinate.
Batch mates change nothing but the last bits of float arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from understudy.methods.gradient_matching.config import MatchingConfig
from understudy.methods.gradient_matching.projection import Projected
from understudy.progress import UNKEPT, Course

Objective = Callable[[Tensor], Tensor]  # (batch, length, d) -> (batch,), row b of row b only
Project = Callable[[Tensor], Projected]  # (batch, length, d) -> tokens and their embeddings


@dataclass(frozen=True)
class AdmmState:
    """All that the next round depends on, and what was seen on the way.

    Attributes:
        x: `(batch, length, d)` embeddings that match the target.
        z: `(batch, length, d)` embeddings of tokens; x itself before the first round.
        dual: `(batch, length, d)` Lambda.
        round: Completed rounds.
        relaxed: `(batch, round + 1)` f(X) where the last gradient of each minimisation was taken, warm start first.
        losses: `(batch, round)` f(Z) after each round.
        best_tokens: `(batch, length)` tokens of the Z of least f so far; the first of equals, 0 before the first round.
        best_loss: `(batch,)` its f; infinite before the first round.
        residuals: `(batch, round)` |X - Z| after each round, over all positions of an example.
    """

    x: Tensor
    z: Tensor
    dual: Tensor
    round: int
    relaxed: Tensor
    losses: Tensor
    residuals: Tensor
    best_tokens: Tensor
    best_loss: Tensor


def admm(
    objective: Objective, project: Project, start: Tensor, *, config: MatchingConfig, course: Course = UNKEPT
) -> AdmmState:
    """Run Algorithm 1, steps 1 and 2, on a batch of examples; a resumed run ends in the same bytes.

    Args:
        objective: f, differentiable.
        project: Onto the set of texts.
        start: `(batch, length, d)` public initial embeddings.
        config: Rounds, steps, learning rate, clip norm and penalty.
        course: Of this batch; its state is also kept after the warm start (step 0). A step is a round.

    Returns:
        The state after the last round.
    """
    found = course.resumed()
    if found is None:
        state = warm_start(objective, start, config=config)
        course.begun(partial(state_tensors, state))
    else:
        state = restore_state(*found, device=start.device)
    while state.round < config.rounds:
        state = next_round(state, objective, project, config=config)
        course.stepped(state.round, config.rounds, partial(state_tensors, state))
    return state


def warm_start(objective: Objective, start: Tensor, *, config: MatchingConfig) -> AdmmState:
    """X0 = argmin f without constraint, Z0 = X0, Lambda0 = 0 (Algorithm 1, step 1)."""
    x, losses = minimise(objective, start, config=config)
    nothing = losses.new_empty(len(x), 0)
    return AdmmState(
        x=x,
        z=x,
        dual=torch.zeros_like(x),
        round=0,
        relaxed=losses[:, None],
        losses=nothing,
        residuals=nothing,
        best_tokens=torch.zeros(x.shape[:2], dtype=torch.long, device=x.device),
        best_loss=torch.full_like(losses, torch.inf),
    )


def next_round(state: AdmmState, objective: Objective, project: Project, *, config: MatchingConfig) -> AdmmState:
    """One pass of the loop (Algorithm 1, step 2), in Gauss-Seidel order."""
    rho = config.penalty
    x, relaxed = minimise(objective, state.x, config=config, centre=state.z - state.dual / rho)
    projected = project(x + state.dual / rho)
    z = projected.embeddings.to(x.dtype)
    loss = objective(z).detach()
    better = loss < state.best_loss
    return AdmmState(
        x=x,
        z=z,
        dual=state.dual + rho * (x - z),
        round=state.round + 1,
        relaxed=torch.cat([state.relaxed, relaxed[:, None]], dim=1),
        losses=torch.cat([state.losses, loss[:, None]], dim=1),
        residuals=torch.cat([state.residuals, torch.linalg.vector_norm((x - z).flatten(1), dim=1)[:, None]], dim=1),
        best_tokens=torch.where(better[:, None], projected.token_ids, state.best_tokens),
        best_loss=torch.where(better, loss, state.best_loss),
    )


def minimise(
    objective: Objective, start: Tensor, *, config: MatchingConfig, centre: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Lower f(X) + rho/2 |X - centre|^2 by Adam with fresh moments, its gradient clipped per example.

    Args:
        objective: f.
        start: `(batch, length, d)` first X.
        config: Steps, learning rate, clip norm and penalty rho.
        centre: Z - Lambda/rho, or None for f alone.

    Returns:
        X after the last step, and `(batch,)` f at the X before it.
    """
    x = start.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=config.learning_rate)
    losses = start.new_zeros(len(start))
    for _ in range(config.inner_steps):
        losses = objective(x)
        (gradient,) = torch.autograd.grad(losses.sum(), x)
        if centre is not None:
            gradient = gradient + config.penalty * (x.detach() - centre)
        x.grad = clip_per_example(gradient, config.max_gradient_norm)
        optimizer.step()
    return x.detach(), losses.detach()


def clip_per_example(gradient: Tensor, max_norm: float) -> Tensor:
    """Scale each example's gradient `(batch, length, d)` by min(1, max_norm / its norm)."""
    norms: Tensor = torch.linalg.vector_norm(gradient.flatten(1), dim=1).clamp(min=max_norm)
    return gradient * (max_norm / norms)[:, None, None]


def state_tensors(state: AdmmState) -> dict[str, Tensor]:
    """The tensors of a checkpoint; the round is its step."""
    return {field.name: getattr(state, field.name) for field in fields(state) if field.name != "round"}


def restore_state(round_: int, tensors: Mapping[str, Tensor], *, device: torch.device) -> AdmmState:
    """The state that `state_tensors` took apart."""
    return AdmmState(round=round_, **{name: values.to(device) for name, values in tensors.items()})

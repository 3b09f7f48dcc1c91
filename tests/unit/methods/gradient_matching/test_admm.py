"""ADMM on problems whose solution is known, per example, and resumed at any round."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.methods.gradient_matching.admm import (
    admm,
    clip_per_example,
    minimise,
    next_round,
    restore_state,
    state_tensors,
    warm_start,
)
from understudy.methods.gradient_matching.config import MatchingConfig
from understudy.methods.gradient_matching.projection import Projected
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.progress import Course
from understudy.tensor_files import save_tensors


def settings_of(**changes) -> MatchingConfig:
    values = {"rounds": 60, "inner_steps": 20, "learning_rate": 0.01, "max_gradient_norm": 1e6, "penalty": 1.0}
    return MatchingConfig.model_validate({**values, **changes})


def weighted_quadratic(centre: torch.Tensor, weight: torch.Tensor):
    """f(x) = 1/2 sum w (x - c)^2 of each example."""
    return lambda x: 0.5 * (weight * (x - centre) ** 2).flatten(1).sum(1)


def onto_box(x: torch.Tensor) -> Projected:
    return Projected(torch.zeros(x.shape[:2], dtype=torch.int64), x.clamp(-0.5, 0.5))


def onto_plane(x: torch.Tensor) -> Projected:
    """The nearest point whose entries sum to 1, in each row."""
    moved = x - (x.sum(-1, keepdim=True) - 1) / x.shape[-1]
    return Projected(torch.zeros(x.shape[:2], dtype=torch.int64), moved)


def onto_points(points: torch.Tensor):
    def project(x: torch.Tensor) -> Projected:
        chosen = (x[..., None, :] - points).square().sum(-1).argmin(-1)
        return Projected(chosen, points[chosen])

    return project


def toy(seed: int, batch: int = 3, length: int = 2, width: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(batch, length, width, generator=generator)
    weight = 0.5 + 1.5 * torch.rand(batch, length, width, generator=generator)
    return centre, weight


def solved(project, penalty):
    """Centre and weight of 128 problems, and where forty rounds of ADMM end."""
    centre, weight = toy(0, batch=128)
    settings = settings_of(rounds=40, penalty=penalty)
    return centre, weight, admm(weighted_quadratic(centre, weight), project, torch.zeros_like(centre), config=settings)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 3.0])
def test_iterates_reach_the_known_solution_in_a_box(penalty):
    centre, weight, state = solved(onto_box, penalty)
    solution = centre.clamp(-0.5, 0.5)
    assert torch.allclose(state.z, solution, atol=0.02)
    assert torch.allclose(state.x, solution, atol=0.02)
    # Karush-Kuhn-Tucker: the gradient of f is balanced by Lambda, with this sign.
    assert torch.allclose(state.dual, -weight * (solution - centre), atol=0.02)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 3.0])
def test_iterates_reach_the_known_solution_on_a_plane(penalty):
    centre, weight, state = solved(onto_plane, penalty)
    multiplier = (centre.sum(-1, keepdim=True) - 1) / (1 / weight).sum(-1, keepdim=True)
    solution = centre - multiplier / weight
    assert torch.allclose(state.z.sum(-1), torch.ones(128, 2), atol=1e-5)
    assert torch.allclose(state.x, solution, atol=0.02)
    assert torch.allclose(state.z, solution, atol=0.02)
    assert torch.allclose(state.dual, multiplier.expand_as(centre), atol=0.02)
    # Not where the unconstrained solution is projected to: the rounds were needed.
    assert float((solution - onto_plane(centre).embeddings).abs().max()) > 0.5


@pytest.mark.parametrize("project", [onto_box, onto_plane])
def test_the_primal_residual_falls(project):
    centre, weight = toy(1)
    state = admm(weighted_quadratic(3 * centre, weight), project, centre, config=settings_of(learning_rate=0.05))
    assert state.residuals.shape == (3, 60)
    blocks = state.residuals.view(3, 6, 10).amax(-1)
    assert bool((blocks[:, 0] > 0.5).all())
    assert bool((blocks[:, -1] < 0.05 * blocks[:, 0]).all())
    assert all(bool((late < early).all()) for early, late in pairwise(blocks[:, :3].unbind(1)))


def test_the_nearest_text_of_all_rounds_is_remembered():
    """With a large step and a small penalty Z wanders: the best is not the last for every example."""
    centre, weight = toy(4, batch=32)
    points = torch.randn(12, 4, generator=torch.Generator().manual_seed(5))
    f, project = weighted_quadratic(centre, weight), onto_points(points)
    config = settings_of(rounds=12, inner_steps=3, learning_rate=0.4, penalty=0.05)
    state = warm_start(f, torch.zeros_like(centre), config=config)
    assert bool(state.best_loss.isinf().all())
    visited = []
    for _ in range(config.rounds):
        state = next_round(state, f, project, config=config)
        visited.append(state.z)
    assert torch.equal(state.best_loss, state.losses.amin(1))
    best = torch.stack(visited)[state.losses.argmin(1), torch.arange(32)]
    assert torch.equal(points[state.best_tokens], best)
    assert int((state.losses.argmin(1) < config.rounds - 1).sum()) > 3


def test_residuals_and_losses_are_those_of_the_iterates():
    centre, weight = toy(2)
    f, config = weighted_quadratic(centre, weight), settings_of(rounds=4, inner_steps=3)
    states = [warm_start(f, torch.zeros_like(centre), config=config)]
    for _ in range(4):
        states.append(next_round(states[-1], f, onto_box, config=config))
    assert torch.equal(states[0].z, states[0].x)
    assert not bool(states[0].dual.any())
    final = admm(f, onto_box, torch.zeros_like(centre), config=config)
    for t, (before, after) in enumerate(pairwise(states)):
        gap = after.x - after.z
        assert torch.allclose(final.residuals[:, t], gap.square().sum((1, 2)).sqrt())
        assert torch.allclose(final.losses[:, t], f(after.z))
        assert torch.allclose(after.dual, before.dual + gap)
        assert torch.equal(after.z, (after.x + before.dual).clamp(-0.5, 0.5))
    assert torch.equal(final.x, states[-1].x)


def test_a_finite_set_is_reached_and_is_the_best_point_where_all_directions_count_alike():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(6, 3, generator=generator)
    centre = torch.randn(200, 2, 3, generator=generator)
    gaps = (centre[..., None, :] - points).square().sum(-1).sort(-1).values
    clear = (gaps[..., 1] - gaps[..., 0] > 0.1).all(-1)  # examples whose best point is not a near tie
    config = settings_of(penalty=1.0, rounds=10, inner_steps=60, learning_rate=0.05)
    state = admm(
        weighted_quadratic(centre, torch.ones(())), onto_points(points), torch.zeros_like(centre), config=config
    )
    best = points[(centre[..., None, :] - points).square().sum(-1).argmin(-1)]
    assert int(clear.sum()) > 100
    assert torch.equal(state.z[clear], best[clear])


def test_the_warm_start_lowers_f_and_the_penalty_pulls_towards_the_centre():
    centre, weight = toy(3)
    f, config = weighted_quadratic(centre, weight), settings_of(inner_steps=400, learning_rate=0.05)
    alone, losses = minimise(f, torch.zeros_like(centre), config=config)
    assert torch.allclose(alone, centre, atol=1e-2)
    assert bool((losses < 1e-2).all())
    pulled, _ = minimise(f, torch.zeros_like(centre), config=config, centre=-centre)
    assert torch.allclose(pulled, (weight - 1) / (weight + 1) * centre, atol=1e-2)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), max_norm=st.floats(0.01, 10))
def test_each_example_is_clipped_to_the_norm_and_keeps_its_direction(seed, max_norm):
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(4, 2, 3, generator=generator) * torch.tensor([1e-3, 1.0, 10.0, 1e3])[:, None, None]
    clipped = clip_per_example(gradient, max_norm)
    norms, before = clipped.flatten(1).norm(dim=1), gradient.flatten(1).norm(dim=1)
    assert torch.allclose(norms, before.clamp(max=max_norm), rtol=1e-5)
    cosines = torch.cosine_similarity(clipped.flatten(1), gradient.flatten(1))
    assert torch.allclose(cosines, torch.ones(4), atol=1e-5)
    assert torch.equal(clip_per_example(torch.zeros(1, 2, 3), max_norm), torch.zeros(1, 2, 3))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.0, 1.0, 1e6, float("nan")]))
def test_an_example_does_not_depend_on_its_batch_mates(seed, scale):
    centre, weight = toy(seed, batch=4)
    config = settings_of(rounds=5, inner_steps=6, max_gradient_norm=0.3)
    centre[1:] *= scale  # far steeper, flat, or broken mates

    def solve(rows: slice):
        f = weighted_quadratic(centre[rows], weight[rows])
        return admm(f, onto_box, torch.zeros_like(centre[rows]), config=config)

    together, alone = solve(slice(None)), solve(slice(1))
    for name, values in state_tensors(alone).items():
        assert torch.allclose(state_tensors(together)[name][:1], values, atol=1e-6), name


class Interrupted(RuntimeError):
    pass


class DyingCheckpoint(TrainingCheckpoint):
    """Fails right after it has kept the state of one round."""

    def __init__(self, folder, *, last: int, every: int = 1) -> None:
        super().__init__(folder, every=every)
        self.last = last

    def save(self, step, tensors):
        super().save(step, tensors)
        if step == self.last:
            raise Interrupted


@pytest.mark.parametrize(("last", "every"), [*((last, 1) for last in range(6)), (0, 2), (2, 2), (4, 2), (5, 2)])
def test_a_run_resumed_from_any_round_ends_in_the_same_bytes(tmp_path, last, every):
    centre, weight = toy(4)
    f, config = weighted_quadratic(centre, weight), settings_of(rounds=5, inner_steps=4)
    start = torch.zeros_like(centre)
    save_tensors(tmp_path / "whole", state_tensors(admm(f, onto_plane, start, config=config)))
    folder, rounds = tmp_path / "cut", []
    with pytest.raises(Interrupted):
        admm(f, onto_plane, start, config=config, course=Course(DyingCheckpoint(folder, last=last, every=every)))
    resumed = admm(
        f,
        onto_plane,
        torch.full_like(start, torch.nan),  # where it started no longer matters
        config=config,
        course=Course(TrainingCheckpoint(folder, every=every), lambda done, total: rounds.append((done, total))),
    )
    save_tensors(tmp_path / "resumed", state_tensors(resumed))
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert rounds == [(t, 5) for t in range(last + 1, 6)]
    assert [path.name for path in folder.iterdir()] == ["step-000000005.safetensors"]


def test_a_state_survives_its_file(tmp_path):
    centre, weight = toy(5)
    f, config = weighted_quadratic(centre, weight), settings_of(rounds=3, inner_steps=2)
    state = admm(f, onto_box, centre, config=config, course=Course(TrainingCheckpoint(tmp_path)))
    found = TrainingCheckpoint(tmp_path).load()
    assert found is not None
    back = restore_state(*found, device=centre.device)
    assert back.round == 3
    assert all(torch.equal(state_tensors(back)[name], values) for name, values in state_tensors(state).items())

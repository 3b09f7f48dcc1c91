"""How much of an expert's way the rows can account for, against a simulation, and what the user is told of it."""

import math

import numpy as np
import pytest

from understudy.methods.method import Promise
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.experts import expert_student
from understudy.methods.trajectory_matching.method import METHOD, by_epsilon
from understudy.methods.trajectory_matching.queries import part_of_rows, plans_of
from understudy.models.loading import load_model
from understudy.models.shape import model_shape

SETTINGS = {"experts": {"count": 1, "epochs": 2, "batch_size": 10, "l2_clip_norm": 0.5}, "distil": {"max_start": 1}}


def asked(noise, n):
    config = by_epsilon(TrajectoryMatchingConfig(**SETTINGS), True)
    queries = [query for plan in plans_of(config, n=n, noise_multiplier=noise) for query in plan.queries]
    return config, tuple(queries)


@pytest.mark.parametrize(("noise", "n", "dimension"), [(0.5, 100, 400), (1.0, 60, 4000), (0.0, 50, 10)])
def test_the_part_is_that_of_rows_which_all_pull_one_way(noise, n, dimension):
    config, queries = asked(noise, n)
    generator, clip, steps = np.random.default_rng(0), 0.5, n // 10
    parts = []
    for _ in range(200):
        drawn = (generator.random((steps, n)) < 10 / n).sum()
        way = generator.normal(scale=clip * noise, size=(steps, dimension)).sum(0)
        pull = np.zeros(dimension)
        pull[0] = clip * drawn
        parts.append([pull @ pull, way @ way])
    pull, noised = np.mean(parts, axis=0)
    # More or fewer than n rows are drawn, which adds the variance of their number to its square.
    expected = part_of_rows(config, queries, dimension=dimension)
    assert expected == pytest.approx(pull / (pull + noised), rel=0.05)


def test_the_dimension_is_that_of_the_adapters():
    config = TrajectoryMatchingConfig(**SETTINGS)
    student = expert_student(load_model("tiny-llama").model, config, 0)
    numbers = sum(value.numel() for value in student.start.values())
    assert numbers == model_shape("tiny-llama").adapter_parameters(config.experts.lora_rank)


@pytest.mark.parametrize(("noise", "warned"), [(2.0, True), (0.01, False)])
def test_experts_that_are_mostly_noise_are_announced_before_the_charge(noise, warned):
    config, queries = asked(noise, 500)
    found = METHOD.preparation.describe(config, Promise(queries, 500, 8.0, 1e-4))
    part = found.dry_run["part_of_rows_in_an_expert"]
    assert (part < 0.2) == warned
    assert [f"at most about {part:.1%}" in warning for warning in found.warnings] == ([True] if warned else [])


def test_without_noise_the_rows_account_for_everything():
    config, queries = asked(0.0, 500)
    found = METHOD.preparation.describe(config, Promise(queries, 500, math.inf, 1e-4))
    assert found.dry_run["part_of_rows_in_an_expert"] == 1
    assert found.warnings == ()


def test_what_the_experts_do_not_meet_charges_nothing():
    config, _ = asked(1.0, 60)
    fixed = METHOD.charge.settings(config)
    for change in ({"about": "letters to a bank"}, {"samples": 7}):
        assert METHOD.charge.settings(config.model_copy(update=change)) == fixed
    longer = config.experts.model_copy(update={"epochs": 5})
    for change in ({"public_seed": 1}, {"max_length": 40}, {"template": "plain"}, {"experts": longer}):
        assert METHOD.charge.settings(config.model_copy(update=change)) != fixed, change


def test_a_selector_stands_in_the_statement_and_charges_nothing():
    """Its gradients choose rows that leave."""
    config, queries = asked(1.0, 60)
    selection = {"strategy": "less", "model": "tiny-gpt2", "model_digest": "d" * 64}
    other = config.model_copy(update={"selection": config.selection.model_validate(selection)})
    (named,) = METHOD.preparation.describe(other, Promise(queries, 60, 8.0, 1e-4)).pretrained_models
    assert (named.name, named.digest) == ("tiny-gpt2", "d" * 64)
    assert "selector" in named.role
    assert METHOD.preparation.describe(config, Promise(queries, 60, 8.0, 1e-4)).pretrained_models == ()
    assert METHOD.charge.settings(other) == METHOD.charge.settings(config)

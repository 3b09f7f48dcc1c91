"""Distillation: its loss falls, resumes, and stays near tokens; emission reads back."""

import copy
from types import SimpleNamespace

import pytest
import torch
from random_students import random_rows, random_student

from understudy.errors import RowError
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.distil import (
    Distilled,
    _Draw,
    _regulariser,
    distil,
    mean_prompts,
    nearest_tokens,
)
from understudy.methods.trajectory_matching.emission import decoded, load_distilled, save_distilled, with_pseudo_text
from understudy.methods.trajectory_matching.student import BatchLoss
from understudy.methods.trajectory_matching.training import PacedCheckpoint, Schedule, fine_tune
from understudy.methods.trajectory_matching.unroll import Segment, match_trajectory
from understudy.models.loading import load_model
from understudy.progress import Course


@pytest.fixture(scope="module")
def setting():
    """A student, ten rows that carry pseudo tokens, and one expert that fits thirty rows in two epochs."""
    student, whole = random_student(), random_rows(30)
    states = [student.start]
    for epochs in (1, 2):
        states.append(fine_tune(student, whole, Schedule(epochs, 5, 5e-3, 0)).weights)
    return student, whole[torch.arange(10)], states


def config(**distilling):
    sizes = {"steps": 18, "inner_steps": 2, "max_start": 1, "batch_size": 4, "learning_rate": 0.05, "beta": 0.0}
    return TrajectoryMatchingConfig(distil={**sizes, "step_size": 1.0, **distilling})


@pytest.fixture(scope="module")
def learnt(setting):
    """What the settings above give."""
    student, rows, states = setting
    return distil(student, rows, [states], config())


@pytest.fixture(scope="module")
def of_seed_zero(setting):
    student, rows, states = setting
    return distil(student, rows, [states], config(steps=2).model_copy(update={"public_seed": 0}))


def test_the_loss_falls_below_one_and_below_that_of_frozen_tokens(setting, learnt):
    student, rows, states = setting
    frozen = distil(student, rows, [states], config(trainable="step_size"))
    assert torch.equal(frozen.prompts, mean_prompts(student.vocabulary, 10, 2))
    late = slice(-8, None)
    assert float(learnt.losses[late].mean()) < 0.98
    assert float(learnt.losses[late].mean()) < float(frozen.losses[late].mean())


def test_a_student_that_overshoots_finds_back_to_shorter_steps(setting):
    student, rows, states = setting
    found = distil(
        student,
        rows,
        [states],
        config(steps=28, step_size=30.0, step_size_learning_rate=0.3, trainable="step_size"),
    )
    assert float(found.losses[0]) > 2
    assert float(found.losses[-5:].mean()) < 1.1


def test_a_loss_that_is_no_number_is_told_without_its_step(setting):
    """Experts without noise are private, and Prefect keeps the text of this error."""
    student, rows, states = setting
    far = {name: torch.full_like(value, torch.inf) for name, value in states[0].items()}
    with pytest.raises(RowError, match=r"lower distil\.step_size") as error:
        distil(student, rows, [[states[0], far, far]], config())
    assert not any(letter.isdigit() for letter in str(error.value))


def test_beta_keeps_pseudo_tokens_near_tokens(setting, learnt):
    """Of as many steps with and without; the further steps of those without change nothing before them."""
    student, rows, states = setting
    near = distil(student, rows, [states], config(beta=100.0, steps=12))
    assert float(near.distances[-1]) < 0.5 * float(learnt.distances[11])


def test_the_pull_is_the_gradient_of_the_mean_distance_over_rows_and_tokens():
    """Worked out by hand: the nearest token lies 5 and 2, then 1 and 13 away, and the mean is over all four."""
    table = torch.tensor([[0.0, 0.0], [100.0, 0.0]])
    prompts = torch.tensor([[[3.0, 4.0], [0.0, -2.0]], [[101.0, 0.0], [-5.0, 12.0]]])
    distance, pull = _regulariser(prompts, table)
    assert distance == (5 + 2 + 1 + 13) / 4
    directions = torch.tensor([[[3 / 5, 4 / 5], [0.0, -1.0]], [[1.0, 0.0], [-5 / 13, 12 / 13]]])
    torch.testing.assert_close(pull, directions / 4)


def first_moments(setting, **distilling):
    """Slope of the pseudo tokens and of the step size in one step from the start, and its matching loss.

    Adam's first moment is a tenth of the first slope, on whose length its step does not depend.
    """
    student, rows, states = setting
    kept = {}
    sink = SimpleNamespace(
        due=lambda _: True, load=lambda: None, save=lambda _, tensors: kept.update(copy.deepcopy(dict(tensors)))
    )
    distil(student, rows, [states], config(steps=1, **distilling), Course(sink))
    return 10 * kept["mean"], 10 * float(kept["size_moments"][0]), float(kept["losses"][0])


@pytest.mark.parametrize(("step_size", "above"), [(0.1, False), (1.0, True), (4.0, True)])
def test_above_one_the_logarithm_of_the_matching_loss_is_descended(setting, step_size, above):
    """Beside the gradients of the loss itself by `match_trajectory`: those of 1 + log(loss) are these over the loss."""
    student, rows, states = setting
    sizes = config(steps=1, step_size=step_size)
    draw = _Draw.of(0, len(rows), 1, sizes)
    start = mean_prompts(student.vocabulary, len(rows), 2)
    found = match_trajectory(
        BatchLoss(student, [rows[batch] for batch in draw.batches]),
        Segment(states[draw.epoch], states[draw.epoch + 1]),
        [start[batch] for batch in draw.batches],
        step_size=step_size,
    )
    plain = torch.zeros_like(start)
    for batch, part in zip(draw.batches, found.by_prompts, strict=True):
        plain.index_add_(0, batch, part)
    slope, by_log_size, loss = first_moments(setting, step_size=step_size)
    assert loss == pytest.approx(found.loss)
    assert (loss > 1) is above, "on both sides of 1"
    over = max(loss, 1.0)
    torch.testing.assert_close(slope, plain / over, rtol=1e-4, atol=1e-9)
    assert by_log_size == pytest.approx(max(-1.0, min(1.0, step_size * found.by_step_size / over)), rel=1e-4)


def test_adam_counts_the_steps_of_each_row_alone(setting):
    """A first step of Adam is as long as its learning rate, whenever a row is first used."""
    student, rows, states = setting
    sizes = {"inner_steps": 1, "batch_size": 4, "step_size_learning_rate": 1e-6}
    states_after = [distil(student, rows, [states], config(steps=steps, **sizes)).prompts for steps in (1, 2, 3, 4)]
    before, firsts = mean_prompts(student.vocabulary, 10, 2), 0
    used = torch.zeros(10, dtype=torch.bool)
    for after in states_after:
        moved = (after - before).abs()
        now = moved.flatten(1).amax(1) > 0
        for row in (now & ~used).nonzero()[:, 0].tolist():
            torch.testing.assert_close(moved[row].median(), torch.tensor(0.05), rtol=1e-2, atol=0)
            firsts += 1
        used, before = used | now, after
    assert firsts > 4  # some rows begin later than others


def test_a_killed_distillation_ends_in_the_same_bytes(setting, tmp_path):
    """Killed at its fourth step, of which the state was kept; the second attempt takes the fifth and the sixth."""
    student, rows, states = setting
    expected = distil(student, rows, [states], config(steps=6))
    taken = []

    def kill(step, _total):
        taken.append(step)
        if taken == [1, 2, 3, 4]:
            raise KeyboardInterrupt

    def course():
        return Course(PacedCheckpoint(tmp_path, per_epoch=6, seconds=0.0), kill)

    with pytest.raises(KeyboardInterrupt):
        distil(student, rows, [states], config(steps=6), course())
    found = distil(student, rows, [states], config(steps=6), course())
    assert taken == [1, 2, 3, 4, 5, 6]
    assert torch.equal(found.prompts, expected.prompts)
    assert torch.equal(found.losses, expected.losses)
    assert found.step_size == expected.step_size


@pytest.mark.parametrize("seed", [1, 2**32, 2**63 - 1])
def test_every_public_seed_distils_in_an_order_of_its_own(setting, of_seed_zero, seed):
    student, rows, states = setting
    found = distil(student, rows, [states], config(steps=2).model_copy(update={"public_seed": seed}))
    assert not torch.equal(found.prompts, of_seed_zero.prompts)


def test_the_nearest_token_of_an_embedding_is_its_token():
    table = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    tokens, distances = nearest_tokens(table[[3, 7]][None], table)
    assert tokens.tolist() == [[3, 7]]
    assert float(distances.max()) == 0
    forbidden = torch.ones(20, dtype=torch.bool)
    forbidden[3] = False
    assert int(nearest_tokens(table[[3]][None], table, allowed=forbidden)[0]) != 3


@pytest.mark.parametrize("rows", [1, 128, 129, 300])
def test_nearest_tokens_are_found_in_parts_as_in_one_piece(rows):
    generator = torch.Generator().manual_seed(0)
    table, prompts = torch.randn(50, 4, generator=generator), torch.randn(rows, 2, 4, generator=generator)
    allowed = torch.arange(50) % 3 > 0
    for chosen in (None, allowed):
        whole = torch.cdist(prompts.flatten(0, 1), table, compute_mode="donot_use_mm_for_euclid_dist")
        least, tokens = (whole if chosen is None else whole.masked_fill(~chosen, torch.inf)).min(1)
        found_tokens, found_distances = nearest_tokens(prompts, table, allowed=chosen)
        assert torch.equal(found_tokens, tokens.view(rows, 2))
        assert torch.equal(found_distances, least.view(rows, 2))


def test_decoded_pseudo_tokens_are_text_and_results_read_back(tmp_path):
    base = load_model("tiny-llama")
    table = base.model.get_input_embeddings().weight.detach()
    word = base.tokenizer.encode(" film", add_special_tokens=False)[0]
    prompts = torch.stack([table[[word, base.tokenizer.pad_token_id]], table[[word, word]]])
    tokens, texts = decoded(prompts, table, base.tokenizer)
    assert texts[1] == "film film"
    assert base.tokenizer.pad_token_id not in tokens
    distilled = Distilled(prompts, 0.25, torch.ones(3), torch.zeros(3))
    save_distilled(tmp_path, distilled, tokens)
    read, read_tokens = load_distilled(tmp_path)
    assert torch.equal(read.prompts, prompts)
    assert (read.step_size, read_tokens.tolist()) == (0.25, tokens.tolist())


def test_the_text_of_pseudo_tokens_stands_before_the_instruction_as_the_embeddings_do():
    assert with_pseudo_text(["Name a bird.", "Why?"], ["film wool", "sun"]) == ["film wool Name a bird.", "sun Why?"]

"""Experts under a charge: every trained tensor moves, snapshots come of noised gradients, a killed one resumes."""

from dataclasses import replace

import pytest
import torch
from random_students import random_rows, random_student

from understudy.generation.instructions import EncodedPairs
from understudy.methods.trajectory_matching import experts
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.experts import train_expert, train_private_expert
from understudy.methods.trajectory_matching.queries import plan_of_expert, plans_of
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms

N = 8
CONFIG = TrajectoryMatchingConfig(
    experts={"count": 1, "epochs": 2, "batch_size": 4, "micro_batch": 4, "private": True, "learning_rate": 0.01},
    distil={"max_start": 1},
    carrier="public",
)


def encoded(*, null=()):
    rows = random_rows(N)
    valid = torch.tensor([row not in null for row in range(N)])
    return EncodedPairs(rows.input_ids, rows.attention_mask, rows.loss_mask, valid, 0, 0)


def trained(folder, *, noise=0.0, rows=None, progress=None):
    plan = plans_of(CONFIG, n=N, noise_multiplier=noise)[0]
    assert plan_of_expert(CONFIG, plan.queries, 0) == plan
    mechanisms = Mechanisms.live(
        KeyMaterial(b"k" * 32, "charge", b"s" * 32, plan.queries), release_log=folder / "released"
    )
    return train_private_expert(
        random_student(),
        rows or encoded(),
        CONFIG,
        plan=plan,
        mechanisms=mechanisms,
        folder=folder / "checkpoints",
        progress=progress,
    )


def test_without_noise_every_adapter_moves_and_an_epoch_leaves_a_snapshot(tmp_path):
    start, first, last = trained(tmp_path)
    for name in start:
        assert not torch.equal(first[name], start[name]), name
        assert not torch.equal(last[name], first[name]), name


def test_a_killed_expert_ends_in_the_same_bytes(tmp_path):
    expected = trained(tmp_path / "whole", noise=1.0)

    def kill(step, _total):
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "killed", noise=1.0, progress=kill)
    found = trained(tmp_path / "killed", noise=1.0)
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_how_many_rows_are_null_moves_no_step_and_no_snapshot(tmp_path, monkeypatch):
    seen, exact = {}, experts.PacedCheckpoint
    for name, null in (("full", ()), ("sparse", (0, 1, 2, 4, 6))):
        told = seen[name] = []

        def paced(folder, told=told, **given):
            told.append(given)
            return exact(folder, **given)

        monkeypatch.setattr(experts, "PacedCheckpoint", paced)
        trained(tmp_path / name, rows=encoded(null=null), progress=lambda *step, told=told: told.append(step))
    assert seen["full"] == seen["sparse"] == [{"per_epoch": 2}, (1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("null", [(), (2,), (0, 1, 2, 4, 6)])
def test_an_expert_without_a_charge_tells_of_its_epochs_for_its_steps_count_private_rows(null, tmp_path):
    plain = CONFIG.model_copy(update={"experts": CONFIG.experts.model_copy(update={"private": False})})
    told = []
    train_expert(
        random_student(), encoded(null=null), plain, 0, folder=tmp_path, progress=lambda *step: told.append(step)
    )
    assert told == [(1, 2), (2, 2)]


def test_what_a_null_row_holds_changes_nothing(tmp_path):
    rows = encoded(null=(2,))
    other = rows.input_ids.clone()
    other[2] = 7
    one, another = (
        trained(tmp_path / name, rows=which)
        for name, which in (("one", rows), ("another", replace(rows, input_ids=other)))
    )
    assert all(torch.equal(one[-1][name], another[-1][name]) for name in one[-1])

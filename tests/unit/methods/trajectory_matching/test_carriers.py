"""Rows that carry pseudo tokens, written by the public model."""

import pytest

from understudy.generation.instructions import Pair
from understudy.methods.trajectory_matching.carriers import answered
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.models.loading import load_base

PAIRS = [Pair(f"Name a bird that begins with {letter}.", "A wren.") for letter in "abcd"]


@pytest.mark.parametrize("seed", [1, 2**32, 2**63 - 1])
def test_every_public_seed_writes_answers_of_its_own(seed, one_thread):
    base = load_base(TrajectoryMatchingConfig())
    texts = [
        [pair.response for pair in answered(base, PAIRS, TrajectoryMatchingConfig(public_seed=one))]
        for one in (0, seed, seed)
    ]
    assert texts[0] != texts[1] == texts[2]

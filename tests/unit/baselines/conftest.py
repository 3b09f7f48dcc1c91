"""A mechanism interface for a plan, and a random base model on disk."""

import pytest
import torch
from tests_support import write_random_model

from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors: a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> str:
    """Folder of a GPT-2 of two layers, 16 wide, random weights."""
    return str(write_random_model(tmp_path_factory.mktemp("models") / "random-gpt2"))


@pytest.fixture
def make_mechanisms():
    """Opened with the list of queries of the plan that is run, as a charge of it would."""

    def make(plan, recorder=None, charge: str = "charge") -> Mechanisms:
        return Mechanisms(KeyMaterial(b"s" * 32, charge, b"t" * 32, plan.queries), recorder=recorder)

    return make

"""A mechanism interface for a plan, and a random base model on disk."""

import pytest
import torch
from tests_support import write_random_model


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

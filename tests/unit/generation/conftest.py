"""Tiny models for the tests of generation."""

import pytest
import random_models

from understudy.models.loading import LoadedModel, load_model


@pytest.fixture(scope="session", params=["llama", "gpt2"])
def random_model(request):
    """Shared: a test that changes it changes a copy."""
    shape = {"num_key_value_heads": 2, "tie_word_embeddings": False} if request.param == "llama" else {}
    return random_models.random_model(
        request.param, vocabulary=50, width=32, positions=64, heads=4, initializer_range=0.2, **shape
    )


@pytest.fixture(scope="session")
def tiny_llama() -> LoadedModel:
    return load_model("tiny-llama")


@pytest.fixture(autouse=True)
def small_tensors(one_thread):
    """A second thread would only wait."""

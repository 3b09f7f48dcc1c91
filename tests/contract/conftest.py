"""A random two-layer model in a folder, with the shipped tokenizer: the base model of the contract tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def random_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests_support import write_random_model

    return write_random_model(tmp_path_factory.mktemp("model") / "random")


@pytest.fixture(scope="session")
def places(prefect_server: None, calibrations: Path, empty_tracking_store: Path):
    """What all runs of real flows share: a Prefect server, calibrations, an empty tracking store."""
    from contract.flow_under_replay import Places

    return Places(calibrations=calibrations, tracking=empty_tracking_store)


@pytest.fixture
def surroundings(random_model_folder: Path, tmp_path: Path, places, monkeypatch: pytest.MonkeyPatch) -> tuple:
    """What a flow under replay needs: base model, folder, what runs share, and the patches of the test."""
    return random_model_folder, tmp_path, places, monkeypatch

"""Tasks run against one Prefect server per session and a fresh MLflow database per test."""

import shutil
from pathlib import Path

import pytest

from understudy.tasks.engine import tracking


@pytest.fixture(scope="session")
def empty_tracking_store(tmp_path_factory) -> Path:
    """An MLflow database with its tables and the experiment, made once: that takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    tracking._connect(f"sqlite:///{path}").client._tracking_client.store.engine.dispose()
    return path


@pytest.fixture
def tracked(home: Path, prefect_server: None, empty_tracking_store: Path) -> Path:
    """A test that runs tasks asks for this; returns the home directory."""
    home.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(empty_tracking_store, home / "mlflow.db")
    return home

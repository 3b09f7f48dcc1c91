"""Tasks run against one Prefect server per session and a fresh MLflow database per test."""

from pathlib import Path

import pytest


@pytest.fixture
def tracked(home: Path, prefect_server: None) -> Path:
    """A test that runs tasks asks for this; returns the home directory."""
    return home

"""What every test shares: a home of its own, no telemetry, and one Prefect server per session if asked for."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything imports Prefect, MLflow, torch or datasets.
for _name, _value in {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Small tensors: a second thread only waits, for very long where the cores are busy.
    "OMP_NUM_THREADS": "1",
}.items():
    os.environ[_name] = _value


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An isolated home, exchange store and MLflow database, one thread and the CPU, for each test."""
    for name in [name for name in os.environ if name.startswith("UNDERSTUDY_")]:
        monkeypatch.delenv(name)
    root = tmp_path / "understudy-home"
    monkeypatch.setenv("UNDERSTUDY_HOME", str(root))
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", str(root / "exchange"))
    monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", f"sqlite:///{root / 'mlflow.db'}")
    monkeypatch.setenv("UNDERSTUDY_THREADS", "1")
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "cpu")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(root / "datasets"))
    return root


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """One temporary Prefect server for the whole session; ask for it in tests that run flows."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield

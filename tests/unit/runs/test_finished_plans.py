"""A finished run is answered from its folder by the program that made it, and by no other."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from understudy.runs import finished_plans


@pytest.mark.parametrize("module", ["runs.request", "tasks.export", "tasks.engine.runtime", "flows.paid_run"])
def test_another_version_of_any_part_is_another_program(module, monkeypatch):
    edited, read = Path(find_spec(f"understudy.{module}").origin), Path.read_bytes
    before = finished_plans._program.__wrapped__()
    assert finished_plans._program.__wrapped__() == before
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path == edited))
    assert finished_plans._program.__wrapped__() != before

"""SIGKILL at random moments of a run, then the same command again: the same bytes, one charge."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kill_and_resume import digests

from understudy.privacy.ledger import Ledger

SCRIPT = Path(__file__).parents[1] / "kill_and_resume.py"


def start(home: Path, out: Path, model: Path, data: Path) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(home), str(out), str(model), str(data)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> dict[str, str]:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


def charged_home(folder: Path, model: Path, data: Path) -> Path:
    """A home whose run was killed as soon as its charge was on the disk: every copy then draws the same noise."""
    home = folder / "charged"
    process = start(home, folder / "nowhere", model, data)
    while not _charges(home):
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.02)
    _kill(process)
    return home


def _charges(home: Path) -> tuple:
    import sqlite3

    path = home / "ledger.db"
    if not path.exists():
        return ()
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return tuple(connection.execute("select id from ledger_charges"))
    except sqlite3.OperationalError:
        return ()
    finally:
        connection.close()


def _kill(process: subprocess.Popen) -> None:
    """The whole group: a Prefect server that the run started goes with it, as when a machine is lost."""
    import signal

    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def killed_rows(tmp_path_factory, private_rows):
    import pyarrow.parquet as pq

    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(private_rows, path)
    return path


def check_kills(moments: list[float], tmp_path: Path, model: Path, data: Path, monkeypatch) -> None:
    """Kill one run at each of `moments`, as shares of the time that a calm run takes."""
    home = charged_home(tmp_path, model, data)
    calm = tmp_path / "calm"
    shutil.copytree(home, calm)
    began = time.monotonic()
    expected = finish(start(calm, tmp_path / "calm-out", model, data))
    length = time.monotonic() - began
    assert len(expected) > 4
    landed = 0
    for number, moment in enumerate(moments):
        trial, out = tmp_path / f"trial-{number}", tmp_path / f"out-{number}"
        shutil.copytree(home, trial)
        process = start(trial, out, model, data)
        try:
            process.wait(timeout=length * moment)
        except subprocess.TimeoutExpired:
            landed += 1
            _kill(process)
        assert finish(start(trial, out, model, data)) == expected, f"kill {number}"
        assert digests(out) == expected
        monkeypatch.setenv("UNDERSTUDY_HOME", str(trial))
        assert len(Ledger.open().charges("ward")) == 1
        assert Ledger.open().spent("ward")[0] == 3.0
        shutil.rmtree(trial)
    assert landed > 0, "no kill landed before the end of its run"


def test_a_killed_run_ends_in_the_same_bytes(tmp_path, random_model_folder, killed_rows, monkeypatch):
    # Halfway a calm run has trained and is generating or measuring.
    check_kills([0.5], tmp_path, random_model_folder, killed_rows, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_twenty_kills_at_random_moments(tmp_path, random_model_folder, killed_rows, monkeypatch):
    # Not in the first tenth, in which Python only imports.
    drawn = random.Random(0)
    moments = [drawn.uniform(0.1, 0.95) for _ in range(20)]
    check_kills(moments, tmp_path, random_model_folder, killed_rows, monkeypatch)

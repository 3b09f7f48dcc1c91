"""Tests are confined to their temporary folders: what `confinement` refuses and what it finds afterwards."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from confinement import CACHES, ROOT, WrittenOutside, files_of, told_of

LEFT = ROOT / "left-by-a-test.txt"

WRITES = {
    "open to write": lambda: LEFT.open("w"),
    "open to append": lambda: LEFT.open("ab"),
    "os.open": lambda: os.open(LEFT, os.O_CREAT | os.O_WRONLY),
    "mkdir": lambda: LEFT.mkdir(),
    "mkdir of parents": lambda: (ROOT / "out" / "demo").mkdir(parents=True),
    "rename away": lambda: (ROOT / "README.md").rename("README.md"),
    "rename to": lambda: Path("here.txt").rename(LEFT),
    "remove": lambda: (ROOT / "README.md").unlink(),
    "link": lambda: LEFT.symlink_to("here.txt"),
    "change of mode": lambda: (ROOT / "README.md").chmod(0o600),
    "copy": lambda: shutil.copy("here.txt", LEFT),
    "database": lambda: sqlite3.connect(LEFT),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_into_the_checkout_is_refused_where_it_happens(name):
    Path("here.txt").write_text("of this test")
    with pytest.raises(WrittenOutside, match="tmp_path"):
        WRITES[name]()
    assert not LEFT.exists()
    assert (ROOT / "README.md").is_file()


def test_relative_paths_lead_into_the_temporary_folder(tmp_path):
    Path("out").mkdir()
    Path("out/result.txt").write_text("mine")
    assert (tmp_path / "out/result.txt").read_text() == "mine"
    assert (ROOT / "pyproject.toml").read_text(), "reading the checkout is allowed"


def test_the_files_of_a_checkout_are_listed_without_caches(tmp_path):
    for place in ("README.md", "src/one.py", *(f"{name}/two.py" for name in CACHES), "a/__pycache__/one.pyc"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("")
    assert files_of(tmp_path) == {"README.md", "src/one.py"}


def test_what_came_and_went_is_told_with_who_may_have_done_it():
    few, many = frozenset({"README.md"}), frozenset(f"out/{number:02}" for number in range(12))
    assert told_of(few, few) == ""
    told = told_of(few, many)
    assert "came: out/00, " in told
    assert "out/09 and 2 more; went: README.md" in told
    assert "--out" in told


@pytest.mark.parametrize("processes", [(), ("-p", "xdist.plugin", "-n", "2")], ids=["alone", "xdist"])
def test_a_file_that_another_process_leaves_in_the_checkout_fails_the_session(processes, tmp_path):
    """A checkout of its own, whose one test lets a child process write into it."""
    checkout = tmp_path / "checkout"
    (checkout / "tests").mkdir(parents=True)
    for name in ("conftest.py", "confinement.py", "homes.py"):
        shutil.copy(ROOT / "tests" / name, checkout / "tests")
    (checkout / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["tests"]\n')
    body = "import subprocess\nfrom confinement import ROOT\n\n\ndef test_one():\n    {}\n"
    writes = "subprocess.run(['touch', str(ROOT / 'left.txt')], check=True)"
    for line, expected in (("assert ROOT", 0), (writes, 1)):
        (checkout / "tests" / "test_one.py").write_text(body.format(line))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *processes],
            cwd=checkout,
            # Hypothesis and others take longer to load than all else here.
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == expected, done.stdout + done.stderr
    assert "left.txt" in done.stdout
    assert "1 passed" in done.stdout

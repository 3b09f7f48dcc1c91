"""The wheel holds everything a run needs, wherever it is run."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def build(folder: Path, *options: str) -> Path:
    """The wheel of a copy: setuptools writes `build/` and `*.egg-info` beside what it reads."""
    copy = folder / "checkout"
    for name in ("src", "flows", "tasks", "artifacts/models", "artifacts/samples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "artifacts/__init__.py"):
        shutil.copy(ROOT / name, copy / name)
    run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), *options, str(copy)],
        folder,
        dict(os.environ),
    )
    (wheel,) = folder.glob("understudy-*.whl")
    return wheel


def test_the_wheel_holds_models_samples_and_templates_and_finds_them(tmp_path):
    wheel = build(tmp_path, "--no-isolation")
    zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
    names = zipfile.ZipFile(wheel).namelist()
    assert not any("test" in Path(name).parts[0] for name in names)
    assert any(name.startswith("understudy/reporting/templates/") for name in names)
    empty = tmp_path / "empty"
    empty.mkdir()
    # Ahead of the checkout on the path; dependencies come from this environment.
    path = os.pathsep.join([str(tmp_path / "unpacked"), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path}
    script = (
        "import understudy, understudy.shipped as s; from understudy.models.loading import load_model;"
        "from understudy.data.tables import read_source; load_model('tiny-llama'); load_model('tiny-gpt2');"
        "assert read_source('sample:reviews').num_rows == 600; print(understudy.__file__, s.MODELS)"
    )
    said = run([sys.executable, "-c", script], empty, environment)
    assert said.count(str(tmp_path / "unpacked")) == 2, said


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_wheel_runs_the_demo_in_a_clean_environment(tmp_path):
    wheel = build(tmp_path)
    home = {key: value for key, value in os.environ.items() if not key.startswith(("UNDERSTUDY_", "PYTHON"))}
    home |= {"UNDERSTUDY_HOME": str(tmp_path / "home"), "PREFECT_HOME": str(tmp_path / "prefect")}
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True, timeout=300)
    python = str(tmp_path / "env" / "bin" / "python")
    run([python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel)], tmp_path, home)
    empty = tmp_path / "empty"
    empty.mkdir()
    command = str(tmp_path / "env" / "bin" / "understudy")
    checks = json.loads(run([command, "doctor", "--json"], empty, home))
    assert all(check["ok"] for check in checks), checks
    words = (
        "run conditional-generation --data sample:reviews --test sample:reviews-test --source demo-reviews --epsilon 3"
    )
    run([command, *words.split(), "--budget", "8,1e-3", "--samples", "200", "--out", "out/demo"], empty, home)
    assert (empty / "out/demo/export/synthetic.parquet").exists()
    assert (empty / "out/demo/internal/report.html").exists()
    exchange = list((tmp_path / "home").rglob("manifest.json"))
    assert exchange, "without a checkout, both stores are under the home"

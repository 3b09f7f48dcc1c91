"""SIGKILL or SIGTERM amid a run, then the same command again: the same bytes, one charge."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import fork_server
import psutil
import pyarrow.parquet as pq
import pytest
from homes import command_environment, kill, start_command
from kill_and_resume import digests, kill_once, reserve
from tests_support import SMALL, SMALL_DISTILLATION

from understudy.privacy.ledger.ledger import Ledger
from understudy.runs.request import Budget, RunRequest
from understudy.settings import prepare_environment

pytestmark = pytest.mark.usefixtures("real_encoder")

ROUNDS = 20


@dataclass(frozen=True)
class Command:
    """A tiny run, as a command of the shell and as a request."""

    method: str
    model: Path
    data: Path
    settings: tuple[str, ...]
    labels: dict[str, str] | None

    def words(self, out: Path) -> list[str]:
        options = {
            "data": self.data,
            "source": "ward",
            "epsilon": 3,
            "budget": "8,0.015",
            "model": self.model,
            "samples": 12,
            "out": out,
        }
        if self.labels:
            options["label-names"] = ",".join(f"{value}={name}" for value, name in self.labels.items())
        said = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        return ["run", self.method, *said, *(word for setting in self.settings for word in ("--set", setting))]

    def request(self, out: Path) -> RunRequest:
        return RunRequest(
            data=str(self.data),
            source="ward",
            out=str(out),
            epsilon=3.0,
            budget=Budget(epsilon=8, delta=0.015),
            model=str(self.model),
            label_names=self.labels,
            samples=12,
            overrides=self.settings,
        )


@pytest.fixture(scope="module")
def command_of(tmp_path_factory, private_rows, private_pairs, random_model_folder, wide_model_folder, small_matching):
    folder = tmp_path_factory.mktemp("rows")
    pq.write_table(private_rows, folder / "rows.parquet")
    pq.write_table(private_pairs, folder / "pairs.parquet")
    settings = {"conditional-generation": SMALL, "gradient-matching": small_matching}
    distillation = (*SMALL_DISTILLATION, f"professional.model={wide_model_folder}")

    def make(method: str, *more: str) -> Command:
        if method == "knowledge-distillation":
            return Command(method, wide_model_folder, folder / "pairs.parquet", (*distillation, *more), None)
        labels = {"bad": "bad", "good": "good"}
        return Command(method, random_model_folder, folder / "rows.parquet", (*settings[method], *more), labels)

    return make


def finish(process: subprocess.Popen, within: float = 600) -> None:
    _, err = process.communicate(timeout=within)
    assert process.returncode == 0, err[-3000:]


def charged_home(command: Command, folder: Path) -> Path:
    """A home whose run was killed as soon as its charge was on the disk: every copy then draws the same noise."""
    home = folder / "charged"
    process = start_command(command.words(folder / "nowhere"), home)
    while not _charges(home):
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.02)
    kill(process)
    return home


def _charges(home: Path) -> tuple:
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


def check_kills(command: Command, moments: list[float], tmp_path: Path, in_home) -> None:
    """Kill one run at each of `moments`, as shares of the time that a calm run takes."""
    home = charged_home(command, tmp_path)
    calm = tmp_path / "calm"
    shutil.copytree(home, calm)
    began = time.monotonic()
    finish(start_command(command.words(tmp_path / "calm-out"), calm))
    length = time.monotonic() - began
    expected = digests(tmp_path / "calm-out")
    assert len(expected) > 2
    landed = 0
    for number, moment in enumerate(moments):
        trial, out = tmp_path / f"trial-{number}", tmp_path / f"out-{number}"
        shutil.copytree(home, trial)
        process = start_command(command.words(out), trial)
        try:
            finish(process, within=length * moment)
        except subprocess.TimeoutExpired:
            landed += 1
            kill(process)
        finish(start_command(command.words(out), trial))
        assert digests(out) == expected, f"kill {number}"
        with in_home(trial):
            assert len(Ledger.open().charges("ward")) == 1
            assert Ledger.open().spent("ward")[0] == 3.0
        shutil.rmtree(trial)
    assert landed > 0, "no kill landed before the end of its run"


def finish_alike(command, calm, killed, in_home):
    """Finish both runs here; what they export is the same to the byte."""
    outs = [home.with_name(f"{home.name}-out") for home in (calm, killed)]
    for home, out in zip((calm, killed), outs, strict=True):
        finish_here(command, home, out, in_home)
    expected, found = map(digests, outs)
    assert {"export/synthetic.parquet", "export/model/model.safetensors"} <= expected.keys()
    assert found == expected


def test_a_killed_run_ends_in_the_same_bytes(prefect_server, empty_prefect_database, tmp_path, command_of, in_home):
    """The command of the shell, with a Prefect server of its own, killed once it has trained."""
    command = command_of("conditional-generation")
    calm, killed = charged_twice(command, tmp_path, in_home)
    (killed / "prefect").mkdir()
    shutil.copy(empty_prefect_database, killed / "prefect")
    process = start_command(command.words(tmp_path / "killed-out"), killed)
    while not trained_models(killed):
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.02)
    kill(process)
    assert len(trained_models(killed)) == 1
    assert not (tmp_path / "killed-out").exists()

    finish_alike(command, calm, killed, in_home)
    assert trained_models(killed) == trained_models(calm)


def test_a_run_killed_between_the_zones_ends_in_the_same_bytes(prefect_server, tmp_path, command_of, in_home):
    """Killed once the adapter is sealed: the server's part is done by the repeated command, with the same bundle."""
    command = command_of("knowledge-distillation")
    calm, killed = charged_twice(command, tmp_path, in_home)
    kill_once(lambda: sealed_adapters(killed), command.words(tmp_path / "killed-out"), killed)
    assert not (tmp_path / "killed-out").exists()

    finish_alike(command, calm, killed, in_home)
    assert sealed_adapters(killed) == sealed_adapters(calm)


def test_a_terminated_run_takes_its_server_along_and_goes_on_under_its_charge(
    prefect_server, empty_prefect_database, tmp_path, command_of, in_home
):
    """As a scheduler or a service manager ends a run: only the process of the command hears of it."""
    command, home, out = command_of("conditional-generation"), tmp_path / "home", tmp_path / "out"
    home.mkdir(mode=0o700)
    (home / "prefect").mkdir()
    shutil.copy(empty_prefect_database, home / "prefect")
    with tempfile.TemporaryFile() as said:
        process = fork_server.start(
            ["-m", "understudy.flows.cli", *command.words(out)],
            environment=command_environment(home),
            streams=[said.fileno()] * 3,
        )
        try:
            while not _charges(home):
                assert process.poll() is None, os.pread(said.fileno(), 1_000_000, 0).decode()[-3000:]
                time.sleep(0.02)
            (server,) = psutil.Process(process.pid).children()
            assert "understudy.flows.tied_server" in server.cmdline()
            os.kill(process.pid, signal.SIGTERM)
            status = process.wait()
            assert not server.is_running()
            assert status == 128 + signal.SIGTERM
        finally:
            process.kill()
        assert "same command goes on" in os.pread(said.fileno(), 1_000_000, 0).decode()

    finish_here(command, home, out, in_home)


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("method", ["conditional-generation", "gradient-matching", "knowledge-distillation"])
def test_twenty_kills_at_random_moments(method, tmp_path, command_of, in_home):
    # Not in the first tenth, in which Python only imports.
    drawn = random.Random(0)
    moments = [drawn.uniform(0.1, 0.95) for _ in range(20)]
    check_kills(command_of(method), moments, tmp_path, in_home)


@pytest.mark.slow
def test_a_run_killed_amid_its_rounds_goes_on_after_the_last_of_them(
    prefect_server, small_measures, tmp_path, command_of, in_home
):
    # One shard of one batch, so that there is one count of rounds.
    sizes = ("matching.shard_size=32", "matching.batch_size=32")
    command = command_of("gradient-matching", f"matching.rounds={ROUNDS}", *sizes)
    calm, killed = charged_twice(command, tmp_path, in_home)
    kill_once(lambda: rounds_kept(killed) >= 2, command.words(tmp_path / "killed-out"), killed)
    reached = rounds_kept(killed)
    assert 2 <= reached < ROUNDS, "expected a kill amid the rounds"
    assert not (tmp_path / "killed-out").exists()

    done = {}
    for home in (calm, killed):
        with rounds_counted() as counted:
            finish_here(command, home, tmp_path / f"{home.name}-out", in_home)
        done[home] = counted
    assert done[calm] == ["warm start", *range(ROUNDS)]
    assert done[killed] == list(range(reached, ROUNDS))
    expected = digests(tmp_path / "calm-out")
    assert {"export/synthetic.parquet", "export/target/target.safetensors"} <= expected.keys()
    assert digests(tmp_path / "killed-out") == expected


def charged_twice(command: Command, folder: Path, in_home) -> list[Path]:
    """Two homes with one charge and nothing computed: both draw the same noise."""
    with in_home(folder / "charged"):
        prepare_environment()
        reserve(command.request(folder / "nowhere"), command.method)
    homes = [folder / "calm", folder / "killed"]
    for home in homes:
        shutil.copytree(folder / "charged", home)
    return homes


def finish_here(command: Command, home: Path, out: Path, in_home) -> None:
    """The same command in this process; it ends with one charge."""
    from understudy.lazy import load
    from understudy.methods import registry

    with in_home(home):
        load(registry.get(command.method).flow)(command.request(out))
        assert [charge.status for charge in Ledger.open().charges("ward")] == ["released"]
        assert Ledger.open().spent("ward")[0] == 3.0


def trained_models(home: Path) -> set[str]:
    """Ids of the released models that are whole."""
    found = (path.parent for path in (home / "exchange").glob("[0-9a-f]*/model.safetensors"))
    return {folder.name for folder in found if (folder / "manifest.json").is_file()}


def sealed_adapters(home: Path) -> set[str]:
    """Ids of the bundles and sealed adapters that are whole."""
    found = (path.parent for path in (home / "exchange").glob("[0-9a-f]*/payload.bin"))
    return {folder.name for folder in found if (folder / "manifest.json").is_file()}


def rounds_kept(home: Path) -> int:
    """The newest round in a checkpoint; -1 if there is none."""
    try:
        files = list((home / "private/checkpoints").glob("*/*/batch-*/step-*.safetensors"))
    except FileNotFoundError:
        return -1  # a task that ended meanwhile has taken its folder away
    return max((int(path.stem.removeprefix("step-")) for path in files), default=-1)


@contextmanager
def rounds_counted():
    """A list of what is optimised: `warm start`, and the number of rounds before each round."""
    from understudy.methods.gradient_matching import admm

    counted: list[object] = []
    warm_start, next_round = admm.warm_start, admm.next_round

    def counted_start(*args, **kwargs):
        counted.append("warm start")
        return warm_start(*args, **kwargs)

    def counted_round(state, *args, **kwargs):
        counted.append(state.round)
        return next_round(state, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admm, "warm_start", counted_start)
        patch.setattr(admm, "next_round", counted_round)
        yield counted

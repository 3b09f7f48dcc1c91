import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from full_disk import files_of_at_most

from understudy.errors import LeaseLost, UnderstudyError
from understudy.locks import locked_one
from understudy.privacy import calibration
from understudy.settings import settings
from understudy.tasks.engine import leases, run_locks
from understudy.tasks.engine.turns import Turns

KEY = "k" * 64


@pytest.fixture
def root(home):
    return settings().checkpoints_root


@pytest.fixture(autouse=True)
def hearts_end_with_the_test(monkeypatch):
    """A heart that beats on would write into this test's home while other tests watch what is written."""
    taken, acquire = [], leases.acquire

    def noted(*arguments, **options):
        taken.append(acquire(*arguments, **options))
        return taken[-1]

    monkeypatch.setattr(leases, "acquire", noted)
    yield
    for lease in taken:
        lease._end()


def test_checkpoints_pass_from_holder_to_holder_under_a_new_name(root):
    first = leases.acquire(root, KEY)
    old = first.directory()
    (old / "step-3").write_text("three")
    first.release()
    second = leases.acquire(root, KEY)
    assert (second.directory() / "step-3").read_text() == "three"
    assert second.directory() != old
    assert not old.exists()
    second.finish()
    assert not (root / KEY).exists()


def test_the_loser_waits_and_then_gets_the_checkpoints(root):
    first = leases.acquire(root, KEY)
    (first.directory() / "step-1").touch()
    with pytest.raises(UnderstudyError, match=f"process {os.getpid()};"):
        leases.acquire(root, KEY, timeout_s=0.15)
    got = []
    told: list[float] = []
    looked_twice = threading.Event()

    def waiting(seconds: float) -> None:
        told.append(seconds)
        if len(told) == 2:
            looked_twice.set()

    waiter = threading.Thread(target=lambda: got.append(leases.acquire(root, KEY, waiting=waiting)))
    waiter.start()
    assert looked_twice.wait(60)
    assert not got
    assert told == sorted(told)
    first.release()
    waiter.join(timeout=60)
    assert got[0].waited
    assert (got[0].directory() / "step-1").exists()
    got[0].release()


HOLDER = """
import sys, time, pathlib
from understudy.tasks.engine import leases
lease = leases.acquire(pathlib.Path(sys.argv[1]), sys.argv[2], beat_s=0.05)
(lease.directory() / "step-7").touch()
print(lease.owner, flush=True)
time.sleep(60)
"""


def test_a_killed_holder_frees_its_key_at_once_on_the_same_machine(root):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(root), KEY], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(UnderstudyError, match=f"process {holder.pid};"):
        leases.acquire(root, KEY, timeout_s=0.1)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    began = time.monotonic()
    lease = leases.acquire(root, KEY, stale_after_s=1000.0)
    assert time.monotonic() - began < 100, "its heartbeat was not waited for"
    assert (lease.directory() / "step-7").exists()
    lease.release()


def show_foreign(root, **changes):
    shown = {"owner": "zombie", "previous": None, "machine": "elsewhere", "pid": 1, "beats": 0, "released": False}
    (root / KEY / "zombie").mkdir(parents=True, exist_ok=True)
    leases._write(root / KEY / "lease.json", json.dumps({**shown, "sources": [], **changes}).encode())


def test_a_live_holder_on_another_machine_is_waited_for(root):
    show_foreign(root)
    seconds = itertools.count()

    def clock():
        """A second later at each look, and the holder has beaten once more."""
        now = next(seconds)
        show_foreign(root, beats=now)
        return now

    with pytest.raises(UnderstudyError, match="process 1 of machine elsewhere"):
        leases.acquire(root, KEY, stale_after_s=5, timeout_s=30, beat_s=0.001, clock=clock)
    lease = leases.acquire(root, KEY, stale_after_s=0.5, timeout_s=60)
    assert lease.waited
    lease.release()


def test_an_unreadable_lease_is_free_once_it_stood_still(root):
    (root / KEY).mkdir(parents=True)
    (root / KEY / "lease.json").write_text("{")
    assert leases.acquire(root, KEY, stale_after_s=0.3).waited


def test_a_lease_that_another_machine_released_is_free(root):
    show_foreign(root, released=True)
    assert not leases.acquire(root, KEY, timeout_s=1).waited


def test_a_zombie_finds_its_directory_gone_and_is_told(root):
    zombie = leases.acquire(root, KEY, beat_s=0.05)
    directory = zombie.directory()
    # Another machine, where our lock does not count, takes over.
    (root / KEY / "lease.json").write_text(json.dumps({"owner": "successor"}))
    directory.rename(root / KEY / "successor")
    with pytest.raises(FileNotFoundError):
        (directory / "step-2").touch()
    deadline = time.monotonic() + 60
    while not zombie._lost.is_set() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(LeaseLost, match=f"another worker .*{KEY[:12]}"):
        zombie.check()
    with pytest.raises(LeaseLost):
        zombie.directory()
    zombie.release()
    zombie_again = json.loads((root / KEY / "lease.json").read_text())
    assert zombie_again == {"owner": "successor"}


@pytest.mark.parametrize("renamed", [False, True])
def test_a_crash_while_taking_over_loses_no_checkpoint(root, renamed):
    show_foreign(root, owner="second", previous="zombie", released=True)
    if renamed:
        (root / KEY / "zombie").rename(root / KEY / "second")
    (root / KEY / ("second" if renamed else "zombie") / "step-4").touch()
    lease = leases.acquire(root, KEY)
    assert (lease.directory() / "step-4").exists()
    lease.release()


def test_a_result_waits_for_its_commit(root):
    lease = leases.acquire(root, KEY)
    assert lease.load_result() is None
    lease.save_result(b"result")
    lease.release()
    again = leases.acquire(root, KEY)
    assert again.load_result() == b"result"
    leases.forget(root, KEY)
    assert (root / KEY).exists(), "somebody works on it"
    again.release()
    leases.forget(root, KEY)
    assert not (root / KEY).exists()
    leases.forget(root, "never there")


def test_sweep_removes_what_nobody_works_on(root):
    for key, sources in [("a", ["reviews"]), ("b", ["clinic"]), ("c", ["reviews", "clinic"])]:
        leases.acquire(root, key, sources=sources).release()
    held = leases.acquire(root, "held", sources=["reviews"])
    assert leases.sweep(root, source="reviews", older_than_s=100) == []
    assert leases.sweep(root, source="reviews") == ["a", "c"]
    assert leases.sweep(root) == ["b"]
    held.finish()


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_no_lock(root, monkeypatch):
    """The lock of a lease that could not be shown would make this process wait for itself, for ever."""
    with monkeypatch.context() as full:
        full.setattr(leases, "_write", full_disk)
        with pytest.raises(OSError, match="No space"):
            leases.acquire(root, KEY)
    lease = leases.acquire(root, KEY, timeout_s=0)
    (lease.directory() / "step-1").touch()
    with monkeypatch.context() as full:
        full.setattr(leases, "_write", full_disk)
        lease.release()
    again = leases.acquire(root, KEY, timeout_s=0)
    assert (again.directory() / "step-1").exists()
    monkeypatch.setattr(leases.shutil, "rmtree", full_disk)
    with pytest.raises(OSError, match="No space"):
        again.finish()
    monkeypatch.undo()
    leases.acquire(root, KEY, timeout_s=0).release()


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda folder: leases.acquire(folder, KEY), f"{KEY}/lease.json"),
        (lambda folder: run_locks.hold(folder / "runs", KEY, lambda _: None), f"runs/{KEY}"),
        (lambda folder: contextlib.ExitStack().enter_context(Turns(folder / "turns").turn()), "turns"),
        (lambda folder: calibration._write_cache(folder / "calibration.json", {"noise_multiplier": 1}), "calibration"),
        (lambda folder: contextlib.ExitStack().enter_context(locked_one([folder / "gpu"], lambda _: None)), "gpu"),
    ],
    ids=["lease", "run", "turn", "calibration", "device"],
)
def test_a_full_disk_is_named(root, write, named):
    """Of four disks that a run writes to, "No space left on device" did not tell which."""
    with files_of_at_most(0), pytest.raises(OSError, match="File too large") as told:
        write(root)
    assert str(told.value.filename).startswith(str(root / named))


def test_what_was_not_written_whole_is_not_left_behind(root, monkeypatch):
    lease = leases.acquire(root, KEY)
    before = sorted(path.name for path in (root / KEY).iterdir())
    with monkeypatch.context() as full:
        full.setattr(leases.Path, "rename", full_disk)
        with pytest.raises(OSError, match="No space"):
            lease.save_result(b"result")
    assert sorted(path.name for path in (root / KEY).iterdir()) == before
    lease.release()


def test_a_heart_outlives_a_disk_that_is_away(root, monkeypatch):
    failed = threading.Event()

    def away(*_):
        failed.set()
        full_disk()

    (root / KEY).mkdir()
    lease = leases.Lease(root / KEY, "owner", False, os.open(root, os.O_RDONLY))
    lease._show(released=False)
    with monkeypatch.context() as patch:
        patch.setattr(leases, "_read_lease", away)
        lease.start_heart(0.01)
        assert failed.wait(60)
    deadline = time.monotonic() + 60
    while lease._beats == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lease._beats > 0
    lease.release()


def test_everything_in_a_lease_is_closed_to_others(root):
    lease = leases.acquire(root, KEY)
    lease.save_result(b"x")
    modes = {path.name: path.stat().st_mode & 0o777 for path in [lease.directory(), *(root / KEY).iterdir()]}
    assert {0o700, 0o600} == set(modes.values())
    lease.finish()

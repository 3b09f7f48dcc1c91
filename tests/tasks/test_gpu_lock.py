"""Without a Prefect server a task holds its GPU by a lock: real processes that contend for it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from understudy.errors import InputError
from understudy.locks import holder_of
from understudy.settings import device_locks, settings
from understudy.tasks.engine import machine

# Holds a device until it is told to go on; the device type is given, as on a machine with CUDA.
HOLDER = """
import sys, time
from understudy.tasks.engine.machine import gpu_slot
with gpu_slot("cuda") as index:
    print(index, flush=True)
    sys.stdin.readline()
"""
# Works for a moment, and writes when it began and ended.
WORKER = """
import time
from understudy.tasks.engine.machine import gpu_slot
with gpu_slot("cuda") as index:
    began = time.monotonic()
    time.sleep(0.3)
    print(index, began, time.monotonic(), flush=True)
"""


@pytest.fixture(autouse=True)
def without_server(monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", "no-such-prefect-home")


@pytest.fixture
def start():
    started = []

    def run(code: str, **environment: str) -> subprocess.Popen:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=os.environ | environment,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def device_of(holder: subprocess.Popen) -> int:
    line = holder.stdout.readline()
    assert line, holder.stderr.read()[-2000:]
    return int(line)


@pytest.mark.parametrize(("devices", "at_once"), [("0", 1), ("0,1", 2)])
def test_as_many_processes_compute_as_devices_are_named(devices, at_once, start, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_DEVICES", devices)
    settings()
    workers = [start(WORKER) for _ in range(3)]
    done = [worker.communicate(timeout=120) for worker in workers]
    assert all(out for out, _ in done), done[0][1][-2000:]
    spans = [(int(index), float(began), float(ended)) for index, began, ended in (out.split() for out, _ in done)]
    assert {index for index, _, _ in spans} <= set(range(at_once))
    for moment in (began for _, began, _ in spans):
        busy = [index for index, began, ended in spans if began <= moment < ended]
        assert len(busy) == len(set(busy)) <= at_once, spans


def test_a_holder_is_named_waited_for_and_freed_by_its_death(start):
    settings()
    holder = start(HOLDER)
    assert device_of(holder) == 0
    (path,) = device_locks()
    assert holder_of(path) == str(holder.pid)
    waiting = start(WORKER)
    said = waiting.stderr.readline()
    assert re.fullmatch(rf"waiting for \d+ s .*\(UNDERSTUDY_DEVICES=0\): .* {holder.pid}\n", said)
    assert waiting.poll() is None
    os.kill(holder.pid, signal.SIGKILL)
    out, more = waiting.communicate(timeout=60)
    assert out.split()[0] == "0"
    assert more == "", "said once, then every minute"
    assert holder_of(path) is None


def test_threads_of_one_process_take_turns_too():
    inside, most = [], []

    def work() -> None:
        with machine.gpu_slot("cuda") as index:
            assert index == 0
            assert holder_of(*device_locks()) == str(os.getpid())
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.3)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]
    assert holder_of(*device_locks()) is None


def test_one_device_under_two_numbers_is_one_lock(start, monkeypatch):
    """What CUDA_VISIBLE_DEVICES calls it decides: number 0 here may be number 1 there."""
    settings()
    holder = start(HOLDER, CUDA_VISIBLE_DEVICES="1")
    assert device_of(holder) == 0
    monkeypatch.setenv("UNDERSTUDY_DEVICES", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert holder_of(*device_locks()) == str(holder.pid)
    monkeypatch.setenv("UNDERSTUDY_DEVICES", "0")
    assert holder_of(*device_locks()) is None


def test_another_device_type_holds_nothing():
    with machine.gpu_slot("cpu") as index:
        assert index is None
    assert not list(settings().locks_root.iterdir())


def test_an_error_of_the_body_frees_the_device():
    with pytest.raises(ValueError, match="body"), machine.gpu_slot("cuda"):
        raise ValueError("body")
    assert holder_of(*device_locks()) is None


@pytest.mark.parametrize("value", ["a", "0,", "0;1", "-1"])
def test_devices_are_numbers(value, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_DEVICES", value)
    with pytest.raises(InputError, match="UNDERSTUDY_DEVICES"):
        settings()


def test_each_device_is_named_once(monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_DEVICES", "2,0,2")
    assert settings().device_indices == (2, 0)
    assert [path.name for path in device_locks()] == ["gpu-2.lock", "gpu-0.lock"]

"""Without a Prefect server a task holds its GPU by a lock: real processes that contend for it."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import fork_server
import forked
import pytest

from understudy.errors import InputError
from understudy.locks import holder_of
from understudy.settings import device_locks, settings
from understudy.tasks.engine import machine

# Holds a device until it is told to go on; the device type is given, as on a machine with CUDA.
HOLDER = """
from understudy.tasks.engine.machine import gpu_slot
with gpu_slot("cuda") as index:
    pipe.send(index)
    pipe.recv()
"""
# Works for a moment, and tells when it began and ended, and before that what is written on its stderr.
WORKER = """
import sys, time
from understudy.tasks.engine.machine import gpu_slot
sys.stderr = type("Stderr", (), {"write": lambda _, text: pipe.send(text)})()
with gpu_slot("cuda") as index:
    began = time.monotonic()
    time.sleep(0.3)
    pipe.send((index, began, time.monotonic()))
"""


@pytest.fixture(autouse=True)
def without_server(monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", "no-such-prefect-home")


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[fork_server.Forked, Connection]]]:
    """`forked.start`; what still runs after the test is killed."""
    processes = []

    def run(code: str, **names: object) -> tuple[fork_server.Forked, Connection]:
        process, pipe = forked.start(code, **names)
        processes.append(process)
        return process, pipe

    yield run
    for process in processes:
        process.kill()


def received(pipe: Connection) -> object:
    assert pipe.poll(120)
    return pipe.recv()


@pytest.mark.parametrize(("devices", "at_once"), [("0", 1), ("0,1", 2)])
def test_as_many_processes_compute_as_devices_are_named(devices, at_once, start, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_DEVICES", devices)
    settings()
    workers = [start(WORKER) for _ in range(3)]
    spans = [received(pipe) for _, pipe in workers]
    assert {index for index, _, _ in spans} <= set(range(at_once))
    for moment in (began for _, began, _ in spans):
        busy = [index for index, began, ended in spans if began <= moment < ended]
        assert len(busy) == len(set(busy)) <= at_once, spans


def test_a_holder_is_named_waited_for_and_freed_by_its_death(start):
    settings()
    holder, told = start(HOLDER)
    assert received(told) == 0
    (path,) = device_locks()
    assert holder_of(path) == str(holder.pid)
    waiting, heard = start(WORKER)
    said = received(heard)
    assert re.fullmatch(rf"waiting for \d+ s .*\(UNDERSTUDY_DEVICES=0\): .* {holder.pid}\n", said)
    assert waiting.poll() is None
    os.kill(holder.pid, signal.SIGKILL)
    index, *_ = received(heard)
    assert index == 0, "said once, then every minute"
    assert waiting.wait() == 0
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
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    holder, told = start(HOLDER)
    assert received(told) == 0
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

import errno
import json
import os
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from guarantees import GUARANTEE
from prefect import flow
from prefect.filesystems import LocalFileSystem
from pydantic import BaseModel

from understudy.artifacts.access import ArtifactRef, path_of, read_table, write_json, write_table
from understudy.errors import InputError, TaskFailed, UnderstudyError, ZoneError
from understudy.privacy.labels import private, public, released
from understudy.runs.checks.prefect_server import gpu_limit
from understudy.settings import settings
from understudy.tasks.engine import machine, runtime
from understudy.tasks.engine.runtime import checkpoint_directory, progress, report_metrics, task

SECRET = "the patient is Zibby"
calls: list[str] = []
# An audit hook cannot be removed, so there is one, and it records only while a list is in here.
watchers: list[list[str]] = []
sys.addaudithook(
    lambda event, args: [w.append(str(args[0])) for w in watchers] if event in ("open", "os.scandir") else None
)


@contextmanager
def opened_files():
    watchers.append([])
    try:
        yield watchers[-1]
    finally:
        watchers.clear()


@pytest.fixture(autouse=True)
def forget_calls():
    calls.clear()


class Config(BaseModel, frozen=True):
    steps: int = 3
    suffix: str = "!"


@task(name="load")
def load(text: str) -> ArtifactRef:
    """Load."""
    calls.append("load")
    return write_table(pa.table({"text": [text]}), kind="table", label=private("reviews"))


@task(name="train")
def train(rows: ArtifactRef, config: Config) -> ArtifactRef:
    """Train."""
    calls.append("train")
    for step in range(config.steps):
        progress(step + 1, config.steps)
    report_metrics({"steps": config.steps})
    text = read_table(rows)["text"][0].as_py() + config.suffix
    return write_table(
        pa.table({"text": [text]}), kind="model", label=released(GUARANTEE), parents=["source:reviews@c1"]
    )


@task(name="both")
def both(one: ArtifactRef, more: dict[str, list[ArtifactRef]]) -> dict[str, ArtifactRef | int]:
    """Two artifacts inside other values."""
    calls.append("both")
    return {"last": more["refs"][-1], "count": 1 + len(more["refs"])}


@flow(name="pipeline", persist_result=False)
def pipeline(text: str, suffix: str = "!") -> dict:
    ref = train(load(text), Config(suffix=suffix))
    return both(ref, {"refs": [ref]})


def run_states(flow_function, *args, **kwargs):
    """The flow's result and the name of each task run's final state."""
    names = []
    before = runtime._after_commit

    def watched(spec, task_run, state):
        names.append((spec.name, state.name))
        before(spec, task_run, state)

    runtime._after_commit = watched
    try:
        return flow_function(*args, **kwargs), names
    finally:
        runtime._after_commit = before


# Cache


def test_the_second_run_is_all_cache_hits(tracked):
    first, states = run_states(pipeline, "a")
    assert states == [("load", "Completed"), ("train", "Completed"), ("both", "Completed")]
    second, states = run_states(pipeline, "a")
    assert states == [("load", "Cached"), ("train", "Cached"), ("both", "Cached")]
    assert calls == ["load", "train", "both"]
    assert first == second
    assert isinstance(second["last"], ArtifactRef)
    third, _ = run_states(pipeline, "a", suffix="?")
    assert calls == ["load", "train", "both", "train", "both"]
    assert third["last"] != first["last"]


def test_a_log_says_which_tasks_begin_to_compute(tracked, capsys):
    pipeline("a")
    said = [line for line in capsys.readouterr().err.splitlines() if line.endswith(" begins")]
    assert said == ["load begins", "train begins", "both begins"]
    pipeline("a", suffix="?")
    said = [line for line in capsys.readouterr().err.splitlines() if line.endswith(" begins")]
    assert said == ["train begins", "both begins"]


@pytest.mark.parametrize("part", [0, 100])
def test_a_result_that_a_full_disk_refused_is_kept_and_taken_by_the_next_run(tracked, part, monkeypatch):
    """Prefect left a part of it and went on; a task that had drawn noise could not be repeated when it was charged."""

    def full(_, path, content, **_options):
        (settings().results_root / Path(path).name).write_bytes(content[:part])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(LocalFileSystem, "write_path", full)
        first = pipeline("a")
    assert calls == ["load", "train", "both"]
    assert pipeline("a") == first
    assert calls == ["load", "train", "both"]
    assert list(settings().checkpoints_root.glob("*/result.json")) == []


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_artifact_is_a_miss_and_is_made_again(tracked, damage):
    before = pipeline("a")["last"]
    file = path_of(before) / "table.parquet"
    if damage == "changed":
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    else:
        file.unlink()
    calls.clear()
    after = pipeline("a")["last"]
    # The new artifact has the old address, so what follows is a hit again.
    assert calls == ["train"]
    assert after == before
    assert read_table(after)["text"].to_pylist() == ["a!"]


def test_a_lost_private_artifact_is_made_again_with_what_follows(tracked):
    first = pipeline("a")["last"]
    for ref in (tracked / "private" / "artifacts").iterdir():
        if ref.is_dir():
            (ref / "manifest.json").unlink()
    calls.clear()
    # The new private artifact has a new random id, so what was made from the old one does not count for it;
    # what is made from it has the old address.
    assert pipeline("a")["last"] == first
    assert calls == ["load", "train"]


def test_results_are_json_with_references_only_under_the_private_root(tracked):
    pipeline(SECRET)
    files = [path for path in settings().results_root.iterdir()]
    assert len(files) == 3
    for path in files:
        stored = json.loads(path.read_text())
        assert stored["metadata"]["serializer"]["type"] == "json"
        assert "Zibby" not in path.read_text()
    assert stat.S_IMODE(settings().results_root.stat().st_mode) == 0o700


MODULE = '''
from understudy.tasks.engine.runtime import task

@task(name="noted")
def noted(x: int) -> int:
    """DOC"""
    with open(LOG, "a") as file:
        file.write("ran ")
    return VALUE
'''


def test_a_changed_docstring_is_a_hit_and_changed_code_a_miss(tracked, tmp_path):
    import importlib.util

    log = tmp_path / "log"

    def run(doc: str, value: str):
        path = tmp_path / "changing.py"
        path.write_text(MODULE.replace("DOC", doc).replace("VALUE", value).replace("LOG", repr(str(log))))
        spec = importlib.util.spec_from_file_location("changing", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules["changing"] = module
        spec.loader.exec_module(module)

        @flow(name="changes")
        def changes() -> int:
            return module.noted(1)

        return changes(), log.read_text().count("ran")

    assert run("One.", "x") == (1, 1)
    assert run("Two,\n    longer.", "x") == (1, 1)
    assert run("One.", "x + 1") == (2, 2)


def test_a_task_without_cache_runs_every_time(tracked):
    @task(name="effect", cache=False)
    def effect(x: int) -> int:
        calls.append("effect")
        (checkpoint_directory() / "step").touch()
        return x

    @flow(name="effects")
    def effects() -> int:
        return effect(1) + effect(1)

    assert effects() == 2
    assert calls == ["effect", "effect"]
    assert list(settings().checkpoints_root.iterdir()) == []


def test_the_first_run_returns_what_a_hit_returns(tracked):
    @task(name="pair")
    def pair(x: float) -> tuple[float, dict[str, Config]]:
        return x, {"a": Config(steps=7)}

    @flow(name="pair-flow")
    def pair_flow() -> object:
        return pair(float("inf"))

    assert pair_flow() == pair_flow() == [float("inf"), {"a": Config(steps=7)}]


def test_two_identical_tasks_at_once_compute_once(tracked):
    @task(name="slow")
    def slow(x: int) -> ArtifactRef:
        calls.append("slow")
        time.sleep(1.0)
        return write_json({"x": x}, kind="note", label=public())

    @flow(name="twins")
    def twins() -> list[ArtifactRef]:
        return slow.map([7, 7]).result()

    one, two = twins()
    assert one == two
    assert calls == ["slow"]
    assert list(settings().checkpoints_root.iterdir()) == []


# Checks


@pytest.mark.parametrize("value", [pa.table({"text": ["x"]}), Path("/x"), [b"x"]])
def test_content_is_no_argument(tracked, value):
    @task(name="takes")
    def takes(value: object) -> int:
        calls.append("takes")
        return 1

    @flow(name="takes-flow")
    def takes_flow() -> int:
        return takes(value)

    with pytest.raises(InputError, match=r"argument 'value'.*ArtifactRef.*as an artifact"):
        takes_flow()
    assert calls == []


def test_content_is_no_result(tracked):
    @task(name="gives", retries=0)
    def gives() -> object:
        return pa.table({"text": [SECRET]})

    @flow(name="gives-flow")
    def gives_flow() -> object:
        return gives()

    with pytest.raises(InputError, match=r"result of task 'gives'.*Table") as caught:
        gives_flow()
    assert "Zibby" not in str(caught.value)


def test_a_server_task_refuses_a_private_reference_before_reading_a_byte(tracked):
    @task(name="remote", zone="server")
    def remote(rows: ArtifactRef) -> int:
        calls.append("remote")
        return 1

    ref = load.fn("a")
    calls.clear()

    @flow(name="remote-flow")
    def remote_flow() -> int:
        return remote(ref)

    with opened_files() as opened:
        path_of(ref)
        assert [path for path in opened if ref.id in path], "the hook sees nothing"
        opened.clear()
        with pytest.raises(ZoneError, match=r"'rows' is private\(reviews\).*client zone"):
            remote_flow()
        assert opened
        assert not [path for path in opened if ref.id in path]
    assert calls == []


def test_a_client_task_refuses_to_run_in_the_server_zone(tracked, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    with pytest.raises(ZoneError, match=r"UNDERSTUDY_ZONE=server; .*pool of the client zone"):
        load.fn("a")


# Faults


def test_a_fault_that_passes_is_retried_with_the_same_bytes(tracked):
    def make(name: str, failures: int):
        @task(name=name, retry_delays=(0.0,))
        def shaky(x: int) -> ArtifactRef:
            calls.append(name)
            done = checkpoint_directory() / "step-1"
            if calls.count(name) <= failures:
                done.write_text("kept")
                raise ConnectionResetError("lost")
            kept = done.read_text() if done.exists() else "kept"
            return write_json({"x": x, "kept": kept}, kind="note", label=public())

        return shaky

    shaky, steady = make("shaky", 2), make("steady", 0)

    @flow(name="shaky-flow")
    def shaky_flow() -> tuple[ArtifactRef, ArtifactRef]:
        return shaky(1), steady(1)

    one, two = shaky_flow()
    assert one == two
    assert calls == ["shaky", "shaky", "shaky", "steady"]


@pytest.mark.parametrize("error", [InputError("wrong"), ValueError("wrong"), FileNotFoundError("wrong")])
def test_an_error_that_stays_is_not_retried(tracked, error):
    @task(name="fails", retry_delays=(0.0,))
    def fails() -> int:
        calls.append("fails")
        raise error

    @flow(name="fails-flow")
    def fails_flow() -> int:
        return fails()

    with pytest.raises(UnderstudyError):
        fails_flow()
    assert calls == ["fails"]


class PanicException(BaseException):
    """As a tokenizer written in Rust raises it: no `Exception`, and it quotes what it was given."""


@pytest.mark.parametrize("kind", [KeyError, PanicException])
def test_prefect_keeps_no_text_of_a_foreign_error(tracked, kind):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    @task(name="leaks", retries=0)
    def leaks(rows: ArtifactRef) -> int:
        raise kind(read_table(rows)["text"][0].as_py())

    @flow(name=f"leaks-flow-{kind.__name__}")
    def leaks_flow() -> int:
        return leaks(load(SECRET))

    with pytest.raises(TaskFailed, match=rf"'leaks'.*{kind.__name__}.*test_runtime\.py"):
        leaks_flow()
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=[leaks_flow.name])))
    assert [run.state.is_failed() and "leaks" in run.state.message for run in runs] == [True]
    assert not [run for run in runs if "Zibby" in run.model_dump_json()]
    results = "".join(path.read_text() for path in settings().results_root.iterdir())
    assert "Zibby" not in results


def test_what_a_task_may_use_is_refused_outside_of_one():
    for use in (checkpoint_directory, lambda: progress(1, 2), lambda: report_metrics({})):
        with pytest.raises(UnderstudyError, match=r"inside a task.*@task"):
            use()


def test_the_bare_function_keeps_checks_and_checkpoints(home):
    @task(name="bare")
    def bare(x: int) -> str:
        return checkpoint_directory().name

    assert bare.fn(1) != bare.fn(1)
    assert list(settings().checkpoints_root.iterdir()) == []
    with pytest.raises(InputError, match="task argument 'x'"):
        bare.fn(b"x")


def test_where_results_live_cannot_be_chosen():
    with pytest.raises(UnderstudyError, match="result_storage"):
        load.result_storage = "elsewhere"


# Machine


def test_torch_is_set_up_where_the_task_reaches_it(tracked, monkeypatch):
    import torch

    @task(name="computes")
    def computes() -> list[int | bool]:
        import torch

        return [torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()]

    monkeypatch.setenv("UNDERSTUDY_THREADS", "3")
    try:
        torch.use_deterministic_algorithms(False)
        assert computes.fn() == [3, True]
    finally:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(False)


def test_a_task_that_needs_no_torch_does_not_wait_for_it(home):
    code = (
        "import sys; from understudy.tasks.engine.runtime import task\n"
        "import understudy.data.samples\n"
        "t = task(name='light')(understudy.data.samples.generate)\n"
        "try: t.fn('nothing')\nexcept Exception as error: print(type(error).__name__)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["InputError", "False"]


def test_cuda_that_is_not_there(monkeypatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA: the error cannot be seen")
    with pytest.raises(UnderstudyError, match="set UNDERSTUDY_DEVICE=cpu"):
        machine.prepare_torch(1, "cuda")


def test_a_missing_limit_is_said_without_the_password_of_its_server(monkeypatch):
    def refuse(*_args, **_options):
        raise machine.ConcurrencySlotAcquisitionError

    monkeypatch.setenv("PREFECT_API_URL", "http://me:swordfish@prefect:4200/api?token=swordfish")
    monkeypatch.setattr(machine, "concurrency", refuse)
    said = "PREFECT_API_URL=http://prefect:4200/api prefect"
    with pytest.raises(UnderstudyError, match=said) as refused, machine.gpu_slot("cuda"):
        pass
    assert "swordfish" not in str(refused.value)


def test_with_a_server_the_gpu_is_held_by_the_limit_of_that_server(tracked, monkeypatch, capsys):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate
    from prefect.settings import PREFECT_API_URL

    url = str(PREFECT_API_URL.value())
    monkeypatch.setenv("PREFECT_API_URL", url)
    inside, most = [], []
    entered, told, say_waiting = threading.Event(), threading.Event(), machine.say_waiting

    def work():
        with machine.gpu_slot("cuda") as index:
            assert index is None
            inside.append(1)
            most.append(len(inside))
            entered.set()
            told.wait(100)
            inside.pop()

    def telling(words):
        say = say_waiting(words)

        def tell(waited_s):
            say(waited_s)
            if inside and waited_s >= 2:
                told.set()

        return tell

    with machine.gpu_slot("cpu"):
        pass
    command = f"PREFECT_API_URL={url} prefect gcl create gpu --limit 1"
    with pytest.raises(UnderstudyError, match=command):
        work()
    with pytest.raises(InputError, match=command):
        gpu_limit(url)
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name="gpu", limit=1))
        try:
            assert gpu_limit(url).endswith(": 1")
            threads = [threading.Thread(target=work) for _ in range(2)]
            threads[0].start()
            assert entered.wait(100)
            capsys.readouterr()  # where its server answers late, the first one waits for a slot too
            monkeypatch.setattr(machine, "say_waiting", telling)
            threads[1].start()
            for thread in threads:
                thread.join()
            client.update_global_concurrency_limit("gpu", GlobalConcurrencyLimitUpdate(active=False))
            with pytest.raises(InputError, match="prefect gcl update gpu --limit 1 --enable"):
                gpu_limit(url)
        finally:
            client.delete_global_concurrency_limit_by_name("gpu")
    assert most == [1, 1]
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("waiting for")]
    assert said.endswith(f"for a slot of the concurrency limit 'gpu' of {url}"), "said by the second, once"
    assert not list(settings().locks_root.iterdir()), "the limit alone counts"


def test_errors_of_the_body_are_not_taken_for_a_missing_limit():
    with pytest.raises(ValueError, match="body"), machine.gpu_slot("cpu"):
        raise ValueError("body")

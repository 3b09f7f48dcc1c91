"""A flow that is killed where KILL_AT says; run by test_resume.py in a process and a working directory of its own."""

import hashlib
import os
import signal
import sys
from pathlib import Path

from prefect import flow
from pydantic import BaseModel

from understudy.artifacts.access import ArtifactRef, read_json, write_json
from understudy.privacy.labels import public
from understudy.tasks.engine import tracking
from understudy.tasks.engine.runtime import checkpoint_directory, progress, task

KILL_AT = os.environ.get("KILL_AT", "")
STEPS_RUN = Path(os.environ["STEPS_RUN"])


class Config(BaseModel, frozen=True):
    steps: int = 6


def die_if(where: str) -> None:
    if where == KILL_AT:
        os.kill(os.getpid(), signal.SIGKILL)


@task(name="seed")
def seed(value: str) -> ArtifactRef:
    """The start of the chain."""
    return write_json({"value": value}, kind="seed", label=public())


@task(name="chain")
def chain(start: ArtifactRef, config: Config) -> ArtifactRef:
    """Every step depends on the one before, and is written to a temporary file and renamed."""
    directory = checkpoint_directory()
    done = sorted(directory.glob("step-*"))
    value = done[-1].read_text() if done else read_json(start)["value"]
    for step in range(len(done), config.steps):
        with STEPS_RUN.open("a") as log:
            log.write(f"{step} ")
        value = hashlib.sha256(value.encode()).hexdigest()
        (directory / "temporary").write_text(value)
        (directory / "temporary").rename(directory / f"step-{step}")
        progress(step + 1, config.steps)
        die_if(f"step {step}")
    return write_json({"value": value}, kind="chain", label=public(), parents=[start])


@flow(name="killed", persist_result=False)
def killed(value: str) -> str:
    with tracking.parent_run("run-key", "killed", parameters={"value": value}):
        return chain(seed(value), Config()).id


def kill_after(module: object, name: str, where: str) -> None:
    """Die right after a function of the package has done its work for the task `chain`."""
    before = getattr(module, name)

    def patched(*args, **kwargs):
        result = before(*args, **kwargs)
        if "chain" in repr(args):
            die_if(where)
        return result

    setattr(module, name, patched)


if __name__ == "__main__":
    kill_after(tracking, "log_task", "tracked")
    sys.stdout.write(killed("start"))

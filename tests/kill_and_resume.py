"""What tests of killed runs share: a charge without a run, a kill, and digests of what two runs exported."""

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import fork_server
from homes import command_environment

from understudy.runs.request import RunRequest


def digests(out: Path) -> dict[str, str]:
    """sha256 of every exported file but the statement, which says when it was made."""
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((out / "export").rglob("*"))
        if path.is_file() and not path.name.startswith("statement")
    }


def reserve(request: RunRequest, method: str) -> None:
    """Charge a run and compute nothing: every copy of the home then draws the same noise."""
    from understudy.runs.registration import registered
    from understudy.tasks import (
        conditional_generation,
        gradient_matching,
        knowledge_distillation,
        preference_optimization,
    )
    from understudy.tasks.charging import charge, environment_of
    from understudy.tasks.engine.runtime import code_digest

    code = {
        "conditional-generation": lambda: [code_digest(conditional_generation.train.fn)],
        "gradient-matching": lambda: [code_digest(gradient_matching.release.fn)],
        "knowledge-distillation": lambda: [code_digest(knowledge_distillation.train.fn)],
        "preference-optimization": lambda: preference_optimization.charged_code("server"),
    }
    charge.fn(registered(request, method), environment=environment_of(*code[method]()), accept_new=False)


def kill_once(reached: Callable[[], object], words: Iterable[object], home: Path) -> None:
    """Kill a command of the shell once a condition holds; it asks the Prefect server of this session.

    Its imports are those of the fork server: the command begins with what it does.
    """
    from prefect.settings import PREFECT_API_URL

    with tempfile.TemporaryFile() as said:
        process = fork_server.start(
            ["-m", "understudy.flows.cli", *map(str, words)],
            environment=command_environment(home) | {"PREFECT_API_URL": str(PREFECT_API_URL.value())},
            streams=[said.fileno()] * 3,
        )
        while not reached():
            if process.poll() is not None:
                said.seek(0)
                raise AssertionError(said.read().decode()[-3000:])
            time.sleep(0.005)
        process.kill()

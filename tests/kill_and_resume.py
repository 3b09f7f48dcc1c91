"""Run one tiny flow again and again in a fresh process, killing it at given moments; print what it left.

    python kill_and_resume.py HOME OUT MODEL DATA

One process is one run. The test starts it, kills it with SIGKILL, starts it again, and compares digests with those
of a run that nobody killed, made from a copy of the same home, whose charge was already reserved.
"""

import hashlib
import json
import os
import sys
from pathlib import Path


def main(home: str, out: str, model: str, data: str) -> None:
    os.environ["UNDERSTUDY_HOME"] = home
    os.environ["UNDERSTUDY_EXCHANGE"] = f"{home}/exchange"
    os.environ["UNDERSTUDY_MLFLOW_URI"] = f"sqlite:///{home}/mlflow.db"
    os.environ["UNDERSTUDY_THREADS"] = "1"
    os.environ["UNDERSTUDY_DEVICE"] = "cpu"
    os.environ["PREFECT_LOGGING_LEVEL"] = "CRITICAL"
    from tests_support import SMALL

    from understudy.requests import Budget, RunRequest
    from understudy.settings import prepare_environment

    prepare_environment()
    from understudy.flows.conditional_generation import conditional_generation

    request = RunRequest(
        data=data,
        source="ward",
        out=out,
        epsilon=3.0,
        budget=Budget(epsilon=8, delta=0.015),
        model=model,
        samples=12,
        overrides=SMALL,
    )
    conditional_generation(request)
    sys.stdout.write(json.dumps(digests(Path(out))) + "\n")


def digests(out: Path) -> dict[str, str]:
    """sha256 of every exported file but the statement, which says when it was made."""
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((out / "export").rglob("*"))
        if path.is_file() and not path.name.startswith("statement")
    }


if __name__ == "__main__":
    main(*sys.argv[1:])

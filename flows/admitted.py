"""How every flow begins: the request is judged, its rows are stored, and the run has a name in MLflow."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from understudy.artifacts.access import ArtifactRef
from understudy.errors import UnderstudyError
from understudy.runs.registration import Admission, admit
from understudy.runs.request import RunRequest

C = TypeVar("C", bound=BaseModel)


@dataclass(frozen=True)
class Admitted(Generic[C]):
    """A run that may be charged.

    Attributes:
        run: what is public about it.
        config: its settings, of the method's own type.
        train: checked private rows.
        test: rows to measure with.
        key: names the run in MLflow; the same request on the same rows has the same.
    """

    run: Admission
    config: C
    train: ArtifactRef
    test: ArtifactRef
    key: str


def admitted(request: RunRequest, method: str, settings: type[C]) -> Admitted[C]:
    """Admit a request of one method.

    Raises:
        InputError: the user's input is wrong; nothing was registered then.
        BudgetRefused: the source's budget does not allow the charge.
    """
    run = admit(request, method)
    if run.train is None or run.test is None or not isinstance(run.config, settings):
        raise UnderstudyError(f"expected stored rows and settings of {method} after admission")
    key = hashlib.sha256(f"{request.model_dump_json()} {run.train.id} {run.test.id}".encode()).hexdigest()
    return Admitted(run, run.config, run.train, run.test, key)

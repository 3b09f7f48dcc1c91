"""What the command line says of words that it cannot read; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from understudy.errors import InputError

# What pydantic calls a value that it cannot read -> what was expected.
_EXPECTED = {
    "float_parsing": "a number, such as 3 or 0.5",
    "int_parsing": "a whole number, such as 100",
}
# Of commands and options that there are not, too; Typer has no name for it.
_UsageError: Any = typer.BadParameter.__base__


class Commands(TyperGroup):
    """All commands; a command or an option that is wrong or missing is refused in one line, as everything else is."""

    def make_context(self, *given: Any, **options: Any) -> Any:
        """Read the words up to the command.

        Raises:
            InputError: naming what was found.
        """
        with _refused_in_words():
            return super().make_context(*given, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for.

        Raises:
            InputError: naming the option, what was expected and what was found.
        """
        with _refused_in_words():
            return super().invoke(ctx)


@contextmanager
def _refused_in_words() -> Iterator[None]:
    try:
        yield
        return
    except _UsageError as error:
        told = in_words(error) if isinstance(error, typer.BadParameter) else _as_typer_says(error)
        if told is None:
            raise
    raise InputError(told)


def _as_typer_says(error: Any) -> str | None:
    """What Typer says, with where to read more; None of a whole help, for a group of commands without one."""
    said: str = error.format_message()
    called = error.ctx.command_path if error.ctx else "understudy COMMAND"
    return None if "\n" in said else f"{said.rstrip('.')}; {called} --help tells what it takes"


def in_words(error: typer.BadParameter) -> str | None:
    """What was expected, what was found and where to read more; None where Typer says it best."""
    param, called = error.param, error.ctx
    if param is None or called is None:
        return None
    name = param.opts[0] if param.param_type_name == "option" else str(param.name).upper()
    more = f"{called.command_path} --help tells what it takes"
    fault: list[Any] = getattr(error.__cause__, "errors", list)()
    if not fault:
        meant = (getattr(param, "help", None) or "").rstrip(".")
        return f"{name} is missing ({meant}); {more}" if type(error) is not typer.BadParameter and meant else None
    choices = fault[0]["msg"].partition(" is not one of ")[2].rstrip(".").replace("'", "")
    expected = f"one of {choices}" if choices else _EXPECTED.get(fault[0]["type"])
    return expected and f"{name} {fault[0]['input']}: expected {expected}; {more}"

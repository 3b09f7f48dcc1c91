"""What the command line says of an option that it cannot read; imports nothing heavy."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from understudy.errors import InputError

# What pydantic calls a value that it cannot read -> what was expected.
_EXPECTED = {
    "float_parsing": "a number, such as 3 or 0.5",
    "int_parsing": "a whole number, such as 100",
}


class Commands(TyperGroup):
    """All commands; an option that is wrong or missing is refused in one line, as everything else is."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for.

        Raises:
            InputError: naming the option, what was expected and what was found.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if (told := in_words(error)) is None:
                raise
        raise InputError(told)


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

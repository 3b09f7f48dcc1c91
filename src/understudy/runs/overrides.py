"""Settings over settings: `section.key=value` texts above what a config says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from understudy.errors import InputError

Config = TypeVar("Config", bound=BaseModel)


def apply_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """Apply `section.key=value` settings; values are JSON, or plain text where they are not.

    Raises:
        InputError: A setting has no `=`, names no field, or its value is out of bounds.

    >>> class Sizes(BaseModel):
    ...     width: int = 1
    >>> apply_overrides(Sizes(), ["width=3"]).width
    3
    """
    data = config.model_dump()
    for override in overrides:
        name, found, text = override.partition("=")
        if not found:
            raise InputError(f"--set {override}: expected section.key=value, for example train.epochs=3")
        _set(data, name.strip(), _parse(text.strip()))
    try:
        return type(config).model_validate(data)
    except ValidationError as error:
        refusals = [(_setting(data, entry["loc"]), entry) for entry in error.errors()]
        # A setting of several types has one refusal for each of them: that which looked farthest into it says most.
        about = [(name, entry) for name, entry in refusals if f"{name}.".startswith(f"{refusals[0][0]}.")]
        where, first = max(about, key=lambda refused: refused[0].count("."))
        wanted = dict.fromkeys(entry["msg"].removeprefix("Value error, ") for name, entry in about if name == where)
        parts = _at(config.model_dump(), where) if where else None
        if isinstance(parts, dict) and parts and not isinstance(first["input"], dict):
            raise InputError(
                f"--set {where}={first['input']!r}: expected one of its parts, --set {where}.KEY=VALUE with KEY one of "
                f"{', '.join(sorted(parts))}"
            ) from error
        # A rule about several settings names them itself; its input is the whole config.
        named = f"--set {where}={first['input']!r}" if where else "--set"
        raise InputError(f"{named}: {'; or: '.join(wanted)}") from error


def _setting(data: Any, location: Sequence[int | str]) -> str:
    """The name of the setting at a place that pydantic names, which names the types of a setting like its keys."""
    names: list[str] = []
    for part in location:
        if isinstance(data, dict) and part in data:
            names.append(str(part))
            data = data[part]
    return ".".join(names)


def _at(data: dict[str, Any], name: str) -> Any:
    found: Any = data
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _set(data: dict[str, Any], name: str, value: Any) -> None:
    if name == "profile":
        raise InputError("--set profile: expected the profile as --profile tiny|paper, for it fills the other fields")
    parts = name.split(".")
    section, inner = data, data
    for number, part in enumerate(parts):
        if not isinstance(inner, dict) or not inner:
            whole = ".".join(parts[:number])
            raise InputError(f"--set {name}: {whole} has no parts; expected --set {whole}=VALUE")
        if part not in inner:
            raise InputError(f"--set {name}: no such setting; expected one of {', '.join(sorted(inner))}")
        section, inner = inner, inner[part]
    section[parts[-1]] = value

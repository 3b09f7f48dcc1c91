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
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        # A rule about several settings names them itself; its input is the whole config.
        named = f"--set {where}={first['input']!r}" if where else "--set"
        raise InputError(f"{named}: {first['msg'].removeprefix('Value error, ')}") from error


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _set(data: dict[str, Any], name: str, value: Any) -> None:
    if name == "profile":
        raise InputError("--set profile: expected the profile as --profile tiny|paper, for it fills the other fields")
    *sections, key = name.split(".")
    inner: Any = data
    for section in sections:
        inner = inner.get(section) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or key not in inner:
        known = sorted(inner if isinstance(inner, dict) else data)
        raise InputError(f"--set {name}: no such setting; expected one of {', '.join(known)}")
    inner[key] = value

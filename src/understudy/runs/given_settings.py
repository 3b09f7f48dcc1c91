"""What a request says of the charged settings, whatever a version of Understudy adds to it.

The key of a charge names every charged setting, also those that nobody gave. A version that has one more setting, or
another default, has another key for the same request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from understudy.frozen import not_in_keys
from understudy.methods.method import Method

DIGEST = "digest"


def given_settings(method: Method[Any], config: BaseModel, charged: BaseModel) -> str:
    """The profile, and those of the charged settings that are not as it has them, as JSON; public.

    Args:
        method: whose settings they are.
        config: as asked for, before numbers stand in place of `auto`.
        charged: the charged settings of the run, which say what its public files hold.
    """
    profile = {name: value for name, value in config if name == "profile"}
    plain = type(config).model_validate(profile)
    known = not_in_keys(charged)  # by digests, which are added below, or without effect
    dumped = (method.charge.settings(each).model_dump(mode="json", exclude=known) for each in (config, plain))
    asked, usual = (dict(_leaves(each)) for each in dumped)
    given = {name: value for name, value in asked.items() if name not in usual or usual[name] != value}
    files = {name: value for name, value in _leaves(charged.model_dump(mode="json")) if name.endswith(DIGEST) and value}
    return json.dumps({**profile, **given, **files}, sort_keys=True)


def _leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of each setting."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value

"""From a request to the settings of its method; no row and no model is read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from understudy.errors import InputError
from understudy.methods import registry
from understudy.models.folders import model_folder
from understudy.runs.overrides import apply_overrides
from understudy.runs.public_tables import named_files
from understudy.runs.request import RunRequest, words_about


def configure(request: RunRequest, method: str) -> Any:
    """The method's settings: profile and --about, then --model and --samples, then each --set.

    Raises:
        InputError: when there is no such method, or an override names an unknown setting or a value out of bounds.
    """
    # As JSON: a model called 2024 is a name and no number.
    given = {"model": request.model, "samples": request.samples}
    shortcuts = [f"{name}={json.dumps(value)}" for name, value in given.items() if value is not None]
    chosen = registry.get(method)
    plain = chosen.config(profile=request.profile, about=words_about(request))
    try:
        config = apply_overrides(plain, [*shortcuts, *request.overrides])
    except InputError as error:
        raise InputError(_by_option(str(error), given)) from error
    if chosen.charge.by_epsilon is None:
        return config
    try:
        return chosen.charge.by_epsilon(config, request.epsilon is not None)
    except ValueError as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise InputError(first.removeprefix("Value error, ")) from None


def _by_option(said: str, given: Mapping[str, object]) -> str:
    """What is refused, under the option that the user gave: --model and --samples are settings by another name."""
    for name, value in given.items():
        for start in (f"--set {name}={value!r}: ", f"--set {name}: "):
            if value is not None and said.startswith(start):
                return f"--{name} {value}: {said.removeprefix(start)}"
    return said


@contextmanager
def profile_named(method: str, config: Any) -> Iterator[None]:
    """Within it, what is refused of a model says so where the profile chose that model and not the user."""
    try:
        yield
    except InputError as error:
        said = str(error)
        chosen = _from_profile(method, config)
        names = [name for name, value in chosen.items() if f"model={value!r}" in said]
        if not names:
            raise
        option = "--model NAME" if names[0] == "model" else f"--set {names[0]}=NAME"
        told = f"--profile {config.profile} chose the model: {said}; or name another: {option}"
        others = [name for name in named_files(config, {}) if name in chosen and name not in names]
        raise InputError(told + _missing_too({name: chosen[name] for name in others})) from error


def _missing_too(chosen: Mapping[str, str]) -> str:
    """Which of these settings name a model that is not here either, in words, so that all can be fetched at once."""
    missing = [f"{name}={value!r}" for name, value in chosen.items() if not _is_here(value)]
    return f". It chose further models that are missing: {', '.join(missing)}" if missing else ""


def _is_here(model: str) -> bool:
    try:
        model_folder(model)
    except InputError:
        return False
    return True


def _from_profile(method: str, config: Any) -> dict[str, str]:
    """Settings -> names that a profile gives other than the default does, and that no override has changed."""
    kind = registry.get(method).config
    default, profile, found = (
        dict(_named_values(each.model_dump())) for each in (kind(), kind(profile=config.profile), config)
    )
    return {name: value for name, value in profile.items() if default.get(name) != value == found.get(name)}


def _named_values(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Each text among the settings, under its name with those of its sections."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _named_values(value, f"{before}{name}.")
        elif isinstance(value, str):
            yield f"{before}{name}", value

"""Bases of the models that hold values, for their settings only: frozen, and filled from a profile.

No model inherits a method of its own from another, and no field but those that all methods' settings have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from understudy.errors import UnderstudyError
from understudy.quantities import NonEmpty, PublicSeed, Words, setting

B = TypeVar("B", bound=BaseModel)
Profile = Annotated[Literal["tiny", "paper"], Field(description="Which column of defaults fills the fields not given.")]
Profiles = Mapping[str, Mapping[str, Any]]  # profile -> the values that it gives, section by section


class Frozen(BaseModel):
    """A value: it cannot be changed, and a field that it does not know is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class DigestOf:
    """Marks a field that holds the sha256 of the files or rows that another field names.

    Once it is set, it says what they are, and the other field only where they lie.
    """

    field: str


@dataclass(frozen=True)
class NotInKeys:
    """Marks a field that changes nothing of what is computed, such as how long an answer is waited for."""


def not_in_keys(value: BaseModel) -> dict[str, Any]:
    """Fields that do not matter for what is computed, as pydantic's `exclude`.

    They are those marked `NotInKeys`, and those that only say where something lies, for its digest stands beside them.

    >>> class Base(Frozen):
    ...     model: str
    ...     model_digest: Annotated[str, DigestOf("model")] = ""
    >>> not_in_keys(Base(model="models/one")), not_in_keys(Base(model="models/one", model_digest="4f2a"))
    ({}, {'model': True})
    """
    found: dict[str, Any] = {}
    for name, field in type(value).model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, NotInKeys):
                found[name] = True
            elif isinstance(mark, DigestOf) and getattr(value, name):
                found[mark.field] = True
    inner = {name: not_in_keys(part) for name, part in value if isinstance(part, BaseModel)}
    return found | {name: part for name, part in inner.items() if part}


def of_kind(config: BaseModel, kind: type[B]) -> B:
    """A method's settings, of its own type.

    Raises:
        UnderstudyError: they are another method's.
    """
    if not isinstance(config, kind):
        raise UnderstudyError(f"expected settings of type {kind.__name__}, found {type(config).__name__}")
    return config


class Profiled(Frozen):
    """Settings with a field `profile`, which names the values of the fields that are not given.

    >>> class Sizes(Profiled):
    ...     profiles: ClassVar[Profiles] = {"paper": {"width": 256}}
    ...     profile: Profile = "tiny"
    ...     width: int = 8
    ...     depth: int = 2
    >>> Sizes(profile="paper", depth=6)
    Sizes(profile='paper', width=256, depth=6)
    """

    profiles: ClassVar[Profiles] = {}

    @model_validator(mode="before")
    @classmethod
    def _fill_from_profile(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        profile = data.get("profile", cls.model_fields["profile"].default)
        return _merge(cls.profiles.get(str(profile), {}), data)


class MethodSettings(Profiled):
    """What the settings of every method have; a method adds its own name as `method`, and `samples`."""

    profile: Profile = "tiny"
    model: NonEmpty = setting("tiny-llama", "Base model: shipped model, folder or hub id.")
    model_digest: Annotated[str, DigestOf("model")] = setting("", "sha256 of the files of `model`; set by the run.")
    about: Words = setting(
        "",
        "Public words that say what the rows are, such as one-sentence film reviews, for prompts; one line, at most "
        "200 characters. Default: by the names of source and column.",
    )
    public_seed: PublicSeed = setting(0, "Of all public randomness, such as sampling. Never of noise.")


def _merge(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` over `defaults`, section by section."""
    merged = dict(defaults)
    for key, value in given.items():
        default = defaults.get(key)
        merged[key] = _merge(default, value) if isinstance(default, Mapping) and isinstance(value, Mapping) else value
    return merged

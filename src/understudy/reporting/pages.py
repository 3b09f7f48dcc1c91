"""How a page of figures and its JSON are written: templates of this package, whole files, closed to others."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from understudy.durable import naming
from understudy.errors import InputError
from understudy.reporting.drawing import inline

if TYPE_CHECKING:
    from jinja2 import Environment

C = TypeVar("C", bound=BaseModel)


def stored_report(directory: Path) -> dict[str, Any]:
    """What report.json in a folder holds, of whatever kind the report is; nothing where it cannot be read as one."""
    try:
        found = json.loads((directory / "report.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def render(template: str, **content: Any) -> str:
    """The page that a template makes of its content; all text is escaped, but for drawings."""
    return str(_environment().get_template(template).render(**content))


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("understudy.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The only text that is not escaped here; `inline` lets nothing but a drawing pass.
    environment.filters["svg"] = inline
    return environment


def plain(value: Any) -> Any:
    """JSON values; infinities, which JSON lacks, become words."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_closed(path: Path, text: str) -> None:
    """Write a whole file of text, which nobody else may read (0600), in the place of an earlier one."""
    # Control characters are not allowed in HTML; a lone surrogate has no UTF-8 form.
    clean = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "\ufffd", text)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        # Computed from real rows: never for a moment open to other users.
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with naming(path), os.fdopen(descriptor, "wb") as file:
            file.write(clean.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read_content(directory: Path, kind: type[C], *, check: Callable[[C], object], format: str, whose: str) -> C:
    """What report.json in a folder says.

    Args:
        directory: the folder.
        kind: of the content.
        check: raises where its figures are no figures.
        format: of the file, as it names itself.
        whose: report it is, such as `a run`.

    Raises:
        InputError: when there is no report.json, or it is not one of this format.
    """
    path = directory / "report.json"
    if not path.exists():
        raise InputError(
            f"{path}: expected a report of {whose}, found none; name the folder that its --out named: "
            "`understudy purge` may have removed the report, and the run's command, repeated, makes one again"
        )
    try:
        content = kind.model_validate_json(path.read_bytes())
        check(content)
    except (OSError, ValidationError, InputError) as error:
        raise InputError(
            f"{path}: expected a report.json of the format {format}, found {_trouble(error)}; name the folder of "
            f"{whose} that this version finished"
        ) from error
    return content


def _trouble(error: OSError | ValidationError | InputError) -> str:
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"

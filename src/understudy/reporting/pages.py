"""How a page of figures and its JSON are written: templates of this package, whole files, closed to others."""

from __future__ import annotations

import functools
import math
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.durable import naming
from understudy.reporting.drawing import inline

if TYPE_CHECKING:
    from jinja2 import Environment


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

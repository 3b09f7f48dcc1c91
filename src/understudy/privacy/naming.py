"""How a public file or folder is named in what leaves: by its last part, for where it lies tells of the machine.

A digest says which file or folder was meant.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TypeVar

from understudy.frozen import MethodSettings

S = TypeVar("S", bound=MethodSettings)

_DIGITS = 12


def without_place(name: str) -> str:
    """The last part of a path; any other name as it is.

    A path is absolute, begins with "." or "~", or has more parts than an owner and a name.

    >>> without_place("/home/somebody/own"), without_place("~/pairs.parquet"), without_place("out/a/export/model")
    ('own', 'pairs.parquet', 'model')
    >>> without_place("owner/model"), without_place("sample:public"), without_place("own at http://localhost:8000/v1")
    ('owner/model', 'sample:public', 'own at http://localhost:8000/v1')
    """
    path = PurePath(name)
    is_path = path.is_absolute() or name.startswith((".", "~")) or (":" not in name and name.count("/") > 1)
    # Of "." and "/" nothing is left, and they tell nothing.
    return path.name or name if is_path else name


def named_table(spec: str, *, digest: str = "") -> str:
    """A public table by its name, with the beginning of its digest where one is known.

    >>> named_table("/home/somebody/pairs.parquet", digest="0123456789abcdef")
    'pairs.parquet (sha256 0123456789ab)'
    """
    return f"{without_place(spec)} (sha256 {digest[:_DIGITS]})" if digest else without_place(spec)


def without_model_place(settings: S) -> S:
    """Settings as they may leave: the base model by its name and its digest, not by its place.

    Nothing loads the base model by them: a step that needs it has the settings of the run.
    """
    return settings.model_copy(update={"model": without_place(settings.model)})

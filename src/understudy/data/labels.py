"""Labels: how they are declared, and which value of a column has which of them.

The list of labels is public. The user declares it; it is read from the rows only where the user asks for that.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence

import pyarrow as pa

from understudy.data.columns import label_values, require
from understudy.errors import InputError, RowError

_JSON = """'{"0": "news, sport", "1": "weather"}'"""
LABEL_OPTION = "--label-column"
MOST_LABELS_FOUND = 100
# XML has no room for them, and the report's figures are written in it.
_NONCHARACTERS = "\ufffe\uffff"


def parse_label_names(text: str) -> tuple[str, ...] | dict[str, str]:
    """Read the command line's list of labels.

    >>> parse_label_names("negative,positive")
    ('negative', 'positive')
    >>> parse_label_names("0=negative,1=positive")
    {'0': 'negative', '1': 'positive'}
    >>> parse_label_names('{"0": "news, sport", "1": "a=b"}')
    {'0': 'news, sport', '1': 'a=b'}

    Raises:
        InputError: when some entries name a value and others do not, a value comes twice, or JSON holds something else.
    """
    if text.lstrip()[:1] in ("{", "["):
        return _from_json(text)
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    pairs = [entry.partition("=") for entry in entries]
    if not any(separator for _, separator, _ in pairs):
        return tuple(entries)
    mapping = {value.strip(): name.strip() for value, separator, name in pairs if separator}
    if len(mapping) != len(pairs):
        raise InputError(
            f"--label-names {text}: expected VALUE=NAME for every label, each value once; values and names that hold a "
            f"comma or an equals sign are given as JSON, such as {_JSON}"
        )
    return mapping


def _from_json(text: str) -> tuple[str, ...] | dict[str, str]:
    """Names, or value -> name, as JSON: they may hold commas and equals signs."""
    try:
        pairs = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        pairs = None
    if isinstance(pairs, list) and all(isinstance(name, str) for name in pairs):
        return tuple(pairs)
    if isinstance(pairs, tuple) and len(dict(pairs)) == len(pairs) and all(isinstance(name, str) for _, name in pairs):
        return dict(pairs)
    raise InputError(
        f"--label-names {text}: expected what begins with {text.lstrip()[0]} to be JSON, a list of names or an object "
        f"of names by value, each value once, such as {_JSON}"
    )


def declared_names(label_names: Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    """The names in the order of their index, checked.

    Raises:
        InputError: there are fewer than two, one is empty or comes twice, or one holds a control character.
    """
    names = tuple(label_names.values() if isinstance(label_names, Mapping) else label_names)
    for place, name in enumerate(names, 1):
        if any(unicodedata.category(letter) in ("Cc", "Cs") or letter in _NONCHARACTERS for letter in name):
            raise InputError(
                f"label names: expected names of printable characters, found a control character in name {place} of "
                f"{len(names)}; remove it in --label-names"
            )
    is_empty = not all(name.strip() for name in names)
    if len(names) < 2 or len(set(names)) != len(names) or is_empty:
        empty = ", one of them empty" if is_empty else ""
        raise InputError(
            f"label names: expected at least two distinct names, none of them empty, found {len(set(names))} different "
            f"among {len(names)}{empty}; declare them, for example --label-names 0=negative,1=positive"
        )
    return names


def label_indices(
    label_names: Sequence[str] | Mapping[str, str], names: tuple[str, ...], kind: pa.DataType
) -> dict[str, int]:
    """Value in a column of this type -> index of its label.

    Raises:
        InputError: two declared values are one in a column of booleans.
    """
    if pa.types.is_integer(kind) and not isinstance(label_names, Mapping) and not _are_integers(names):
        return {str(index): index for index in range(len(names))}
    indices = {value: index for index, value in enumerate(label_names)}
    if not pa.types.is_boolean(kind):
        return indices
    # True, TRUE and true are one value of such a column.
    of_booleans = {value.lower(): index for value, index in indices.items()}
    if len(of_booleans) != len(indices):
        raise InputError(
            "--label-names: expected each value once, found one in upper and in lower case, which a column of booleans "
            "does not tell apart; give --label-names true=NAME,false=NAME"
        )
    return of_booleans


def refuse_positions(table: pa.Table, column: str, names: tuple[str, ...]) -> None:
    """Refuse names alone where the column holds numbers or booleans, which do not say whose name is whose.

    Nothing is read from the rows.

    Raises:
        InputError: the column is missing, or it has such a type and the names are not its values.
    """
    require(table, column, option=LABEL_OPTION)
    kind = table.schema.field(column).type
    is_open = pa.types.is_integer(kind) and not _are_integers(names)
    is_open |= pa.types.is_boolean(kind) and not {name.lower() for name in names} <= {"true", "false"}
    if is_open:
        raise InputError(
            f"--label-names is missing: column {column!r} holds {kind} values, and names alone do not say which value "
            "has which name; give --label-names VALUE=NAME,... with the names in the order in which they were declared"
        )


def labels_found(table: pa.Table, column: str) -> tuple[str, ...]:
    """The distinct values of a label column, sorted: using them as the label list declares them public.

    Raises:
        InputError: when the column is missing.
        RowError: when it has too many values to be one of labels.
    """
    found = sorted({value for value in label_values(table, column) if value is not None})
    if len(found) > MOST_LABELS_FOUND:
        raise RowError(
            f"column {column!r} has more than {MOST_LABELS_FOUND} different values: expected a column of labels; "
            "declare them with --label-names if it is one"
        )
    return tuple(found)


def _are_integers(names: tuple[str, ...]) -> bool:
    return all(name.lstrip("-").isdecimal() for name in names)

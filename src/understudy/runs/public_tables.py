"""What the settings name as public, tables and models: what is taken from them is published, so none may be private."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from understudy.artifacts.manifest import MANIFEST, PRIVATE_ID, read_manifest
from understudy.data.columns import text_columns
from understudy.data.digests import FEWEST_LETTERS, pair_digests, text_digests
from understudy.data.readers import SAMPLE, read_source, same_source
from understudy.errors import ArtifactDamaged, InputError, RowError
from understudy.frozen import DigestOf
from understudy.privacy.ledger.ledger import Ledger
from understudy.runs.earlier_releases import statement_of
from understudy.runs.file_origin import ARTIFACT, named_in
from understudy.runs.request import RunRequest
from understudy.runs.split import SplitRows

# Of texts of so many letters and digits, two tables share at most this part of the smaller one's by chance.
_BY_CHANCE: Final = ((FEWEST_LETTERS, 1 / 2), (20, 1 / 100))
# And however small they are, so many.
_FEW: Final = 3


def check_names(named: Mapping[str, str], request: RunRequest) -> None:
    """Refuse the place of the private rows as that of a public table; nothing is read.

    Args:
        named: name of a setting -> the public table that it names.
        request: names the private rows.

    Raises:
        InputError: naming the setting.
    """
    for setting, table in named.items():
        for option, private in (("--data", request.data), ("--test", request.test)):
            if private is not None and same_source(table, private):
                raise InputError(
                    f"{setting}={table}: expected a public table, found the private rows of {option}, which would be "
                    f"published; name another with --set {setting}=TABLE"
                )


def check_labels(config: BaseModel, named: Mapping[str, str], request: RunRequest) -> None:
    """Refuse what a run without noise left, for nothing that is made of it may leave or has a promise of its own.

    It is known by the manifest of its artifact, a table in the folder of a run by the id that the file names, and
    whatever lies in an export by the statement there, which promises nothing. A copy without any is not recognised.

    Args:
        config: settings, which name models and tables.
        named: name of a setting -> the public table that it names.
        request: names the private rows.

    Raises:
        InputError: naming the setting or option, not the artifact.
    """
    for setting, place in named_files(config, named).items():
        if _is_private(place):
            raise InputError(
                f"{setting}={place}: expected what is public, found what a run without noise left, which is as private "
                "as its rows and would be published; name another, or what a run with a finite --epsilon exported"
            )
    if _is_private(request.data):
        raise InputError(
            f"--data {request.data}: expected private rows, found what a run without noise made of some, each of whose "
            "rows may hold something of all of them, so that no promise would cover these; name the rows themselves"
        )


def named_files(config: BaseModel, named: Mapping[str, str]) -> dict[str, str]:
    """Name and value of each setting that names a model or a public table."""
    return {**dict(_with_digests(config)), **named}


def _with_digests(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of each setting that names files, which are those with a digest beside them."""
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from _with_digests(value, f"{prefix}{name}.")
        for mark in field.metadata:
            if isinstance(mark, DigestOf) and isinstance(place := getattr(config, mark.field), str):
                yield f"{prefix}{mark.field}", place


def _is_private(place: str) -> bool:
    """Whether a file or folder is of a private artifact, lies in an export that promises nothing, or names one."""
    path = Path(os.path.realpath(Path(place).expanduser()))
    if not os.path.exists(path):  # a sample, a named model
        return False
    if path.is_file() and PRIVATE_ID.fullmatch(named_in(path, ARTIFACT) or ""):
        return True
    if statement_of(place).get("verdict") == "none":
        return True
    return any(_is_private_artifact(folder) for folder in (path, *path.parents) if os.path.isfile(folder / MANIFEST))


def _is_private_artifact(folder: Path) -> bool:
    try:
        return read_manifest(folder).label.kind == "private"
    except ArtifactDamaged:  # somebody else's file of that name
        return False


def check_texts(named: Mapping[str, str], rows: SplitRows, ledger: Ledger) -> None:
    """Refuse a public table that holds a copy of private texts, in whatever format and under whatever names.

    Texts are compared as the ledger compares rows, one by one: every column of text of the public table with the text
    columns of the private one. Refused is a table that shares with the private one

    - all texts of the smaller of the two, or
    - more than three and more than half of its texts of five letters and digits or more, or
    - more than three and more than a hundredth of its texts of twenty or more.

    The rows of every source in the ledger, which knows no texts, are looked for in the same way; the size of a source
    is its declared number of units.

    So a copied file is refused, and so are a part of it and a table that it was put into. A few texts in common are let
    be. Stock phrases are in every table; a text that is public anyway tells nothing where it stands; and who took it
    out of the public table, because it is in the private one too, would tell just that. For this reason the message
    says neither which texts are meant nor how many, and its remedy is another table.

    The refusal depends on the rows, as every `RowError` does: it is for the owner's own terminal, and nothing was
    released or charged. Prefect and MLflow are not told of it. A shipped sample is public whatever the rows are.

    Args:
        named: name of a setting -> the public table that it names.
        rows: the private rows, to train and to measure on.
        ledger: knows the rows of every source.

    Raises:
        InputError: a public table cannot be read.
        RowError: naming the setting, whose table holds private texts.
    """
    read = {setting: table for setting, table in named.items() if not table.startswith(SAMPLE)}
    if not read:
        return
    columns = text_columns(rows.whole)
    private = text_digests(rows.whole, columns) | text_digests(rows.test, columns)
    for setting, table in read.items():
        try:
            public = read_source(table)
        except InputError as error:
            raise type(error)(f"{setting}={table}: {error}") from None
        texts = text_digests(public, public.column_names)
        if _is_copy(texts, private):
            raise RowError(
                f"{setting}={table}: expected a public table, found private texts of --data or --test in it, which "
                f"would be published; name another with --set {setting}=TABLE"
            )
        compared = chain([texts], pair_digests(public))
        source = next((found for some in compared for found in _registered(some, ledger)), None)
        if source is not None:
            raise RowError(
                f"{setting}={table}: expected a public table, found rows of source {source!r} in it, which would be "
                f"published; name another with --set {setting}=TABLE. If those rows are public after all, `understudy "
                f"purge --source {source} --forget-rows` forgets them"
            )


def _registered(public: Mapping[bytes, int], ledger: Ledger) -> Iterator[str]:
    """The sources with which a public table, digest -> its letters and digits, shares more than chance does."""
    owners = ledger.owners_of(public)
    for record in ledger.sources() if owners else ():
        both = {digest for digest, source in owners.items() if source == record.name}
        if _is_more_than_chance(public, both, [record.n] * (1 + len(_BY_CHANCE))):
            yield record.name


def _is_copy(public: Mapping[bytes, int], private: Mapping[bytes, int]) -> bool:
    """Whether two tables, digest of a text -> its letters and digits, share more than chance does."""
    return _is_more_than_chance(public, public.keys() & private.keys(), _sizes(private))


def _is_more_than_chance(public: Mapping[bytes, int], both: Set[bytes], others: Sequence[int]) -> bool:
    """Whether so many texts may not be in two tables, of which the other has these `_sizes`."""
    smaller = [min(pair) for pair in zip(_sizes(public), others, strict=True)]
    if 0 < len(both) == smaller[0]:
        return True
    return any(
        sum(public[text] >= letters for text in both) > max(_FEW, part * size)
        for (letters, part), size in zip(_BY_CHANCE, smaller[1:], strict=True)
    )


def _sizes(table: Mapping[bytes, int]) -> list[int]:
    """How many different texts there are, and how many of them are so long that they count."""
    return [len(table), *(sum(count >= letters for count in table.values()) for letters, _ in _BY_CHANCE)]

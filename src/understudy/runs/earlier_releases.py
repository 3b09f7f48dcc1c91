"""What a run takes for public and was itself released under a charge, with what that charge promises.

Whoever is among the rows of both is promised the sum of both, so the statement says so. What leaves a run is known by
the statement that lies beside it or above it in an export. An artifact of a store is known by its manifest, which says
what its own run promised and not what that run built on, so it is refused. So is a Parquet file that names its release,
such as one of further texts, where no statement is. A copy without any of these is not recognised.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from understudy.artifacts.manifest import CONTENT_ID, MANIFEST, read_manifest
from understudy.errors import ArtifactDamaged, InputError
from understudy.privacy.inherited import EarlierRelease
from understudy.privacy.labels import Guarantee
from understudy.privacy.naming import without_place
from understudy.runs.file_origin import ARTIFACT, RELEASED, named_in
from understudy.runs.folders import STATEMENT, STATEMENT_IN_WORDS, SYNTHETIC


def earlier_releases(
    named: Mapping[str, str],
    *,
    disjoint: Mapping[str, Collection[str]] = MappingProxyType({}),
    charged: Mapping[str, Guarantee] = MappingProxyType({}),
) -> tuple[EarlierRelease, ...]:
    """What each setting names that was released before, in the given order.

    Args:
        named: name of a setting -> the model or table that it names.
        disjoint: source that was declared to have no unit in common with the run's -> ids of its charges. A release
            may come from another ledger, where the same name is that of other rows, of which nothing was declared.
        charged: id of each charge of this ledger -> what it promises; a statement must not promise better.

    Raises:
        InputError: naming the setting; what it names was released, and no statement beside it says what it builds on,
            or one that the ledger contradicts.
    """
    found = {setting: (place, _promised(setting, place)) for setting, place in named.items()}
    for setting, (place, (promised, _)) in found.items():
        _check_as_charged(setting, place, promised, charged)
    of_others = {
        one.source
        for _, (promised, _) in found.values()
        for one in promised
        if one.charge_id not in disjoint.get(one.source, ())
    }
    return tuple(
        EarlierRelease(
            setting=setting,
            name=without_place(place),
            guarantees=promised,
            disjoint=tuple(sorted({one.source for one in promised} - of_others)),
            heuristic=heuristic,
        )
        for setting, (place, (promised, heuristic)) in found.items()
        if promised
    )


def _check_as_charged(
    setting: str, place: str, promised: Iterable[Guarantee], charged: Mapping[str, Guarantee]
) -> None:
    """Refuse a statement that promises better than a charge that it names: the sum with it would be too small."""
    for one in promised:
        own = charged.get(one.charge_id, one)
        names = ("source", "unit", "relation")
        alike = all(getattr(one, name) == getattr(own, name) for name in names)
        if not alike or one.epsilon < own.epsilon or one.delta < own.delta:
            raise InputError(
                f"{setting}={place}: expected the privacy statement that its run exported in {STATEMENT} above it, "
                f"found one that was changed: charge {one.charge_id} has epsilon={own.epsilon:g}, delta={own.delta:g} "
                f"of source {own.source!r} in the ledger; restore it, or repeat the run's command, which writes it anew"
            )


def note_of(release: EarlierRelease) -> str:
    """What is to be said of it before anything is charged."""
    if not release.adds:
        return (
            f"{release.in_words()}; that source was registered as disjoint from this run's, so the promises do not add"
        )
    return f"{release.in_words()}; whoever is in those rows too is promised the sum of both, which the statement says"


def statement_of(place: str | Path) -> Mapping[str, Any]:
    """The statement of the export that a file or folder lies in, as JSON; empty where it lies in none.

    It lies beside the statement, or in the folder of what was released, which may hold a further model.

    Raises:
        InputError: it lies in an export whose statement cannot be read, so that nobody knows what was promised.
    """
    path = Path(os.path.realpath(Path(place).expanduser()))
    for folder in path.parents if os.path.exists(path) else ():
        statement, below = _read(folder / STATEMENT), path.relative_to(folder).parts
        if not statement and _is_export(folder):
            raise InputError(
                f"{place}: expected the privacy statement of the export that it lies in, found none that can be read "
                f"in {folder / STATEMENT}; restore it, or repeat the run's command, which writes it anew"
            )
        if statement and (len(below) == 1 or _names(statement, below[0])):
            return statement
    return {}


def _is_export(folder: Path) -> bool:
    """Whether a folder is one that a run exported: its table lies beside a file that is called as a statement is."""
    statements = (folder / STATEMENT, folder / STATEMENT_IN_WORDS)
    return os.path.isfile(folder / SYNTHETIC) and any(map(os.path.lexists, statements))


def _names(statement: Mapping[str, Any], kind: str) -> bool:
    """Whether a statement says that something of this kind was released: its folder is called so."""
    return any(str(said).startswith(f"the {kind} ") for said in statement.get("released") or ())


def _read(file: Path) -> Mapping[str, Any]:
    """A statement; empty of somebody else's file of that name, and of one that cannot be read."""
    try:
        statement = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_ours = isinstance(statement, dict) and {"verdict", "ledger_entries"} <= statement.keys()
    return statement if is_ours else {}


def _promised(setting: str, place: str) -> tuple[tuple[Guarantee, ...], bool]:
    """What was promised, and whether any of it is heuristic."""
    path = Path(os.path.realpath(Path(place).expanduser()))
    if not os.path.exists(path):  # a sample, a named model
        return (), False
    statement = statement_of(place)
    stated, heuristic = _stated(setting, place, statement)
    folders = [folder for folder in (path, *path.parents) if os.path.isfile(folder / MANIFEST)]
    labelled = {one.charge_id for each in folders for one in _by_label(each)}
    if unsaid := labelled - {one.charge_id for one in stated}:
        raise InputError(
            f"{setting}={place}: expected what a run exported, with {STATEMENT} beside it, found an artifact that "
            f"charge {min(unsaid)} released, whose manifest does not say which earlier releases it builds on, so that "
            "their promises could not be added; name it in export/ of its run"
        )
    if not stated and (released := _release_of(path)):
        raise InputError(
            f"{setting}={place}: expected the privacy statement of its run beside it, found a table that names "
            f"{released}, which was released, and no {STATEMENT}, so that its promise could not be added; copy that "
            "file beside it, or name a table in export/ of the run"
        )
    if stated and (released := _unlisted(path, statement)):
        raise InputError(
            f"{setting}={place}: expected the privacy statement of its run beside it, found a table that was made of "
            f"{released} and the {STATEMENT} of another release, whose promise is not the table's; name the table "
            "where its own statement is"
        )
    return stated, heuristic


def _unlisted(path: Path, statement: Mapping[str, Any]) -> str:
    """The id of what a table was made of, where the statement that it lies beside does not list that, or ""."""
    named = named_in(path, RELEASED) if path.is_file() else None
    listed = [str(said).rpartition(" ")[2] for said in statement.get("released") or ()]
    return "" if named is None or named in listed else named


def _release_of(path: Path) -> str:
    """The id of what an exported table, or one of further texts, was made from, as the file says itself, or ""."""
    named = (named_in(path, RELEASED) or named_in(path, ARTIFACT)) if path.is_file() else None
    return named if named and CONTENT_ID.fullmatch(named) else ""


def _stated(setting: str, place: str, statement: Mapping[str, Any]) -> tuple[tuple[Guarantee, ...], bool]:
    """What the statement of an export promises, and what those promised that its run built on."""
    if not statement:
        return (), False
    try:
        earlier = [EarlierRelease.model_validate(one) for one in statement.get("inherited", ())]
        promised = _distinct((_guarantee(statement), *(one for each in earlier for one in each.guarantees)))
    except (ValueError, TypeError, LookupError):
        raise InputError(
            f"{setting}={place}: expected the privacy statement that its run exported in {STATEMENT} above it, found "
            "one that was changed or is of another version; restore it, or repeat the run's command, which writes it "
            "anew"
        ) from None
    return promised, statement["verdict"] == "heuristic" or any(one.heuristic for one in earlier)


def _guarantee(statement: Mapping[str, Any]) -> Guarantee:
    names = ("source", "unit", "relation", "epsilon", "delta", "accountant")
    charge = statement["ledger_entries"][0]["id"]
    return Guarantee(charge_id=charge, **{name: statement[name] for name in names})


def _by_label(folder: Path) -> tuple[Guarantee, ...]:
    try:
        return read_manifest(folder).label.guarantees
    except ArtifactDamaged:  # somebody else's file of that name
        return ()


def _distinct(guarantees: Iterable[Guarantee]) -> tuple[Guarantee, ...]:
    """One of each charge, the first."""
    found: dict[str, Guarantee] = {}
    for guarantee in guarantees:
        found.setdefault(guarantee.charge_id, guarantee)
    return tuple(found.values())

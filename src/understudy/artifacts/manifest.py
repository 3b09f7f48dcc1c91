"""What an artifact is made of: the manifest, the content address and the check of the files against it.

A manifest is the last file that is written, so a directory without one is not an artifact. It lists each
file's sha256 and size. The id of a public or released artifact is the sha256 of the canonical JSON of its
kind, files, label and parents; a private artifact has a random id, because a digest of private content is an
oracle for anyone who can guess a row.
"""

import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from understudy.errors import ArtifactDamaged, UnderstudyError, ZoneError
from understudy.frozen import Frozen
from understudy.privacy.labels import Label

MANIFEST = "manifest.json"
CONTENT_ID = re.compile(r"[0-9a-f]{64}")
PRIVATE_ID = re.compile(r"p[0-9a-f]{32}")
CHARGED_SOURCE = re.compile(r"source:(?P<source>[^@]+)@(?P<charge>.+)")

_Signature = tuple[tuple[str, int, int, int, int], ...]
# Directories hashed by this process; they are hashed again when an inode, a size or a time has changed. Whoever writes
# a file can put its time of modification back, but not that of its inode's change.
_checked: dict[str, tuple[_Signature, "Manifest"]] = {}


class FileEntry(Frozen):
    """One file of an artifact."""

    sha256: str
    size: int


class Manifest(Frozen):
    """The description that completes an artifact; `match` is an HMAC and only private artifacts have one."""

    format: Literal[1] = 1
    kind: str
    id: str
    label: Label
    parents: tuple[str, ...]
    files: dict[str, FileEntry]
    match: str | None = None

    def to_bytes(self) -> bytes:
        """The manifest as it is stored: canonical JSON."""
        return canonical_json(self.model_dump(mode="json"))


def new_private_id() -> str:
    """A random id that tells nothing about the content."""
    return f"p{secrets.token_hex(16)}"


def content_id(kind: str, files: dict[str, FileEntry], *, label: Label, parents: Sequence[str]) -> str:
    """The content address of a public or released artifact.

    >>> from understudy.privacy.labels import public
    >>> content_id("table", {}, label=public(), parents=())[:8]
    'ddcb9a84'
    """
    described = {
        "kind": kind,
        "files": {name: entry.model_dump() for name, entry in files.items()},
        "label": label.model_dump(mode="json"),
        "parents": list(parents),
    }
    return hashlib.sha256(canonical_json(described)).hexdigest()


def check_parents(label: Label, parents: Sequence[str]) -> None:
    """Refuse parents that would let a public or released artifact point into private content.

    A released artifact names a private parent as `source:NAME@CHARGE`, with a charge of its own label; a
    public one has only content-addressed parents. A private artifact may name anything.

    Raises:
        ZoneError: naming the parent that does not fit.
    """
    if label.kind == "private":
        return
    charges = {(g.source, g.charge_id) for g in label.guarantees}
    for parent in parents:
        if CONTENT_ID.fullmatch(parent):
            continue
        named = CHARGED_SOURCE.fullmatch(parent)
        if named is None or (named["source"], named["charge"]) not in charges:
            allowed = sorted(f"source:{source}@{charge}" for source, charge in charges)
            raise ZoneError(
                f"parent {parent!r} of an artifact labelled {label}: expected a content-addressed id"
                + (f" or one of {allowed}" if allowed else "")
                + "; private parents are named by source and charge, never by id"
            )


def check_inherited(label: Label, parents: Iterable[Label]) -> None:
    """Refuse a public or released artifact that has lost a guarantee of what it was made from.

    Raises:
        ZoneError: naming the charges.
    """
    charges = {g.charge_id for parent in parents for g in parent.guarantees}
    lost = sorted(charges - {g.charge_id for g in label.guarantees})
    if lost and label.kind != "private":
        raise ZoneError(
            f"an artifact labelled {label}: expected the guarantees of all that it was made from, found none of the "
            f"charges {', '.join(lost)}; join the labels of its parents"
        )


def describe_files(directory: Path) -> dict[str, FileEntry]:
    """Hash every file under `directory` except the manifest, by relative name.

    Raises:
        UnderstudyError: for a symbolic link, whose target could lie outside the artifact.
    """
    entries = {}
    for name, path in _walk(directory):
        if path.is_symlink():
            raise UnderstudyError(f"artifact file {name!r} is a symbolic link; write the file itself")
        entries[name] = FileEntry(sha256=_sha256(path), size=path.stat().st_size)
    return dict(sorted(entries.items()))


def remember_checked(directory: Path, manifest: Manifest) -> None:
    """Note that `directory` was just hashed, so that the next check only looks at sizes and times."""
    _checked[str(directory)] = (_signature(directory), manifest)


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of one artifact.

    Raises:
        ArtifactDamaged: when it is missing or unreadable.
    """
    try:
        return Manifest.model_validate_json((directory / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise ArtifactDamaged(
            f"artifact {directory.name}: expected a readable {MANIFEST} in {directory}, found "
            f"{type(error).__name__}; run the task that made it again"
        ) from None


def verify_directory(directory: Path) -> Manifest:
    """Check that `directory` holds exactly the files of its manifest, with their digests.

    Raises:
        ArtifactDamaged: naming the first file that is missing, extra, changed or a link, or the wrong address.
    """
    try:
        signature = _signature(directory)
    except OSError as error:
        raise ArtifactDamaged(f"artifact {directory.name}: {error.strerror} at {directory}") from None
    known = _checked.get(str(directory))
    if known is not None and known[0] == signature:
        return known[1]
    manifest = read_manifest(directory)
    found = describe_files(directory)
    for name in sorted(manifest.files.keys() | found.keys()):
        if manifest.files.get(name) != found.get(name):
            state = "missing" if name not in found else "changed" if name in manifest.files else "not listed"
            raise ArtifactDamaged(f"artifact {manifest.id}: file {name!r} is {state} in {directory}")
    _check_address(manifest)
    _checked[str(directory)] = (signature, manifest)
    return manifest


def _check_address(manifest: Manifest) -> None:
    if manifest.label.kind == "private":
        if not PRIVATE_ID.fullmatch(manifest.id):
            raise ArtifactDamaged(f"artifact {manifest.id}: a private artifact has a random id")
        return
    expected = content_id(manifest.kind, manifest.files, label=manifest.label, parents=manifest.parents)
    if manifest.id != expected:
        raise ArtifactDamaged(f"artifact {manifest.id}: its content has the address {expected}")


def _walk(directory: Path) -> Iterator[tuple[str, Path]]:
    for parent, folders, names in os.walk(directory):
        folders.sort()
        for name in names + [folder for folder in folders if (Path(parent) / folder).is_symlink()]:
            path = Path(parent) / name
            relative = path.relative_to(directory).as_posix()
            if relative != MANIFEST:
                yield relative, path


def _signature(directory: Path) -> _Signature:
    paths = [(MANIFEST, directory / MANIFEST), *_walk(directory)]
    stats = [(name, path.lstat()) for name, path in paths]
    for name, found in stats:
        if not stat.S_ISREG(found.st_mode):
            raise ArtifactDamaged(
                f"artifact {directory.name}: expected a regular file {name!r} in {directory}, found a link or another "
                "kind; remove it and run the task that made the artifact again"
            )
    return tuple(sorted((name, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for name, at in stats))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: object) -> bytes:
    """One byte string per JSON value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

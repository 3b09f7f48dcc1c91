"""The store behind a root: writing without half artifacts, finding, collecting and purging."""

import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from understudy.artifacts import object_stores
from understudy.artifacts.draft import finalize, new_name, open_draft, sweep
from understudy.artifacts.manifest import (
    CONTENT_ID,
    MANIFEST,
    PRIVATE_ID,
    FileEntry,
    Manifest,
    check_inherited,
    check_parents,
    content_id,
    describe_files,
    new_private_id,
    read_manifest,
    remember_checked,
    verify_directory,
)
from understudy.artifacts.reference import ArtifactRef, locate, path_of, reference_to
from understudy.durable import naming, sync
from understudy.errors import ArtifactDamaged, InputError, UnderstudyError, ZoneError
from understudy.locks import locked
from understudy.privacy.labels import Label
from understudy.settings import private_directory

# What was made more recently may belong to a run that has not recorded it yet.
YOUNG_S = 3600.0


@dataclass
class Draft:
    """An artifact being written: put the files into `path`; read `ref` after the `with` block."""

    path: Path
    _ref: ArtifactRef | None = field(default=None, repr=False)

    @property
    def ref(self) -> ArtifactRef:
        """The reference to the finished artifact."""
        if self._ref is None:
            raise UnderstudyError("draft.ref was read inside its `with` block; read it after the block")
        return self._ref


class ArtifactStore:
    """Artifacts under one root: a local path, or for the exchange store also an fsspec URL."""

    def __init__(self, root: str | Path, zone_kind: Literal["private", "exchange"]) -> None:
        self.root = str(root)
        self.zone_kind = zone_kind
        self._remote = object_stores.is_remote(self.root)
        if self._remote and zone_kind == "private":
            raise InputError(f"the private store must be a local directory, found {self.root}")
        self._local = object_stores.copies_root() if self._remote else locate_root(self.root)

    @contextmanager
    def write(
        self,
        *,
        kind: str,
        label: Label,
        parents: Sequence[ArtifactRef | str] = (),
        match: bytes | None = None,
    ) -> Iterator[Draft]:
        """Write one artifact: fill `draft.path`, and read `draft.ref` after the block.

        Nothing is stored when the block raises. Content that the store already holds is not stored twice:
        public and released artifacts are recognised by their address, private ones by `match`.

        Args:
            kind: what it holds.
            label: public or released in the exchange store, private in the private store.
            parents: references, ids, or `source:NAME@CHARGE` where a release comes from private rows.
            match: HMAC of the content under the source's key; private artifacts only.

        Raises:
            ZoneError: when label, store and parents do not fit, or a guarantee of a parent is lost.
            InputError: when the store cannot be written.
            OSError: when its disk is full; the error names the store.
        """
        ids = tuple(p.id if isinstance(p, ArtifactRef) else p for p in parents)
        self._check(label, ids, match)
        check_inherited(label, (p.label for p in parents if isinstance(p, ArtifactRef)))
        self._make_root()
        with naming(self._local), open_draft(self._local) as path:
            draft = Draft(path)
            yield draft
            files = describe_files(draft.path)
            if not files or (draft.path / MANIFEST).exists():
                raise UnderstudyError(f"a draft needs files, none named {MANIFEST}; found {list(files)}")
            manifest = _manifest(kind, files, label=label, parents=ids, match=match)
            draft._ref = self._commit(draft.path, manifest)

    def find_match(self, match: bytes) -> ArtifactRef | None:
        """The undamaged private artifact that was stored with the HMAC `match`, or None.

        Raises:
            ZoneError: in the exchange store, which must not know matches.
        """
        if self.zone_kind != "private":
            raise ZoneError("only the private store finds artifacts by HMAC; elsewhere the address does it")
        for manifest in self.manifests():
            if manifest.match == match.hex():
                try:
                    return reference_to(manifest, self._uri(manifest.id))
                except ArtifactDamaged:
                    continue
        return None

    def find(self, name: str) -> ArtifactRef:
        """The artifact of an id.

        Raises:
            ArtifactDamaged: it is gone, or not whole.
        """
        uri = self._uri(name)
        return reference_to(
            object_stores.manifest_at(uri) if self._remote else read_manifest(self._local / name),
            uri,
        )

    def path_of(self, ref: ArtifactRef) -> Path:
        """The local directory of `ref`, refused in the wrong zone."""
        return path_of(ref)

    def refs(self) -> Iterator[ArtifactRef]:
        """Every undamaged artifact of the store."""
        for manifest in self.manifests():
            try:
                yield reference_to(manifest, self._uri(manifest.id))
            except ArtifactDamaged:
                continue

    def gc(self, referenced: set[str], *, only: set[str] | None = None, older_than_s: float = YOUNG_S) -> list[str]:
        """Remove artifacts whose id is not in `referenced`, damaged ones and drafts of dead writers.

        What has no name of an artifact is left alone: a shared folder holds other things too.

        Args:
            referenced: ids that must stay.
            only: ids that may go, in a store that others share; None: all others.
            older_than_s: younger artifacts stay: the run that made them may not have recorded them yet.

        Returns:
            The ids removed.
        """
        now = time.time()
        names = [name for name in self._names() if name not in referenced and (only is None or name in only)]
        unwanted = [name for name in names if self._age(name, now) >= older_than_s]
        for name in unwanted:
            self._remove(name)
        sweep(self._local)
        return unwanted

    def derived_from(self, source: str, *, charges: Collection[str] | None = None) -> list[str]:
        """Ids of the artifacts whose label names `source`.

        Args:
            source: its name.
            charges: ids of its charges, in a store that others share, where another's source may have the same name: a
                release of another charge is not of this source. None: all of that name.
        """
        return [m.id for m in self.manifests() if source in _sources(m.label, charges)]

    def purge(self, source: str, *, charges: Collection[str] | None = None) -> list[str]:
        """Remove every artifact whose label names `source`: what is derived from its rows.

        Args:
            source: its name.
            charges: as `derived_from`.

        Returns:
            The ids removed.
        """
        unwanted = self.derived_from(source, charges=charges)
        for name in unwanted:
            self._remove(name)
        sweep(self._local)
        return unwanted

    def _check(self, label: Label, parents: tuple[str, ...], match: bytes | None) -> None:
        if (label.kind == "private") != (self.zone_kind == "private"):
            raise ZoneError(f"an artifact labelled {label} does not belong into the {self.zone_kind} store")
        if match is not None and self.zone_kind != "private":
            raise ZoneError("match= is the HMAC of private content and must not reach the exchange store")
        check_parents(label, parents)

    def check_writable(self) -> None:
        """Make the root if it is not there, and write a draft into it, which is removed.

        Raises:
            InputError: when it cannot be made or written; the message says how to fix it.
        """
        self._make_root()
        try:
            with open_draft(self._local) as draft:
                (draft / MANIFEST).write_bytes(b"{}")
            if self._remote:
                object_stores.try_writing(self.root)
        except OSError as error:
            raise self._unusable(error.strerror or type(error).__name__) from None

    def _make_root(self) -> None:
        if self.zone_kind == "private":
            private_directory(self._local)
            return
        try:
            self._local.mkdir(parents=True, exist_ok=True)
            if os.access(self._local, os.W_OK | os.X_OK):
                return
            found = "not writable"
        except OSError as error:
            found = error.strerror or type(error).__name__
        raise self._unusable(found)

    def _unusable(self, found: str) -> InputError:
        if self.zone_kind == "private":
            return InputError(f"expected a private store that can be written, found {self._local}: {found}")
        return InputError(
            f"expected an exchange store that can be written, found {self.root}: {found}; "
            "fix its permissions or set UNDERSTUDY_EXCHANGE to another directory or URL"
        )

    def _commit(self, draft: Path, manifest: Manifest) -> ArtifactRef:
        (draft / MANIFEST).write_bytes(manifest.to_bytes())
        finalize(draft, private=self.zone_kind == "private")
        if self.zone_kind == "private":
            with locked(self._local / ".lock"):
                known = self._same_private(manifest)
                return known or self._rename(draft, manifest)
        if not self._remote:
            return self._rename(draft, manifest)
        try:
            return reference_to(manifest, self._uri(manifest.id))
        except ArtifactDamaged:
            object_stores.upload(draft, self._uri(manifest.id))
            return reference_to(manifest, self._uri(manifest.id))

    def _same_private(self, manifest: Manifest) -> ArtifactRef | None:
        known = self.find_match(bytes.fromhex(manifest.match)) if manifest.match else None
        if known and (known.kind, known.label, known.parents) == (
            manifest.kind,
            manifest.label,
            manifest.parents,
        ):
            return known
        return None

    def _rename(self, draft: Path, manifest: Manifest) -> ArtifactRef:
        place = self._local / manifest.id
        for _ in range(3):
            try:
                draft.rename(place)
                sync(self._local)
                remember_checked(place, manifest)
                break
            except OSError:
                if not place.exists():
                    raise
                # Another writer of the same content was first; its artifact stays unless it is damaged.
                try:
                    verify_directory(place)
                    break
                except ArtifactDamaged:
                    self._remove(manifest.id)
        return reference_to(manifest, self._uri(manifest.id))

    def is_place(self, uri: str) -> bool:
        """Whether an artifact of this store may be at `uri`; nothing is read."""
        return uri == self._uri(uri.rsplit("/", 1)[-1])

    def _uri(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}" if self._remote else (self._local / name).as_uri()

    def _names(self) -> list[str]:
        """What has the name of an artifact: a shared folder or bucket may hold anything else beside them."""
        pattern = PRIVATE_ID if self.zone_kind == "private" else CONTENT_ID
        if self._remote:
            return sorted(name for name in object_stores.names(self.root) if pattern.fullmatch(name))
        if not self._local.is_dir():
            return []
        return sorted(p.name for p in self._local.iterdir() if pattern.fullmatch(p.name) and p.is_dir())

    def manifests(self) -> Iterator[Manifest]:
        """The manifest of every artifact of the store; its files are not looked at."""
        for name in self._names():
            try:
                uri, place = self._uri(name), self._local / name
                found = object_stores.manifest_at(uri) if self._remote else read_manifest(place)
            except ArtifactDamaged:
                continue
            # One that gives another name is not of this place, and what has its name is not to be removed for it.
            if found.id == name:
                yield found

    def _age(self, name: str, now: float) -> float:
        if self._remote:
            return object_stores.age_of(self._uri(name), now)
        for path in (self._local / name / MANIFEST, self._local / name):
            with suppress(OSError):
                return now - path.stat().st_mtime
        return 0.0

    def _remove(self, name: str) -> None:
        if self._remote:
            object_stores.remove(self._uri(name))
            return
        # Renamed first: a reader sees the whole artifact or none.
        doomed = new_name(self._local)
        try:
            (self._local / name).rename(doomed)
        except FileNotFoundError:
            return
        shutil.rmtree(doomed)


def locate_root(root: str) -> Path:
    """The local directory of a store root given as a path or a `file://` URL."""
    return locate(root) if root.startswith("file://") else Path(os.path.abspath(root))


def _manifest(
    kind: str,
    files: dict[str, FileEntry],
    *,
    label: Label,
    parents: tuple[str, ...],
    match: bytes | None,
) -> Manifest:
    private = label.kind == "private"
    identity = new_private_id() if private else content_id(kind, files, label=label, parents=parents)
    return Manifest(
        kind=kind,
        id=identity,
        label=label,
        parents=parents,
        files=files,
        match=match.hex() if match is not None else None,
    )


def _sources(label: Label, charges: Collection[str] | None) -> set[str]:
    counted = (guarantee for guarantee in label.guarantees if charges is None or guarantee.charge_id in charges)
    return {*label.sources, *(guarantee.source for guarantee in counted)}

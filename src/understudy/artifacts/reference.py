"""The reference to one artifact: small, JSON both ways, and it verifies itself."""

from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, ValidationError, model_validator

from understudy.artifacts.manifest import CONTENT_ID, PRIVATE_ID, Manifest, check_parents, verify_directory
from understudy.artifacts.object_stores import fetch, is_remote
from understudy.errors import ArtifactDamaged, ZoneError
from understudy.frozen import Frozen
from understudy.privacy.labels import Label
from understudy.settings import settings


class ArtifactRef(Frozen):
    """What is known of an artifact outside its store; equal content has equal ids, except private content.

    Loading a reference (from JSON, a cached result, a parameter) checks the stored files against the
    manifest, and the manifest against the reference. In the server zone a private one is never followed.
    """

    kind: str = Field(pattern=r"^[a-z][a-z0-9_-]*$", description="What it holds, say `model`.")
    id: str = Field(description="Content address, or a random id for a private artifact.")
    uri: str = Field(description="Where its directory is: `file:///...` or an fsspec URL.")
    label: Label
    parents: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _follow_store(cls, given: Any) -> Any:
        """A store that was moved still finds what it holds; what is there is checked against the reference."""
        if isinstance(given, dict) and isinstance(uri := given.get("uri"), str):
            return given | {"uri": _current_uri(uri)}
        return given

    @model_validator(mode="after")
    def _verify(self) -> Self:
        pattern = PRIVATE_ID if self.is_private else CONTENT_ID
        if not pattern.fullmatch(self.id) or self.uri.rsplit("/", 1)[-1] != self.id:
            raise ArtifactDamaged(f"artifact id={self.id!r} does not fit {self.label} and uri={self.uri!r}")
        check_parents(self.label, self.parents)
        if not (self.is_private and settings().zone == "server"):
            _check_against(verify_directory(locate(self.uri)), self)
        return self

    @property
    def is_private(self) -> bool:
        """Whether the artifact may not leave the client zone."""
        return self.label.kind == "private"


def reference_to(manifest: Manifest, uri: str) -> ArtifactRef:
    """The reference to the artifact that `manifest` describes.

    Raises:
        ArtifactDamaged: when it is not whole.
    """
    try:
        return ArtifactRef(kind=manifest.kind, id=manifest.id, uri=uri, label=manifest.label, parents=manifest.parents)
    except ValidationError as error:
        causes = [entry.get("ctx", {}).get("error") for entry in error.errors()]
        damage = next((cause for cause in causes if isinstance(cause, ArtifactDamaged)), None)
        raise damage or error from None


def path_of(ref: ArtifactRef) -> Path:
    """The local directory of an artifact; one behind a URL is copied first.

    Raises:
        ZoneError: for a private artifact in the server zone.
        ArtifactDamaged: when it is gone or changed.
    """
    if ref.is_private and settings().zone == "server":
        raise ZoneError(f"artifact {ref.id} is {ref.label}: it cannot be read in the server zone")
    directory = locate(ref.uri)
    verify_directory(directory)
    return directory


def locate(uri: str) -> Path:
    """The local directory behind `uri`."""
    if is_remote(uri):
        return fetch(uri)
    return Path(unquote(urlsplit(uri).path))


def private_place() -> Path:
    """Where private artifacts are kept."""
    return settings().private_root / "artifacts"


def _current_uri(uri: str) -> str:
    """`uri`, or where its artifact is under the settings of now, if nothing is at `uri` any more."""
    name = uri.rsplit("/", 1)[-1]
    if is_remote(uri) or locate(uri).exists():
        return uri
    if CONTENT_ID.fullmatch(name):
        root = settings().exchange
    elif PRIVATE_ID.fullmatch(name) and settings().zone != "server":
        root = str(private_place())
    else:
        return uri
    if is_remote(root):
        return f"{root.rstrip('/')}/{name}"
    place = locate(root) / name
    return place.absolute().as_uri() if place.exists() else uri


def _check_against(manifest: Manifest, ref: ArtifactRef) -> None:
    for field in ("kind", "id", "label", "parents"):
        if getattr(manifest, field) != getattr(ref, field):
            raise ArtifactDamaged(f"artifact {ref.id}: the reference's {field} is not the one that is stored")

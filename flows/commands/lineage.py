"""What `understudy lineage` does; imported only when it runs."""

from __future__ import annotations

import re
from pathlib import Path

from rich.text import Text
from rich.tree import Tree

from understudy.artifacts.access import ArtifactRef
from understudy.artifacts.manifest import PRIVATE_ID
from understudy.errors import InputError
from understudy.flows.commands.terminal import console, say
from understudy.runs.file_origin import change_of
from understudy.runs.folders import RUN_FILE, RunRecord, artifact_in, read_record
from understudy.runs.placement import INTERNAL
from understudy.tasks.engine.lineage import LineageNode

# Of a content address MLflow shows the first 36 characters.
_RECORDED_ID = re.compile(r"[0-9a-f]{36,64}")


def lineage(*, what: str, as_json: bool) -> None:
    """`understudy lineage`."""
    from understudy.settings import prepare_environment

    is_path = _exists(what)
    prepare_environment()
    root = _of_place(Path(what)) if is_path else _of_id(what)
    if as_json:
        console.print_json(root.model_dump_json())
        return

    def grow(tree: Tree, node: LineageNode) -> None:
        for parent in node.parents:
            grow(tree.add(_text_of(parent)), parent)

    tree = Tree(_text_of(root))
    grow(tree, root)
    console.print(tree)


def _exists(what: str) -> bool:
    """Whether there is a file or folder of this name.

    Raises:
        InputError: none can have it.
    """
    try:
        return Path(what).exists()
    except OSError as error:
        shown = what if len(what) <= 100 else f"{what[:50]}... (a text of {len(what)} characters)"
        raise InputError(
            f"{shown}: expected an artifact id, the --out folder of a finished run or an exported file, found: "
            f"{error.strerror}; give the id as statement.json or MLflow shows it, or a path that can be read"
        ) from None


def _of_id(what: str) -> LineageNode:
    """The lineage of a recorded artifact.

    Raises:
        InputError: it is of no recorded artifact.
    """
    from understudy.tasks.engine.tracking import lineage as trace

    if PRIVATE_ID.fullmatch(what):
        raise _unrecorded(what)
    if not _RECORDED_ID.fullmatch(what):
        raise InputError(
            f"{what}: expected an artifact id, the --out folder of a finished run or an exported file, found neither "
            "a file or folder of this name nor an artifact with this id; see to the path, or give the id as "
            "statement.json or MLflow shows it"
        )
    return trace(what)


def _of_place(place: Path) -> LineageNode:
    """The lineage of what a folder or a file holds; where no tracking store knows it, what its run's record tells.

    Raises:
        InputError: it names no artifact, or one of which nothing is recorded.
    """
    name = artifact_in(place)
    if place.is_file() and (told := change_of(place)):
        say(f"note: {told}; what follows made the rows that were written")
    try:
        return _of_id(name)
    except InputError as error:
        unknown = error
    record = _record_beside(place)
    if record is None or name not in (record.synthetic.id, record.released.id):
        raise unknown
    is_private = PRIVATE_ID.fullmatch(name)
    why = f"artifact {name} is private, so no tracking store knows it" if is_private else str(unknown)
    say(f"note: {why}; {INTERNAL}/{RUN_FILE} tells:")
    source = LineageNode(id=f"source:{record.source}@{record.charge_id}", kind="source")
    released = _node(record.released, source)
    return released if name == released.id else _node(record.synthetic, released)


def _record_beside(place: Path) -> RunRecord | None:
    """The record of the run that left `place`: its folder, its export/ or a file in there."""
    folder = place if place.is_dir() else place.parent
    try:
        found = [out for out in (folder, folder.absolute().parent) if (out / INTERNAL / RUN_FILE).is_file()]
        return read_record(found[0]) if found else None
    except PermissionError:  # of another user
        return None


def _unrecorded(name: str) -> InputError:
    return InputError(
        f"artifact {name}: expected one that was released, or is public, found a private one, of which no tracking "
        f"store records anything; give the --out folder of its run, whose {INTERNAL}/{RUN_FILE} names its source and "
        "charge"
    )


def _node(ref: ArtifactRef, parent: LineageNode) -> LineageNode:
    return LineageNode(id=ref.id, kind=ref.kind, label=str(ref.label), parents=(parent,))


def _text_of(node: LineageNode) -> Text:
    made = f", made by {node.task} (MLflow run {node.run_id})" if node.task else ""
    label = f" - {node.label}" if node.label else ""
    return Text(f"{node.kind} {node.id}{made}{label}{', purged' if node.purged else ''}")

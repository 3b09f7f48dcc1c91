import errno
import json
import os
import shutil
import signal
import stat
import time
from pathlib import Path

import forked
import pyarrow as pa
import pytest
from full_disk import files_of_at_most
from guarantees import GUARANTEE
from lasting_store import LastingFileSystem
from pydantic import ValidationError

from understudy.artifacts.access import (
    ArtifactRef,
    ArtifactStore,
    exchange_store,
    path_of,
    private_store,
    purge,
    read_json,
    read_table,
    store_for,
    write_json,
    write_table,
)
from understudy.errors import ArtifactDamaged, InputError, UnderstudyError, ZoneError
from understudy.privacy.labels import Label, private, public, released

TABLE = pa.table({"text": ["one", "two"], "label": [0, 1]})


def write_public(content: str = "x", kind: str = "note", parents=()) -> ArtifactRef:
    with exchange_store().write(kind=kind, label=public(), parents=parents) as draft:
        (draft.path / "folder").mkdir()
        (draft.path / "folder" / "file.txt").write_text(content)
    return draft.ref


def write_private(content: str = "x", match: bytes | None = None, source: str = "reviews") -> ArtifactRef:
    with private_store().write(kind="note", label=private(source), match=match) as draft:
        (draft.path / "file.txt").write_text(content)
    return draft.ref


def reload(ref: ArtifactRef) -> ArtifactRef:
    return ArtifactRef.model_validate_json(ref.model_dump_json())


def entries(root: str | Path) -> list[str]:
    return sorted(path.name for path in Path(root).iterdir() if not path.name.startswith(".lock"))


# References


def test_references_follow_stores_that_were_moved(home, tmp_path, monkeypatch):
    """Results and records hold whole paths: of a home that was moved, what was paid for was not found."""
    refs = [write_public(), write_private()]
    shutil.move(home, tmp_path / "moved")
    with pytest.raises(ValidationError, match=refs[0].id):
        reload(refs[0])
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "moved"))
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", str(tmp_path / "moved/exchange"))
    for ref in refs:
        found = reload(ref)
        assert found.uri != ref.uri
        assert path_of(found).parent.is_relative_to(tmp_path / "moved")
    assert entries(tmp_path / "moved/private/artifacts") == [refs[1].id]
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    assert reload(refs[1]).uri == refs[1].uri, "the server zone does not look for private ones"


@pytest.mark.parametrize("write", [write_public, write_private])
def test_reference_survives_json(write):
    ref = write()
    assert reload(ref) == ref
    assert hash(reload(ref)) == hash(ref)
    assert path_of(ref) == store_for(ref.label).path_of(ref)


def change(directory: Path) -> None:
    file = next(path for path in directory.rglob("file.txt"))
    # The same size: only the content tells.
    file.write_text("y")


def change_and_put_the_time_back(directory: Path) -> None:
    file = next(path for path in directory.rglob("file.txt"))
    before = file.stat()
    # The clock of a file system ticks every few milliseconds.
    while file.stat().st_ctime_ns == before.st_ctime_ns:
        file.write_text("y")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns


def link_file(directory: Path) -> None:
    file = next(path for path in directory.rglob("file.txt"))
    same = directory.with_name("same.txt")
    file.rename(same)
    file.symlink_to(same)


def add_link(directory: Path) -> None:
    (directory / "link").symlink_to("/nowhere")


def wait_for_ever(directory: Path) -> None:
    """Whoever opens a pipe that nobody writes to waits."""
    file = next(path for path in directory.rglob("file.txt"))
    file.unlink()
    os.mkfifo(file)


def remove_file(directory: Path) -> None:
    next(path for path in directory.rglob("file.txt")).unlink()


def add_file(directory: Path) -> None:
    (directory / "more.txt").write_text("y")


def remove_manifest(directory: Path) -> None:
    (directory / "manifest.json").unlink()


def break_manifest(directory: Path) -> None:
    (directory / "manifest.json").write_text("{")


DAMAGES = [
    *(change, change_and_put_the_time_back, remove_file, link_file, wait_for_ever, add_file, add_link),
    *(remove_manifest, break_manifest, shutil.rmtree),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("write", [write_public, write_private])
def test_damage_is_found_on_load_and_on_use(write, damage):
    ref = write()
    text = ref.model_dump_json()
    damage(path_of(ref))
    with pytest.raises(ValidationError, match=ref.id[:12]):
        ArtifactRef.model_validate_json(text)
    with pytest.raises(ArtifactDamaged):
        path_of(ref)


def test_a_reference_cannot_claim_another_label_kind_or_parent():
    ref = write_private()
    for field, value in [("kind", "model"), ("parents", ("p" + "0" * 32,)), ("label", private("other"))]:
        with pytest.raises(ValidationError, match=f"{ref.id}: the reference's {field}"):
            ArtifactRef.model_validate({**ref.model_dump(), field: value})
    with pytest.raises(ValidationError, match="does not fit"):
        ArtifactRef.model_validate({**ref.model_dump(), "label": public()})
    with pytest.raises(ValidationError, match="does not fit"):
        ArtifactRef.model_validate({**ref.model_dump(), "id": "p" + "0" * 32})


def test_a_manifest_cannot_claim_another_label():
    ref = write_public()
    path = path_of(ref) / "manifest.json"
    forged = json.loads(path.read_text())
    forged["label"] = released(GUARANTEE).model_dump(mode="json")
    path.write_text(json.dumps(forged))
    with pytest.raises(ValidationError, match=f"{ref.id}: its content"):
        ArtifactRef.model_validate({**ref.model_dump(), "label": released(GUARANTEE)})


# Identity


def test_the_address_is_of_kind_files_label_and_parents():
    ref = write_public()
    parent = write_public("parent")
    with exchange_store().write(kind="note", label=released(GUARANTEE)) as draft:
        (draft.path / "folder").mkdir()
        (draft.path / "folder" / "file.txt").write_text("x")
    others = [write_public("y"), write_public(kind="other"), write_public(parents=[parent]), draft.ref]
    assert write_public() == ref
    assert len({ref.id, *(other.id for other in others)}) == 5


def test_private_ids_are_random_and_nothing_in_the_reference_depends_on_content():
    one, two = write_private("same"), write_private("same")
    assert one.id != two.id
    assert one.model_dump(exclude={"id", "uri"}) == two.model_dump(exclude={"id", "uri"})


def test_private_content_is_matched_by_hmac():
    assert private_store().find_match(b"m1") is None
    ref = write_private("a", match=b"m1")
    assert private_store().find_match(b"m1") == ref
    assert private_store().find_match(b"m2") is None
    # A second writer of the same content gets the first artifact; other content or another source does not.
    assert write_private("a", match=b"m1") == ref
    assert write_private("b", match=b"m2") != ref
    assert write_private("a", match=b"m1", source="other") != ref
    change(path_of(ref))
    assert private_store().find_match(b"m1") != ref


def test_private_files_are_closed_to_others():
    with private_store().write(kind="note", label=private("reviews")) as draft:
        (draft.path / "folder").mkdir(mode=0o755)
        (draft.path / "folder" / "file.txt").write_text("x")
        (draft.path / "folder" / "file.txt").chmod(0o644)
        assert stat.S_IMODE(draft.path.stat().st_mode) == 0o700
    root = path_of(draft.ref)
    assert stat.S_IMODE(root.parent.stat().st_mode) == 0o700
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}
    assert modes == {True: 0o700, False: 0o600}


# Rules


def test_label_and_store_must_fit():
    with (
        pytest.raises(ZoneError, match=r"private\(reviews\).*exchange store"),
        exchange_store().write(kind="note", label=private("reviews")),
    ):
        pass
    with (
        pytest.raises(ZoneError, match=r"public.*private store"),
        private_store().write(kind="note", label=public()),
    ):
        pass
    with (
        pytest.raises(ZoneError, match=r"match=.*exchange store"),
        exchange_store().write(kind="note", label=public(), match=b"m"),
    ):
        pass
    with pytest.raises(ZoneError, match="private store finds"):
        exchange_store().find_match(b"m")


@pytest.mark.parametrize("label", [public(), released(GUARANTEE)])
def test_released_and_public_artifacts_refuse_private_parents(label):
    parent = write_private()
    for named in (parent, parent.id, "source:reviews@c2", "source:other@c1", "source:reviews"):
        with pytest.raises(ZoneError, match=f"parent '{getattr(named, 'id', named)}'.*content-addressed"):
            write_table(TABLE, kind="table", label=label, parents=[named])
    assert entries(exchange_store().root) == [] if Path(exchange_store().root).exists() else True


def test_a_release_names_its_private_parent_by_source_and_charge():
    base = write_public()
    ref = write_table(TABLE, kind="table", label=released(GUARANTEE), parents=[base, "source:reviews@c1"])
    assert ref.parents == (base.id, "source:reviews@c1")
    with pytest.raises(ZoneError):
        write_table(TABLE, kind="table", label=public(), parents=["source:reviews@c1"])


def test_what_is_made_of_a_release_keeps_its_guarantee():
    made = write_table(TABLE, kind="table", label=released(GUARANTEE), parents=["source:reviews@c1"])
    base = write_public("base")
    other = GUARANTEE.model_copy(update={"charge_id": "c2"})
    for label in (public(), released(other)):
        with pytest.raises(ZoneError, match="found none of the charges c1"):
            write_table(TABLE, kind="table", label=label, parents=[base, made])
    write_table(TABLE, kind="table", label=released(GUARANTEE, other), parents=[base, made])
    write_table(TABLE, kind="table", label=private("reviews"), parents=[base, made])


def test_private_artifacts_may_name_private_parents():
    parent = write_private()
    ref = write_table(TABLE, kind="table", label=private("reviews"), parents=[parent])
    assert ref.parents == (parent.id,)


def test_the_server_zone_never_touches_private_files(monkeypatch):
    ref = write_private()
    text = ref.model_dump_json()
    shutil.rmtree(path_of(ref))
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    loaded = ArtifactRef.model_validate_json(text)
    assert loaded == ref
    with pytest.raises(ZoneError, match=r"private\(reviews\).*server zone"):
        path_of(loaded)
    with pytest.raises(ZoneError, match=r"client zone.*UNDERSTUDY_ZONE=server"):
        private_store()


def test_a_draft_that_fails_leaves_nothing():
    def fail():
        with exchange_store().write(kind="note", label=public()) as draft:
            (draft.path / "file.txt").write_text("x")
            drafts.append(draft)
            raise RuntimeError("stop")

    drafts = []
    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert entries(exchange_store().root) == []
    with pytest.raises(UnderstudyError, match=r"draft\.ref.*after the block"):
        _ = drafts[0].ref


@pytest.mark.parametrize("name", [None, "manifest.json"])
def test_a_draft_needs_files_of_its_own(name):
    def write_only(name):
        with exchange_store().write(kind="note", label=public()) as draft:
            if name:
                (draft.path / name).write_text("x")

    with pytest.raises(UnderstudyError, match=r"needs files.*manifest\.json"):
        write_only(name)


def test_links_out_of_the_artifact_are_refused(tmp_path):
    (tmp_path / "outside").write_text("x")
    with (
        pytest.raises(UnderstudyError, match="symbolic link"),
        exchange_store().write(kind="note", label=public()) as draft,
    ):
        (draft.path / "link").symlink_to(tmp_path / "outside")


def test_a_store_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", str(tmp_path / "file" / "exchange"))
    with pytest.raises(InputError, match="set UNDERSTUDY_EXCHANGE"):
        write_public()
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", "nosuchprotocol://bucket")
    with pytest.raises(InputError, match=r"UNDERSTUDY_EXCHANGE=nosuchprotocol:.*fsspec"):
        write_public()


def draft_a_file(store: ArtifactStore, label: Label, content: bytes) -> None:
    with store.write(kind="note", label=label) as draft:
        (draft.path / "file").write_bytes(content)


@pytest.mark.parametrize("zone_kind", ["exchange", "private"])
def test_a_full_disk_is_told_with_the_place_of_the_store(zone_kind, home):
    store, label = (exchange_store(), public()) if zone_kind == "exchange" else (private_store(), private("reviews"))
    content = b"x" * 2**22
    random = pa.table({"text": [os.urandom(2**22).hex()]})
    for write in (
        lambda: draft_a_file(store, label, content),
        lambda: write_table(random, kind="note", label=label),
    ):
        with files_of_at_most(2**20), pytest.raises(OSError, match="File too large") as full:
            write()
        assert full.value.errno == errno.EFBIG
        assert str(store.root) in str(full.value)
    assert [name for name in entries(store.root) if not name.startswith(".lock")] == []


def test_an_error_that_names_its_file_or_is_not_of_a_disk_is_left_as_it_is():
    for error in (OSError(errno.ENOSPC, "full", "/elsewhere"), ConnectionResetError(errno.ECONNRESET, "reset")):
        named = error.filename
        with pytest.raises(OSError) as raised, exchange_store().write(kind="note", label=public()):  # noqa: PT011
            raise error
        assert raised.value.filename == named


# Crashes and races

WRITER = """
from understudy.artifacts.access import exchange_store, private_store
from understudy.privacy.labels import private, public
for number in range(10_000):
    for store, label in ((exchange_store(), public()), (private_store(), private("reviews"))):
        with store.write(kind="note", label=label) as draft:
            for part in range(5):
                (draft.path / f"{part}.bin").write_bytes(bytes([number % 256]) * 20_000)
    if number == 0:
        pipe.send("ready")  # both stores are there
"""


def test_a_killed_writer_leaves_whole_artifacts_and_a_draft_that_gc_removes():
    drafts = finished = 0
    for delay in (0.05, 0.11, 0.17, 0.23):
        writer, pipe = forked.start(WRITER)
        assert pipe.poll(60)
        assert pipe.recv() == "ready"
        time.sleep(delay)
        writer.kill()
        assert writer.returncode == -signal.SIGKILL
        for store in (exchange_store(), private_store()):
            names = entries(store.root)
            drafts += sum(name.startswith(".tmp-") for name in names)
            whole = [name for name in names if not name.startswith(".")]
            assert sorted(ref.id for ref in store.refs()) == whole
            finished += len(whole)
            assert store.gc(set(whole)) == []
            assert entries(store.root) == whole
    assert finished > 0
    assert drafts > 0, "no writer was killed while it was writing"


RACER = """
import time
from understudy.artifacts.access import exchange_store, private_store
from understudy.privacy.labels import private, public
store, label = {"exchange": (exchange_store(), public()), "private": (private_store(), private("reviews"))}[kind]
pipe.send("ready")
while not go.exists():
    time.sleep(0.001)
written = []
for number in range(20):
    match = bytes([number]) if label.kind == "private" else None
    with store.write(kind="note", label=label, match=match) as draft:
        (draft.path / "file.txt").write_text(f"content {number}")
    written.append(draft.ref.id)
pipe.send(written)
"""


@pytest.mark.parametrize("store_kind", ["exchange", "private"])
def test_writers_of_the_same_content_end_with_one(store_kind, tmp_path):
    racers = [forked.start(RACER, kind=store_kind, go=tmp_path / "go") for _ in range(3)]
    pipes = [pipe for _, pipe in racers]
    assert [pipe.poll(60) and pipe.recv() for pipe in pipes] == ["ready"] * 3
    (tmp_path / "go").touch()
    written = [pipe.poll(60) and pipe.recv() for pipe in pipes]
    assert [process.wait() for process, _ in racers] == [0] * 3
    store = exchange_store() if store_kind == "exchange" else private_store()
    assert written[0] == written[1] == written[2]
    assert len(written[0]) == 20
    assert entries(store.root) == sorted(written[0])


def test_a_damaged_artifact_is_replaced_by_the_next_writer():
    ref = write_public()
    change(path_of(ref))
    assert write_public() == ref
    assert (path_of(ref) / "folder" / "file.txt").read_text() == "x"


# Collecting


def test_gc_keeps_what_is_referenced_or_young_and_drafts_in_use():
    kept, old, young = write_public("kept"), write_public("old"), write_public("young")
    for ref in (kept, old):
        os.utime(path_of(ref) / "manifest.json", (1, 1))
    store = exchange_store()
    with store.write(kind="note", label=public()) as draft:
        (draft.path / "file.txt").write_text("in use")
        assert store.gc({kept.id}) == [old.id]
    assert {ref.id for ref in store.refs()} == {kept.id, young.id, draft.ref.id}
    assert set(store.gc({kept.id}, older_than_s=0)) == {young.id, draft.ref.id}


def test_gc_and_purge_leave_folders_of_others_alone(home):
    """A store may be named into a folder that holds other things."""
    sold = write_table(TABLE, kind="table", label=released(GUARANTEE))
    ours = write_private()
    for root, name in ((exchange_store().root, "photos"), (private_store().root, "notes")):
        (Path(root) / name).mkdir()
        (Path(root) / name / "file").write_text("somebody's")
        os.utime(Path(root) / name, (1, 1))
    shutil.copytree(path_of(sold), Path(exchange_store().root) / "copy of an artifact")
    manifest = json.loads((path_of(sold) / "manifest.json").read_text())
    liar = Path(exchange_store().root) / ("0" * 64)
    liar.mkdir()
    (liar / "manifest.json").write_text(json.dumps(manifest | {"id": "../exchange/photos"}))
    assert exchange_store().purge("reviews") == [sold.id]
    assert private_store().gc(set(), older_than_s=0) == [ours.id]
    assert exchange_store().gc(set(), older_than_s=0) == [liar.name]
    assert entries(exchange_store().root) == ["copy of an artifact", "photos"]
    assert entries(private_store().root) == ["notes"]


def test_gc_of_a_shared_store_removes_only_what_it_is_told():
    mine, theirs = write_public("mine"), write_public("theirs")
    assert exchange_store().gc(set(), only={mine.id}, older_than_s=0) == [mine.id]
    assert [ref.id for ref in exchange_store().refs()] == [theirs.id]


def test_an_artifact_without_a_manifest_goes_when_it_is_old():
    young, old = write_private("young"), write_private("old")
    for ref in (young, old):
        (path_of(ref) / "manifest.json").unlink()
    os.utime(Path(private_store().root) / old.id, (1, 1))
    assert private_store().gc(set()) == [old.id]
    assert entries(private_store().root) == [young.id]


def test_purge_removes_what_comes_from_a_source_in_both_stores():
    other = private("other")
    mine = [
        write_private(),
        write_table(TABLE, kind="table", label=private("reviews", "other")),
        write_table(TABLE, kind="table", label=released(GUARANTEE), parents=["source:reviews@c1"]),
    ]
    theirs = [write_public(), write_table(TABLE, kind="table", label=other)]
    assert set(purge("reviews", charges={"c1"})) == {ref.id for ref in mine}
    for ref in theirs:
        path_of(ref)
    for ref in mine:
        with pytest.raises(ArtifactDamaged):
            path_of(ref)


# Content


def test_tables_and_values_come_back():
    table = write_table(TABLE, kind="table", label=public())
    value = write_json({"a": [1.5, None], "b": "ü"}, kind="metrics", label=private("reviews"))
    assert read_table(table).equals(TABLE)
    assert read_json(value) == {"a": [1.5, None], "b": "ü"}
    with pytest.raises(InputError, match=r"table.*kind='metrics'"):
        read_table(value)
    with pytest.raises(InputError, match=r"JSON.*kind='table'"):
        read_json(table)


def test_a_table_leaves_no_trace_of_how_it_came_about():
    pieces = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]).replace_schema_metadata({"author": "Zibby"})
    longer = pa.concat_tables([TABLE, pa.table({"text": ["private"], "label": [9]})]).slice(0, 2)
    refs = {write_table(table, kind="table", label=public()).id for table in (TABLE, pieces, longer)}
    assert len(refs) == 1


# Behind a URL


@pytest.fixture
def bucket(monkeypatch, tmp_path) -> str:
    root = f"lasting://{tmp_path.name}/exchange"
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", root)
    return root


def test_artifacts_behind_a_url(bucket, home):
    ref = write_public("remote")
    assert ref.uri == f"{bucket}/{ref.id}"
    assert write_public("remote") == ref
    assert [found.id for found in exchange_store().refs()] == [ref.id]
    shutil.rmtree(home / "cache")
    assert (path_of(reload(ref)) / "folder" / "file.txt").read_text() == "remote"
    assert read_table(write_table(TABLE, kind="table", label=public())).equals(TABLE)


def test_the_manifest_decides_behind_a_url(bucket, home):
    ref = write_public("remote")
    memory = LastingFileSystem()
    remote = ref.uri.removeprefix("lasting:/")
    memory.pipe_file(f"{remote}/folder/file.txt", b"rEmote")
    # The local copy is still good; without it the damage shows, and the next writer fixes it.
    reload(ref)
    shutil.rmtree(home / "cache")
    with pytest.raises(ValidationError, match=r"file 'folder/file\.txt' is changed"):
        reload(ref)
    assert write_public("remote") == ref
    memory.rm_file(f"{remote}/manifest.json")
    with pytest.raises(ValidationError, match=r"no manifest\.json"):
        reload(ref)
    assert list(exchange_store().refs()) == []


def test_gc_and_purge_behind_a_url_leave_what_is_no_artifact(bucket, monkeypatch):
    ref = write_public("ours")
    memory = LastingFileSystem()
    remote = bucket.removeprefix("lasting:/")
    memory.pipe_file(f"{remote}/photos/manifest.json", b"somebody's")
    memory.pipe_file(f"{remote}/{'0' * 64}/manifest.json", b"{")
    assert [found.id for found in exchange_store().manifests()] == [ref.id]
    assert set(exchange_store().gc(set(), older_than_s=0)) == {ref.id, "0" * 64}
    assert memory.cat_file(f"{remote}/photos/manifest.json") == b"somebody's"
    again = write_public("of no age")
    monkeypatch.setattr(type(memory), "modified", lambda *_: (_ for _ in ()).throw(NotImplementedError))
    assert exchange_store().gc(set()) == [], "a running run may have made it"
    memory.rm(f"{remote}/{again.id}", recursive=True)
    exchange_store()._remove(again.id)  # somebody else was faster


def test_purge_in_a_shared_store_takes_only_what_its_own_charges_released():
    """Another home may have a source of the same name."""
    ours, theirs = (
        write_table(TABLE, kind="table", label=released(GUARANTEE.model_copy(update={"charge_id": charge})))
        for charge in ("c1", "c2")
    )
    rows = write_private()
    assert set(purge("reviews", charges={"c1"})) == {rows.id, ours.id}
    assert [ref.id for ref in exchange_store().refs()] == [theirs.id]


def test_temporary_files_of_others_are_left_alone():
    store = exchange_store()
    write_public()
    for name in (".tmp-backup", f".tmp-{'0' * 16}"):
        (Path(store.root) / name).mkdir()
        (Path(store.root) / f"{name}.lock").touch()
    store.gc(set())
    left = {path.name for path in Path(store.root).glob(".tmp-*")}
    assert left == {".tmp-backup", ".tmp-backup.lock"}


def test_gc_and_purge_behind_a_url(bucket):
    kept, gone = write_public("kept"), write_public("gone")
    assert exchange_store().gc({kept.id}) == []
    assert exchange_store().gc({kept.id}, older_than_s=0) == [gone.id]
    sold = write_table(TABLE, kind="table", label=released(GUARANTEE))
    assert exchange_store().purge("reviews") == [sold.id]
    assert [ref.id for ref in exchange_store().refs()] == [kept.id]


def test_the_private_store_is_local():
    with pytest.raises(InputError, match=r"local directory.*memory://bucket"):
        ArtifactStore("memory://bucket", "private")

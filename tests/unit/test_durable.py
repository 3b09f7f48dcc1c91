"""What is written is on the disk, with every folder that was made for it."""

import errno
import os
import signal
import stat

import pytest
from forked import called
from full_disk import files_of_at_most

from understudy import durable


def test_every_new_folder_is_synced_in_the_one_that_holds_it(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(durable, "sync", synced.append)
    path = tmp_path / "release-logs" / "charge" / "sum.safetensors"
    durable.write_atomically(path, b"noised")
    assert path.read_bytes() == b"noised"
    assert synced == [tmp_path, tmp_path / "release-logs", tmp_path / "release-logs" / "charge"]
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700
    synced.clear()
    durable.write_atomically(path, b"again")
    assert synced == [path.parent]


def test_a_full_disk_is_told_with_the_file_that_could_not_be_written(tmp_path):
    path = tmp_path / "checkpoints" / "step.safetensors"
    with files_of_at_most(2**20), pytest.raises(OSError, match=f"File too large: '{path}'"):
        durable.write_atomically(path, b"x" * 2**22)
    assert list(path.parent.iterdir()) == []


def killed_amid_writing(path, *, without_name):
    """In a process of its own."""

    def write(file):
        file.write(b"half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    if not without_name:
        durable._open_without_name = lambda _: None
    durable.write_new(path, write)


def killed_with_a_part_named(path):
    killed_amid_writing(path, without_name=False)


def killed_with_no_name(path):
    killed_amid_writing(path, without_name=True)


def test_a_kill_amid_a_new_file_leaves_nothing_in_its_folder(tmp_path):
    path = tmp_path / "more.parquet"
    assert called(killed_with_no_name, path) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
    durable.write_new(path, lambda file: file.write(b"whole"))
    assert path.read_bytes() == b"whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["more.parquet"]


def test_where_files_need_names_the_part_that_a_kill_left_is_removed(tmp_path, monkeypatch):
    path, others = tmp_path / "more.parquet", tmp_path / ".a-browser's.part"
    others.write_bytes(b"")
    assert called(killed_with_a_part_named, path) == -signal.SIGKILL
    assert {entry.name for entry in tmp_path.iterdir()} == {".more.parquet.part", others.name}
    durable.remove_parts(tmp_path, ending=".parquet")
    monkeypatch.setattr(durable, "_open_without_name", lambda _: None)
    durable.write_new(path, lambda file: file.write(b"whole"))
    assert path.read_bytes() == b"whole"
    assert {entry.name for entry in tmp_path.iterdir()} == {"more.parquet", others.name}


WAYS = ("without a name", "without a name to give", "with a name", "with one name only")


@pytest.fixture(params=WAYS)
def way(request, tmp_path_factory, monkeypatch):
    """How a file can be made on the file system: as here, and with what others lack taken away."""
    if request.param == "without a name to give":  # as where /proc shows no descriptors that can be linked
        monkeypatch.setattr(durable, "_DESCRIPTORS", tmp_path_factory.mktemp("fd"))
    elif request.param != "without a name":
        monkeypatch.setattr(durable, "_DESCRIPTORS", tmp_path_factory.mktemp("proc") / "fd")
    if request.param == "with one name only":

        def link(*_, **__):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", link)
    return request.param


def test_a_new_file_is_written_whole_and_on_the_disk_before_it_has_its_name(way, tmp_path, monkeypatch):
    path, synced = tmp_path / "more.parquet", []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_size, path.exists())))
    for _ in range(2):
        (tmp_path / ".more.parquet.part").write_bytes(b"what a kill left, longer than the file")
        durable.write_new(path, lambda file: file.write(b"w" * 9) and file.seek(2) and file.write(b"hol"))
        assert path.read_bytes() == b"wwholwwww"
        assert (9, False) in synced, "the content, before the name"
        assert synced[-1][1], "the name"
        path.unlink()
        synced.clear()


def test_a_file_that_came_meanwhile_is_not_overwritten(way, tmp_path):
    path = tmp_path / "more.parquet"

    def write(file):
        file.write(b"whole")
        path.write_bytes(b"another's")

    with pytest.raises(FileExistsError):
        durable.write_new(path, write)
    assert path.read_bytes() == b"another's"
    assert [entry.name for entry in tmp_path.iterdir()] == ["more.parquet"]


def test_a_write_that_fails_leaves_nothing(way, tmp_path):
    def write(file):
        file.write(b"half")
        raise ValueError("no more rows")

    with pytest.raises(ValueError, match="no more rows"):
        durable.write_new(tmp_path / "more.parquet", write)
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_may_be_read_by_whom_the_umask_lets_read_it(way, tmp_path):
    before = os.umask(0o027)
    try:
        durable.write_new(tmp_path / "more.parquet", lambda file: file.write(b"whole"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "more.parquet").stat().st_mode) == 0o640

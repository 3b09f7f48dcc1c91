"""What is written is on the disk, with every folder that was made for it."""

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


@pytest.mark.parametrize("without_name", [True, False])
def test_a_new_file_may_be_read_by_whom_the_umask_lets_read_it(without_name, tmp_path, monkeypatch):
    if not without_name:
        monkeypatch.setattr(durable, "_open_without_name", lambda _: None)
    before = os.umask(0o027)
    try:
        durable.write_new(tmp_path / "more.parquet", lambda file: file.write(b"whole"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "more.parquet").stat().st_mode) == 0o640

"""What is written is on the disk, with every folder that was made for it."""

import stat

import pytest
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

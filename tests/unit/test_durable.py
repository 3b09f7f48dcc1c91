"""What is written is on the disk, with every folder that was made for it."""

import stat

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

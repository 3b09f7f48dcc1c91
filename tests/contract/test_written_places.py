"""Whatever a run writes elsewhere is found, also what is gone a moment later."""

import sqlite3
import tempfile
from pathlib import Path

import pytest
import torch
from contract.written_places import outside, without_compiling, written_places
from safetensors.torch import save_file


def opened(folder: Path) -> None:
    (folder / "a").write_text("")


def gone(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder):
        pass


def made(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a").rmdir()


def renamed(folder: Path) -> None:
    (folder.parent / "home" / "kept").rename(folder / "a")


def linked(folder: Path) -> None:
    (folder / "a").symlink_to(folder)


def connected(folder: Path) -> None:
    sqlite3.connect(f"file:{folder / 'a'}?mode=rwc", uri=True).close()


def compiled(folder: Path) -> None:
    save_file({"a": torch.ones(1)}, folder / "a")


@pytest.mark.parametrize("write", [opened, gone, made, renamed, linked, connected, compiled])
def test_a_write_elsewhere_is_found(write, tmp_path):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    (home / "kept").write_text("")
    with written_places() as places:
        write(elsewhere)
    assert any(str(elsewhere) in place for place in outside(places, [home], empty=[elsewhere]))


def test_reading_and_writing_at_home_are_not(tmp_path):
    with written_places() as places:
        (tmp_path / "a").write_text("words")
        (tmp_path / "a").read_text()
        Path(__file__).read_text()
        tmp_path.mkdir(exist_ok=True)
    assert outside(places, [tmp_path], empty=[]) == []
    assert str(tmp_path / "a") in places


def test_of_a_folder_that_kernels_are_compiled_in_only_their_code_is_passed_over(tmp_path):
    folder = tmp_path / "tmp0abc_xyz"
    with written_places() as places:
        folder.mkdir()
        for path in (folder / "cuda_utils.c", folder / "words", tmp_path / "tmp0abc_xyz.ptx", tmp_path / "words.ptx"):
            path.write_text("")
    assert without_compiling(places, tmp_path) == {str(folder / "words"), str(tmp_path / "words.ptx")}

"""What is made in a private folder is closed to others, whoever makes it; an export has the user's umask."""

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked import called
from homes import has_access_lists

from understudy.errors import InputError, UnderstudyError
from understudy.privacy.ledger.head import Head
from understudy.runs.placement import put_in_place
from understudy.settings import private_directory, settings


def modes(folder):
    return {path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


@pytest.fixture(autouse=True)
def open_umask(tmp_path):
    """A user whose files everybody may read and write."""
    if not has_access_lists(tmp_path):
        pytest.skip("the file system of temporary folders has no access lists of POSIX")
    before = os.umask(0)
    yield
    os.umask(before)


def test_files_of_other_libraries_and_processes_are_closed_from_the_first_byte(tmp_path):
    private = private_directory(tmp_path / "private")
    (private / "inner").mkdir()
    with (private / "inner" / "text").open("w") as file:
        assert modes(private)["inner/text"] == 0o600, "before anything is written"
        file.write("private")
    pq.write_table(pa.table({"text": ["private"]}), private / "inner" / "table.parquet")
    script = "import os, sys; os.makedirs('deep/er'); open('deep/er/file', 'w').write('private')"
    subprocess.run([sys.executable, "-c", script], cwd=private, check=True, timeout=60)
    assert set(modes(private).values()) == {0o700, 0o600}
    assert modes(private)["deep/er/file"] == 0o600


def test_a_database_and_what_sqlite_puts_beside_it_are_closed(tmp_path):
    private = private_directory(tmp_path / "private")
    with closing(sqlite3.connect(private / "prefect.db")) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table rows (text)")
        connection.commit()
        assert modes(private) == dict.fromkeys(("prefect.db", "prefect.db-wal", "prefect.db-shm"), 0o600)


def test_a_home_that_is_there_already_closes_what_is_made_in_it_later(tmp_path, monkeypatch):
    """As Prefect makes its folder in it."""
    home = tmp_path / "older"
    home.mkdir(mode=0o700)
    (home / "ledger.db").touch(0o600)
    monkeypatch.setenv("UNDERSTUDY_HOME", str(home))
    settings()
    (home / "prefect").mkdir()
    (home / "prefect" / "prefect.db").touch()
    assert modes(home) == {"ledger.db": 0o600, "prefect": 0o700, "prefect/prefect.db": 0o600}


def test_internal_is_closed_while_it_is_filled_and_an_export_has_the_users_umask(tmp_path):
    seen = {}

    def fill(folder):
        (folder / "report").write_text("figures")
        seen.update(modes(folder))

    os.umask(0o027)
    put_in_place(tmp_path, fill, fill_export=lambda folder: (folder / "texts").touch())
    assert seen == {"report": 0o600}
    (tmp_path / "internal" / "later").touch()
    assert modes(tmp_path / "internal") == {"report": 0o600, "later": 0o600}
    assert modes(tmp_path / "export") == {"texts": 0o640}


SOMEBODY = 65534


def told_how_to_get_it_back(folder) -> None:
    """In a process of root's own, that goes on as the home's user."""
    os.chdir(folder)  # whose path this user may not follow
    os.chown("home", SOMEBODY, SOMEBODY)
    os.setgid(SOMEBODY)
    os.setuid(SOMEBODY)
    back = "of user root, as after a command under sudo, so give it back: sudo chown -R nobody home"
    with pytest.raises(UnderstudyError, match=f"head cannot be read: Permission denied; it is {back}"):
        Head(Path("home/ledger.head"), required=True).read()
    with pytest.raises(InputError, match=f"found home/private: .*; it is {back}"):
        private_directory(Path("home/private"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_what_a_command_under_sudo_left_in_a_home_is_told_with_how_to_get_it_back(tmp_path):
    """Its owner could not go on, and was told to fix it."""
    tmp_path.chmod(0o755)
    (tmp_path / "home/private").mkdir(parents=True, mode=0o700)
    (tmp_path / "home/private").chmod(0o700)
    (tmp_path / "home/ledger.head").touch(mode=0o600)
    (tmp_path / "home").chmod(0o700)
    assert called(told_how_to_get_it_back, tmp_path) == 0

"""A fresh ledger database for each test: a SQLite file, or a database of a real PostgreSQL server."""

import grp
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SECRET = b"the client zone's secret, for tests"


def _binary(name: str) -> str | None:
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*map(str, places), os.environ.get("PATH", "")]))


def _as_other_user() -> tuple[list[str], str, str]:
    """How to run the server (which refuses to be root), under which user and group."""
    if os.geteuid() != 0:
        user = pwd.getpwuid(os.geteuid())
        return [], user.pw_name, grp.getgrgid(user.pw_gid).gr_name
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("PostgreSQL refuses to run as root and there is no setpriv to change the user")
    user = next((pwd.getpwnam(n) for n in ("postgres", "nobody") if n in {u.pw_name for u in pwd.getpwall()}), None)
    if user is None:
        pytest.skip("PostgreSQL refuses to run as root and there is no user postgres or nobody")
    group = grp.getgrgid(user.pw_gid).gr_name
    return [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"], user.pw_name, group


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a database on a server of our own, which listens on a socket only."""
    initdb, postgres = _binary("initdb"), _binary("postgres")
    if not initdb or not postgres:
        pytest.skip("no PostgreSQL binaries (initdb, postgres) on PATH or in /usr/lib/postgresql/*/bin")
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    prefix, user, group = _as_other_user()
    home = Path(tempfile.mkdtemp(prefix="understudy-pg-"))
    shutil.chown(home, user, group)
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": str(home)}
    data = home / "data"
    command = [*prefix, initdb, "-D", str(data), "-U", "understudy", "-A", "trust", "-N", "-E", "UTF8"]
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=home)
    # Two connections more than any test opens; no durability is needed to test serialisation.
    options = ["-k", str(home), "-h", "", "-c", "fsync=off", "-c", "max_connections=40"]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            [*prefix, postgres, "-D", str(data), *options], stdout=log, stderr=log, env=environment, cwd=home
        )
    try:
        _wait_for(home / ".s.PGSQL.5432", server)
        yield f"postgresql://understudy@/postgres?host={home}"
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: nothing in it is kept
        server.wait(timeout=30)
        shutil.rmtree(home)


def _wait_for(socket: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not socket.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError((socket.parent / "log").read_text())
        time.sleep(0.05)


_COLUMNS = """
SELECT relname, attname FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND attnum > 0 AND NOT attisdropped
"""


@pytest.fixture
def postgresql_url(request: pytest.FixtureRequest, postgresql_server: str) -> str:
    """The URL of a database without what an earlier test left in it.

    For tests that begin with a ledger, whole tables are only emptied: to make them anew takes longer than most tests.
    """
    import psycopg

    from understudy.privacy.ledger.database import METADATA

    wanted = {(table.name, column.name) for table in METADATA.sorted_tables for column in table.columns}
    empty = "; ".join(f"DELETE FROM {table.name}" for table in reversed(METADATA.sorted_tables))
    drop = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"

    socket = postgresql_server.split("host=")[1]
    deadline = time.monotonic() + 60
    while True:
        try:
            with psycopg.connect(host=socket, user="understudy", dbname="postgres", autocommit=True) as connection:
                whole = "ledger" in request.fixturenames and set(connection.execute(_COLUMNS)) == wanted
                connection.execute(empty if whole else drop)
            return postgresql_server
        except psycopg.OperationalError:
            # The socket appears a moment before the server takes connections.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty ledger database, one test run for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("postgresql_url")

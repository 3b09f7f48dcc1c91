"""The client zone's secret: its file, its loss, its rotation, also when killed half-way."""

import signal
import sqlite3
import stat

import forked
import pytest
from unit.privacy.ledger.ledger_requests import asked

from understudy.errors import InputError, UnderstudyError, ZoneError
from understudy.privacy.ledger import secret as keys
from understudy.privacy.ledger import stored_secrets
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.privacy.ledger.upkeep import rotate_stored_secret

OLD = b"the first secret, 32 bytes or more"
NEW = b"the second secret, 32 bytes or more"
ROW = b"digest of a row"


def with_sources(ledger):
    for name in ("reviews", "clinic"):
        ledger.register(
            SourceRecord(name=name, unit="example", relation="replace_special", epsilon=8, delta=1e-3, n=900)
        )
    return ledger


@pytest.fixture
def ledger(url):
    return with_sources(Ledger(url, secret=OLD))


def test_open_makes_a_secret_that_only_its_owner_can_read(home):
    ledger = with_sources(Ledger.open())
    path = home / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes().strip()) == 64
    assert sorted(p.name for p in home.iterdir()) == ["ledger.db", "ledger.head", "ledger.head.lock", "secret"]
    tag = ledger.hmac("reviews", b"content")
    assert Ledger.open().hmac("reviews", b"content") == tag
    assert path.read_bytes().strip() not in (home / "ledger.db").read_bytes()


def test_open_takes_the_secret_of_the_environment(home, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_SECRET", OLD.decode())
    charge = with_sources(Ledger.open()).reserve(**asked())
    assert not (home / "secret").exists()
    assert charge.key_id == keys.key_id(OLD)


def test_open_is_refused_in_the_server_zone(home, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    with pytest.raises(ZoneError, match=r"client zone.*unset UNDERSTUDY_ZONE"):
        Ledger.open()
    assert not (home / "ledger.db").exists()


def test_a_lost_secret_is_named_and_never_replaced(home):
    charge = with_sources(Ledger.open()).reserve(**asked())
    path = home / "secret"
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(UnderstudyError, match=f"key id {charge.key_id}, found no secret"):
        Ledger.open()
    assert not path.exists()
    path.write_bytes(kept)
    path.chmod(0o600)
    assert Ledger.open().charge(charge.id).id == charge.id


def test_another_secret_is_refused(ledger, url):
    with pytest.raises(UnderstudyError, match=f"key id {keys.key_id(OLD)}, found the secret {keys.key_id(NEW)}"):
        Ledger(url, secret=NEW)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o610])
def test_a_secret_that_others_can_reach_is_refused(home, mode):
    Ledger.open()
    (home / "secret").chmod(mode)
    with pytest.raises(InputError, match=f"mode {mode:04o}"):
        Ledger.open()


def test_a_folder_in_its_place_is_told(home):
    Ledger.open()
    (home / "secret").unlink()
    (home / "secret").mkdir(mode=0o600)
    with pytest.raises(InputError, match=r"home/secret, found a folder; restore"):
        Ledger.open()


@pytest.mark.parametrize("short", [b"", b"short", b"x" * 31])
def test_a_short_secret_is_refused(tmp_path, short):
    with pytest.raises(InputError, match="at least 32 bytes"):
        Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", secret=short)


def test_rotation_keeps_rows_keys_and_requests(ledger, url):
    ledger.register_rows("reviews", [ROW])
    before = ledger.hmac("reviews", b"content"), ledger.request_key("a", b"b")
    assert ledger.rotate_secret(NEW) == keys.key_id(NEW)
    for opened in (ledger, Ledger(url, secret=NEW)):
        assert (opened.hmac("reviews", b"content"), opened.request_key("a", b"b")) == before
        with pytest.raises(InputError, match="row 0 of source='clinic'"):
            opened.register_rows("clinic", [ROW])
    with pytest.raises(UnderstudyError, match=r"replaced at \d{4}"):
        Ledger(url, secret=OLD)


def test_new_charges_use_the_new_secret_and_unfinished_ones_their_own(ledger):
    unfinished = ledger.reserve(**asked())
    material = ledger.material(unfinished.id)
    ledger.rotate_secret(NEW)
    assert ledger.material(unfinished.id) == material
    assert material.secret == OLD
    fresh = ledger.reserve(**asked(request_key="new"))
    assert (ledger.material(fresh.id).secret, fresh.key_id) == (NEW, keys.key_id(NEW))
    # A third secret: the first is wrapped anew and still opens.
    third = b"the third secret, 32 bytes or more"
    ledger.rotate_secret(third)
    assert [ledger.material(c).secret for c in (unfinished.id, fresh.id)] == [OLD, NEW]


def test_an_old_secret_is_dropped_with_its_last_charge(tmp_path):
    path = tmp_path / "ledger.db"
    ledger = with_sources(Ledger(f"sqlite:///{path}", secret=OLD))
    first, second = (ledger.reserve(**asked(request_key=str(i))) for i in range(2))
    ledger.rotate_secret(NEW)

    def kept():
        connection = sqlite3.connect(path)
        rows = connection.execute("SELECT key_id FROM ledger_secrets WHERE wrapped IS NOT NULL").fetchall()
        connection.close()
        return [row[0] for row in rows]

    assert kept() == [keys.key_id(OLD)]
    ledger.release(first.id)
    assert kept() == [keys.key_id(OLD)]
    ledger.release(second.id)
    assert kept() == []
    # The key id of an old charge stays known.
    assert ledger.charge(first.id).key_id == keys.key_id(OLD)


def test_a_process_with_the_old_secret_stops(ledger, url):
    other = Ledger(url, secret=OLD)
    ledger.rotate_secret(NEW)
    with pytest.raises(UnderstudyError, match=r"replaced at \d{4}"):
        other.reserve(**asked())
    assert ledger.charges() == ()


@pytest.mark.parametrize("again", [OLD, NEW])
def test_a_used_secret_does_not_come_back(ledger, again):
    ledger.rotate_secret(NEW)
    with pytest.raises(InputError, match="was used before"):
        ledger.rotate_secret(again)


def test_rotating_the_stored_secret_replaces_the_file(home):
    tag = with_sources(Ledger.open()).hmac("reviews", b"content")
    before = (home / "secret").read_bytes()
    fresh = rotate_stored_secret()
    after = (home / "secret").read_bytes()
    assert after != before
    assert keys.key_id(after.strip()) == fresh
    assert stat.S_IMODE((home / "secret").stat().st_mode) == 0o600
    assert not (home / "secret.new").exists()
    assert Ledger.open().hmac("reviews", b"content") == tag


def test_a_run_goes_on_beside_a_rotation(home):
    """It opened the ledger before: what it asks then, notes and closes is asked under the secret of now."""
    running = with_sources(Ledger.open())
    unfinished = running.reserve(**asked())
    material, tag = running.material(unfinished.id), running.hmac("reviews", b"content")
    for _ in range(2):
        fresh = rotate_stored_secret()
        assert running.note_query(unfinished.id, "sum", bytes(32)) == bytes(32)
        assert running.material(unfinished.id) == material
        assert running.hmac("reviews", b"content") == tag
    assert running.reserve(**asked(request_key="new")).key_id == fresh
    assert running.release(unfinished.id).status == "released"
    running.verify()


def test_a_ledger_opens_while_its_secret_is_rotated(home, monkeypatch):
    """The secret is read before the rotation, and the ledger opened with it afterwards."""
    tag = with_sources(Ledger.open()).hmac("reviews", b"content")
    stored, rotated = stored_secrets.stored_secret, []

    def rotated_after(*given, **named):
        found = stored(*given, **named)
        if not rotated:
            rotated.append(1)
            rotate_stored_secret()
        return found

    monkeypatch.setattr(stored_secrets, "stored_secret", rotated_after)
    assert Ledger.open().hmac("reviews", b"content") == tag


def test_an_old_secret_that_was_put_back_is_refused(home):
    before = with_sources(Ledger.open()) and (home / "secret").read_bytes()
    running = Ledger.open()
    rotate_stored_secret()
    (home / "secret").write_bytes(before)
    for use in (Ledger.open, running.sources):
        with pytest.raises(UnderstudyError, match=r"replaced at \d{4}"):
            use()


def test_a_secret_of_the_environment_is_not_rotated_behind_its_back(monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_SECRET", OLD.decode())
    with pytest.raises(InputError, match="UNDERSTUDY_SECRET"):
        rotate_stored_secret()


# Killed after the new secret was written and before the ledger turned to it, or after that and before the file
# took the old one's place.
@pytest.mark.parametrize("moment", ["before the ledger", "after the ledger"])
def test_killed_while_rotating_one_of_the_secrets_opens(home, moment):
    tag = with_sources(Ledger.open()).hmac("reviews", b"content")
    before = (home / "secret").read_bytes()
    script = """
import os, signal
from understudy.privacy.ledger import ledger, secret

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

if moment == "before the ledger":
    ledger.Ledger.rotate_secret = die
else:
    turn = ledger.Ledger.rotate_secret
    def turn_and_die(self, new):
        turn(self, new)
        die()
    ledger.Ledger.rotate_secret = turn_and_die
from understudy.privacy.ledger.upkeep import rotate_stored_secret; rotate_stored_secret()
"""
    process, _ = forked.start(script, moment=moment)
    assert process.wait() == -signal.SIGKILL
    assert (home / "secret.new").exists()
    assert (home / "secret").read_bytes() == before
    assert Ledger.open().hmac("reviews", b"content") == tag
    turned = (home / "secret").read_bytes() != before
    assert turned == (moment == "after the ledger")
    rotate_stored_secret()
    assert Ledger.open().hmac("reviews", b"content") == tag
    assert not (home / "secret.new").exists()


@pytest.mark.parametrize("left", [b"", b"\n", b"0" * 31])
def test_an_empty_secret_that_waits_closes_no_ledger(home, left):
    """As a crash may leave it on a disk that loses what was written."""
    tag = with_sources(Ledger.open()).hmac("reviews", b"content")
    waiting = home / "secret.new"
    waiting.touch(mode=0o600)
    waiting.write_bytes(left)
    assert Ledger.open().hmac("reviews", b"content") == tag
    rotate_stored_secret()
    assert not waiting.exists()
    assert Ledger.open().hmac("reviews", b"content") == tag


def test_an_empty_secret_waits_for_nothing_where_no_ledger_was_founded(home):
    home.mkdir(mode=0o700, exist_ok=True)
    keys.create_secret(home / "secret")
    (home / "secret.new").touch(mode=0o600)
    (home / "ledger.head").write_text('{"entries": 0, "mac": ""}')
    Ledger.open()
    assert (home / "secret.new").exists()
    assert Ledger.open().sources() == ()


@pytest.mark.parametrize("other", [True, False])
def test_an_empty_secret_that_the_ledger_may_have_turned_to_is_told(home, other):
    with_sources(Ledger.open())
    (home / "secret.new").touch(mode=0o600)
    if other:
        (home / "secret").write_bytes(NEW)
    else:
        (home / "secret").unlink()
    with pytest.raises(InputError, match=r"secret\.new, found 0: restore the file from a backup"):
        Ledger.open()


def test_two_first_openings_share_one_secret(home):
    script = "from understudy.privacy.ledger.ledger import Ledger; pipe.recv(); Ledger.open(); pipe.send('ok')"
    openers = [forked.start(script) for _ in range(3)]
    pipes = [pipe for _, pipe in openers]
    for pipe in pipes:
        pipe.send("go")
    assert [pipe.poll(120) and pipe.recv() for pipe in pipes] == ["ok"] * 3
    assert [process.wait() for process, _ in openers] == [0] * 3
    assert sorted(p.name for p in home.iterdir()) == ["ledger.db", "ledger.head", "ledger.head.lock", "secret"]
    Ledger.open()


def test_a_wrapped_key_opens_only_with_its_secret_and_name():
    wrapped = keys.wrap(OLD, b"key", name="source/reviews")
    assert keys.unwrap(OLD, wrapped, name="source/reviews") == b"key"
    assert b"key" not in wrapped
    for secret, name, data in (
        (NEW, "source/reviews", wrapped),
        (OLD, "source/clinic", wrapped),
        (OLD, "source/reviews", wrapped[:-1] + bytes([wrapped[-1] ^ 1])),
    ):
        with pytest.raises(UnderstudyError, match="does not open"):
            keys.unwrap(secret, data, name=name)

"""A ledger that was deleted, shortened or changed by hand is refused; one that was killed is not."""

import shutil
import signal
import sqlite3
import stat
import threading
from contextlib import closing

import forked
import pytest
from homes import home_environment
from unit.privacy.ledger.ledger_requests import asked, one_sum

from understudy.errors import InputError, UnderstudyError
from understudy.privacy.ledger.database import CHARGES, METADATA, open_engine
from understudy.privacy.ledger.head import EntriesLost, Head
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.privacy.ledger.upkeep import accept_ledger_loss, rotate_stored_secret

SECRET = b"the client zone's secret, for tests"
OTHER = b"another secret of the client zone, for tests"


def record(name="reviews", **changes):
    fields = {"unit": "example", "relation": "replace_special", "epsilon": 8.0, "delta": 1e-3, "n": 900}
    return SourceRecord(name=name, **(fields | changes))


def filled(ledger):
    """Two sources; a charge that was released, one that is under way, one that was only reserved."""
    for name in ("reviews", "clinic"):
        ledger.register(record(name))
    released, running, _ = (ledger.reserve(**asked(request_key=key)) for key in ("released", "running", "reserved"))
    for charge in (released, running):
        ledger.bind_environment(charge.id, "cpu")
        ledger.material(charge.id)
    ledger.release(released.id)
    return ledger


@pytest.fixture
def head(tmp_path):
    return Head(tmp_path / "ledger.head", required=True)


@pytest.fixture(scope="module")
def kept():
    """Kind of database -> the rows of its tables and its head, of a ledger that was filled."""
    return {}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Of a database that a test empties and fills for itself; on PostgreSQL it keeps the tables of the test before."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    known = "postgresql" in request.getfixturevalue("kept")
    return request.getfixturevalue("postgresql_server" if known else "postgresql_url")


@pytest.fixture
def ledger(url, head, kept):
    """Filled once for each kind of database; every test gets the same rows, in a file or tables of its own."""
    engine = open_engine(url)
    if engine.name not in kept:
        head.announce()
        filled(Ledger(url, secret=SECRET, head=head))
        with engine.begin() as connection:
            rows = [(table, connection.execute(table.select()).mappings().all()) for table in METADATA.sorted_tables]
        kept[engine.name] = rows, head.path.read_text()
    else:
        rows, text = kept[engine.name]
        with engine.begin() as connection:
            METADATA.create_all(connection)
            for table in reversed(METADATA.sorted_tables):
                connection.execute(table.delete())
            for table, found in rows:
                if found:
                    connection.execute(table.insert(), [dict(row) for row in found])
        head.path.write_text(text)
    return Ledger(url, secret=SECRET, head=head)


@pytest.fixture(scope="module")
def filled_home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("filled") / "home"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in home_environment(folder).items():
            patch.setenv(name, value)
        filled(Ledger.open())
    return folder


@pytest.fixture
def own(home, filled_home):
    """A copy of a home whose ledger is filled."""
    return shutil.copytree(filled_home, home)


def by_hand(url, *statements):
    """Write to the database as someone who does not hold the secret."""
    with open_engine(url).begin() as connection:
        for statement in statements:
            assert connection.exec_driver_sql(statement).rowcount != 0


def assert_all_refuse(ledger, url, head, match):
    """The next opening refuses, and so does a ledger that was open before."""
    with pytest.raises(UnderstudyError, match=match):
        Ledger(url, secret=SECRET, head=head)
    for use in (
        lambda: ledger.reserve(**asked(request_key="new")),
        lambda: ledger.spent("reviews"),
        lambda: ledger.release("any"),
        ledger.verify,
    ):
        with pytest.raises(UnderstudyError, match=match):
            use()


CHANGES = {
    "epsilon": "UPDATE ledger_charges SET epsilon = 0.01 WHERE request_key = 'running'",
    "delta": "UPDATE ledger_charges SET delta = 1e-9 WHERE request_key = 'running'",
    "source": "UPDATE ledger_charges SET source = 'clinic' WHERE request_key = 'running'",
    "kind": "UPDATE ledger_charges SET kind = 'internal' WHERE request_key = 'running'",
    "queries": f"UPDATE ledger_charges SET queries = '{one_sum(0.1)}' WHERE request_key = 'running'",
    "request": "UPDATE ledger_charges SET request_key = 'other' WHERE request_key = 'running'",
    "reopened": "UPDATE ledger_charges SET status = 'reserved', released_at = NULL WHERE status = 'released'",
    "closed": "UPDATE ledger_charges SET status = 'released' WHERE request_key = 'running'",
    "unbound": "UPDATE ledger_charges SET environment = NULL WHERE request_key = 'running'",
    "budget": "UPDATE ledger_sources SET record = replace(record, '8.0', '800.0') WHERE name = 'reviews'",
    "units": "UPDATE ledger_sources SET record = replace(record, '900', '901') WHERE name = 'reviews'",
    "start": "DELETE FROM ledger_starts",
    "another start": "INSERT INTO ledger_starts (charge, part, number, started_at) "
    "SELECT charge, part, number + 1, started_at FROM ledger_starts",
    "entry": "DELETE FROM ledger_chain WHERE kind = 'environment'",
    "order": "UPDATE ledger_chain SET number = -number WHERE number > 2",
    "content": "UPDATE ledger_chain SET content = '{}' WHERE kind = 'release'",
    "form": "UPDATE ledger_chain SET content = 'x' WHERE kind = 'start'",
    "chain": "DELETE FROM ledger_chain",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_by_hand_is_noticed(ledger, url, head, change):
    ledger.verify()
    by_hand(url, CHANGES[change])
    assert_all_refuse(ledger, url, head, "changed by other means")


META_DAMAGE = {
    "schema": ("UPDATE ledger_meta SET value = {} WHERE name = 'schema'", "number of its schema, 2, .*something else"),
    "root key": ("UPDATE ledger_meta SET value = {} WHERE name = 'root_key'", "'root' does not open .*backup"),
    "name of the schema": ("UPDATE ledger_meta SET name = 'x' WHERE name = 'schema'", "number of its schema.*none"),
    "name of the root key": ("UPDATE ledger_meta SET name = 'x' WHERE name = 'root_key'", "root key .*none"),
}


@pytest.mark.parametrize("damage", META_DAMAGE)
@pytest.mark.parametrize("octets", ["ff8100d3", "ff", ""])
def test_a_ledger_that_does_not_say_what_it_is_is_refused(ledger, url, head, damage, octets):
    statement, said = META_DAMAGE[damage]
    by_hand(url, statement.format(f"x'{octets}'" if url.startswith("sqlite") else rf"'\x{octets}'::bytea"))
    with pytest.raises(UnderstudyError, match=rf"(?s){said}") as refused:
        Ledger(url, secret=SECRET, head=head)
    assert "backup" in str(refused.value)


def test_a_ledger_of_another_schema_is_said(ledger, url, head):
    nine = "x'39'" if url.startswith("sqlite") else r"'\x39'::bytea"
    by_hand(url, f"UPDATE ledger_meta SET value = {nine} WHERE name = 'schema'")
    with pytest.raises(UnderstudyError, match="schema 2, found 9: use the version"):
        Ledger(url, secret=SECRET, head=head)


ANY_FORM = {
    "ledger_meta SET value = {}": "schema.*backup",
    "ledger_meta SET value = {} WHERE name = 'root_key'": "does not open.*backup",
    "ledger_chain SET mac = {} WHERE number = 1": "changed by other means .*entry.*backup",
    "ledger_charges SET salt = {} WHERE request_key = 'running'": "changed by other means .*backup",
    "ledger_sources SET wrapped_key = {}": "'source/reviews' does not open.*backup",
    "ledger_secrets SET wrapped = {} WHERE retired_at IS NOT NULL": "'secret/.*' does not open.*backup",
    "ledger_rows SET keyed_hash = {}": "rows of the source 'reviews' .*backup",
    "ledger_rows SET source = {}": "rows of the source .*backup",
}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("value", ["x''", "x'ff'", "'text'", "1.5", str(2**62)])
@pytest.mark.parametrize("place", ANY_FORM)
def test_a_value_of_any_form_is_refused(ledger, url, head, place, value):
    """SQLite keeps whatever is written into a column."""
    ledger.register_rows("reviews", [b"digest of a row"])
    running = next(charge.id for charge in ledger.charges() if charge.request_key == "running")
    ledger.rotate_secret(OTHER)
    with closing(sqlite3.connect(open_engine(url).url.database)) as database:  # it checks no foreign key
        assert database.execute(f"UPDATE {place.format(value)}").rowcount != 0
        database.commit()

    def use():
        found = Ledger(url, secret=OTHER, head=head)
        found.verify()
        found.hmac("reviews", b"content")
        found.material(running)

    with pytest.raises(UnderstudyError, match=ANY_FORM[place]):
        use()


def test_a_charge_deleted_by_hand_is_noticed(ledger, url, head):
    (gone,) = [charge.id for charge in ledger.charges() if charge.request_key == "reserved"]
    by_hand(url, f"DELETE FROM ledger_charges WHERE id = '{gone}'")
    assert_all_refuse(ledger, url, head, f"'{gone}'.*entry 6")


def test_a_charge_deleted_with_its_entry_in_the_middle_is_noticed(ledger, url, head):
    by_hand(
        url,
        "DELETE FROM ledger_chain WHERE number = 6",
        "DELETE FROM ledger_charges WHERE request_key = 'reserved'",
        "UPDATE ledger_chain SET number = -number WHERE number > 6",
        "UPDATE ledger_chain SET number = -number - 1 WHERE number < 0",
    )
    assert_all_refuse(ledger, url, head, "entry 6 .*changed")


def test_a_charge_made_by_hand_is_noticed(ledger, url, head):
    columns = CHARGES.columns.keys()
    copied = ", ".join({"id": "'forged'", "request_key": "'forged'"}.get(name, name) for name in columns)
    by_hand(
        url,
        f"INSERT INTO ledger_charges ({', '.join(columns)}) SELECT {copied} FROM ledger_charges "
        "WHERE request_key = 'reserved'",
    )
    assert_all_refuse(ledger, url, head, "charge forged")


@pytest.mark.parametrize(("charge", "found"), [("released", "put back"), ("reserved", "changed")])
def test_a_charge_keeps_no_salt_but_its_own(ledger, url, head, charge, found):
    """With a salt, a released charge could draw its noise again; with another one, a reserved charge other noise.

    Either would be a release on the same query that was not paid for.
    """
    by_hand(
        url,
        "UPDATE ledger_charges SET salt = (SELECT salt FROM ledger_charges WHERE request_key = 'running') "
        f"WHERE request_key = '{charge}'",
    )
    assert_all_refuse(ledger, url, head, f"salt of the charge .*{found}")


LAST = "(SELECT max(number) FROM ledger_chain)"


def cut_the_last_charge_off(ledger, url):
    last = ledger.reserve(**asked(request_key="last"))
    by_hand(
        url,
        f"DELETE FROM ledger_charges WHERE id = '{last.id}'",
        f"DELETE FROM ledger_chain WHERE number = {LAST}",
    )


def test_a_shortened_ledger_is_refused(ledger, url, head):
    """Its chain is whole as far as it goes: only the head tells."""
    cut_the_last_charge_off(ledger, url)
    assert_all_refuse(ledger, url, head, "has 11 entries, .* speaks of 12.*backup.*accept-loss")
    without_head = Ledger(url, secret=SECRET)
    without_head.verify()
    assert {charge.request_key for charge in without_head.charges()} == {"released", "running", "reserved"}


def test_a_ledger_cut_and_written_on_is_refused(ledger, url, head):
    cut_the_last_charge_off(ledger, url)
    behind = Ledger(url, secret=SECRET)
    for key in ("one", "two"):
        behind.reserve(**asked(request_key=key))
    assert_all_refuse(ledger, url, head, "not the one that its head")


def test_a_required_head_that_is_gone_is_refused(ledger, url, head):
    head.path.unlink()
    assert_all_refuse(ledger, url, head, "head .* is gone.*accept-loss")
    Ledger(url, secret=SECRET, head=Head(head.path, required=False)).verify()
    assert head.path.exists(), "the head is made anew where it is not required"
    assert head.read().entries == 11


def test_a_damaged_head_is_said(ledger, head):
    head.path.write_text("{}")
    with pytest.raises(UnderstudyError, match=r"ledger\.head.*accept-loss"):
        ledger.verify()


def test_the_head_is_closed_to_others_and_goes_with_the_chain(ledger, head):
    before = head.read()
    ledger.reserve(**asked(request_key="new"))
    assert head.read().entries == before.entries + 1
    assert stat.S_IMODE(head.path.stat().st_mode) == 0o600
    after = head.path.stat()
    ledger.spent("reviews")
    assert head.path.stat().st_mtime_ns == after.st_mtime_ns


def test_the_head_never_steps_back(ledger, url, head):
    """The slower of two processes writes its head last."""
    held, go = threading.Event(), threading.Event()

    def wait(step):
        if step == "reserve:committed":
            held.set()
            assert go.wait(60)

    slow = Ledger(url, secret=SECRET, head=head, on_step=wait)
    thread = threading.Thread(target=lambda: slow.reserve(**asked(request_key="slow")))
    thread.start()
    assert held.wait(60)
    ledger.reserve(**asked(request_key="fast"))
    ahead = head.read()
    go.set()
    thread.join(60)
    assert head.read() == ahead
    assert ahead.entries == 13


def test_rotation_and_purge_keep_the_chain(ledger, url, head):
    ledger.rotate_secret(OTHER)
    ledger.register_rows("reviews", [b"row"])
    ledger.purge("reviews", forget_rows=True)
    ledger.purge("clinic")
    again = Ledger(url, secret=OTHER, head=head)
    again.reserve(**asked(request_key="after"))
    again.rotate_secret(SECRET + b" II")
    Ledger(url, secret=SECRET + b" II", head=head).verify()
    by_hand(url, "UPDATE ledger_charges SET epsilon = 0.01 WHERE request_key = 'after'")
    with pytest.raises(UnderstudyError, match="changed by other means"):
        Ledger(url, secret=SECRET + b" II", head=head)


def test_a_head_that_is_there_is_not_announced_anew(ledger, url, head):
    """It would forget how far the ledger went, and an empty one would pass for new."""
    before = head.read()
    assert before.entries > 0
    head.announce()
    assert head.read() == before


def test_each_call_of_a_charge_has_the_query_that_it_was_first_made_with(ledger):
    charge = next(charge for charge in ledger.charges("reviews") if charge.request_key == "running")
    assert ledger.note_query(charge.id, "scores.0", b"first") == b"first"
    assert ledger.note_query(charge.id, "scores.1", b"second") == b"second"
    assert ledger.note_query(charge.id, "scores.0", b"another") == b"first"
    assert ledger.note_query(charge.id, "scores.1", b"second") == b"second"
    other = next(charge for charge in ledger.charges("reviews") if charge.request_key == "reserved")
    assert ledger.note_query(other.id, "scores.0", b"third") == b"third"


@pytest.mark.parametrize(("end", "said"), [("release", "was released"), ("purge", "its source was purged")])
def test_a_charge_that_is_closed_or_purged_takes_no_query(ledger, end, said):
    """Nor does it tell the tag of an earlier one: a process that has its keys still draws nothing more."""
    charge = next(charge for charge in ledger.charges("reviews") if charge.request_key == "running")
    ledger.note_query(charge.id, "scores.0", b"first")
    ledger.release(charge.id) if end == "release" else ledger.purge("reviews")
    for call in ("scores.0", "scores.1"):
        with pytest.raises(UnderstudyError, match=said):
            ledger.note_query(charge.id, call, b"first")


def test_a_purge_erases_the_salts_of_its_source_alone(ledger, url, head):
    ledger.purge("clinic")
    again = Ledger(url, secret=SECRET, head=head)
    assert [charge.resumable for charge in again.charges("reviews")] == [False, True, True]
    running = next(charge for charge in again.charges("reviews") if charge.request_key == "running")
    assert again.material(running.id).charge_id == running.id


KILLED = """
import os, signal
from understudy.privacy.ledger.ledger import Ledger

def die(step):
    if step == deadly:
        os.kill(os.getpid(), signal.SIGKILL)

Ledger(url, secret=secret, head=head, on_step=die).reserve(**asked)
"""


def killed(url, head, step):
    asks = asked(request_key="killed")
    process, _ = forked.start(KILLED, url=url, secret=SECRET, head=head, deadly=step, asked=asks)
    assert process.wait() == -signal.SIGKILL


def test_a_kill_between_the_database_and_the_head_is_healed(ledger, url, head):
    killed(url, head, "reserve:committed")
    assert head.read().entries == 11
    assert Ledger(url, secret=SECRET, head=head).spent("reviews")[0] == 0.4
    assert head.read().entries == 12
    ledger.reserve(**asked(request_key="next"))
    assert head.read().entries == 13


# The user's own ledger


def test_a_deleted_ledger_beside_a_kept_secret_is_refused(own):
    (own / "ledger.db").unlink()
    with pytest.raises(EntriesLost, match=r"ledger\.db is gone.* 11 entries.*backup.*accept-loss"):
        Ledger.open()
    assert not (own / "ledger.db").exists()
    (own / "ledger.head").unlink()
    with pytest.raises(EntriesLost, match=r"ledger\.db is gone.*ledger\.head"):
        Ledger.open()
    assert not (own / "ledger.db").exists()


def test_an_emptied_ledger_is_refused(own):
    (own / "ledger.db").write_bytes(b"")
    with pytest.raises(EntriesLost, match=r"ledger\.db is empty.* 11 entries"):
        Ledger.open()


def test_an_older_backup_is_refused_and_the_newest_is_not(own):
    ledger = Ledger.open()
    shutil.copy(own / "ledger.db", own / "old.db")
    ledger.reserve(**asked(request_key="later"))
    shutil.copy(own / "ledger.db", own / "new.db")
    shutil.copy(own / "old.db", own / "ledger.db")
    with pytest.raises(EntriesLost, match=r" 11 entries.* 12"):
        Ledger.open()
    shutil.copy(own / "new.db", own / "ledger.db")
    assert Ledger.open().spent("reviews")[0] == 0.4


def test_an_accepted_loss_stands_in_the_ledger_for_ever(own):
    (own / "ledger.db").unlink()
    loss = accept_ledger_loss()
    assert (loss["entries"], loss["left"]) == (11, 1)
    anew = Ledger.open()
    assert anew.sources() == ()
    filled(anew)
    assert Ledger.open().losses() == (loss,)
    with pytest.raises(InputError, match="lost entries, found one that is whole"):
        accept_ledger_loss()
    (own / "ledger.head").unlink()
    with pytest.raises(EntriesLost):
        Ledger.open()
    assert accept_ledger_loss()["entries"] is None
    assert [entry["entries"] for entry in Ledger.open().losses()] == [11, None]


def test_a_shortened_ledger_goes_on_once_its_loss_is_accepted(own):
    url = f"sqlite:///{own / 'ledger.db'}"
    cut_the_last_charge_off(Ledger.open(), url)
    loss = accept_ledger_loss()
    assert (loss["entries"], loss["left"]) == (12, 11)
    assert Ledger.open().reserve(**asked(request_key="next")).new
    # Cut again, the accepted loss does not stand for the new one.
    cut_the_last_charge_off(Ledger.open(), url)
    with pytest.raises(EntriesLost):
        Ledger.open()


def test_what_was_changed_cannot_be_accepted(own):
    by_hand(f"sqlite:///{own / 'ledger.db'}", CHANGES["epsilon"])
    with pytest.raises(UnderstudyError, match="changed by other means"):
        accept_ledger_loss()


def test_the_head_stays_in_home_with_a_secret_of_the_environment(home, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_SECRET", SECRET.decode())
    filled(Ledger.open())
    (home / "ledger.db").unlink()
    with pytest.raises(EntriesLost, match=" 11 entries"):
        Ledger.open()


def test_killed_before_the_secret_was_made_the_ledger_is_founded(home):
    home.mkdir(mode=0o700)
    Head(home / "ledger.head", required=True).announce()
    filled(Ledger.open())
    assert Ledger.open().spent("reviews")[0] == pytest.approx(0.3)


def test_rotating_the_stored_secret_keeps_the_head(own):
    rotate_stored_secret()
    assert Ledger.open().spent("reviews")[0] == pytest.approx(0.3)

"""The ledger on a disk that takes no more: it says so, nothing is half-written, and the same call goes on later."""

import hashlib
from contextlib import ExitStack

import pytest
from full_disk import files_of_at_most
from unit.privacy.ledger.ledger_requests import asked

from understudy.errors import UnderstudyError
from understudy.privacy.ledger.head import Head
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.privacy.ledger.upkeep import rotate_stored_secret

REVIEWS = SourceRecord(name="reviews", unit="example", relation="replace_special", epsilon=1.0, delta=1e-3, n=900)
ROWS = [hashlib.sha256(str(number).encode()).digest() for number in range(1000)]


def charged(ledger):
    return ledger.reserve(**asked()).id


# What is done before, and what meets the full disk.
CALLS = {
    "register": (lambda _: None, lambda ledger: ledger.register(REVIEWS)),
    "rows": (lambda ledger: ledger.register(REVIEWS), lambda ledger: ledger.register_rows("reviews", ROWS)),
    "charge": (lambda ledger: ledger.register(REVIEWS), charged),
    "start": (
        lambda ledger: (ledger.register(REVIEWS), charged(ledger)),
        lambda ledger: ledger.material(ledger.charges()[0].id).salt,
    ),
    "release": (
        lambda ledger: (ledger.register(REVIEWS), charged(ledger)),
        lambda ledger: ledger.release(ledger.charges()[0].id).status,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_full_disk_is_told_and_changes_nothing(name, home):
    """No key material is handed out whose start is not noted, so nothing is drawn; what was spent stays as it was."""
    before, call = CALLS[name]
    ledger = Ledger.open()
    before(ledger)
    entries, known = Head(home / "ledger.head", required=True).read(), (ledger.sources(), ledger.charges())
    with files_of_at_most(16_384), pytest.raises(UnderstudyError, match=r"ledger\.db cannot be used.* make room"):
        call(ledger)
    assert Head(home / "ledger.head", required=True).read() == entries
    again = Ledger.open()
    again.verify()
    assert (again.sources(), again.charges()) == known
    assert [again.restarts(charge.id) for charge in again.charges()] == [0] * len(known[1])
    assert call(again) == call(again)
    again.verify()
    assert again.spent("reviews")[0] == (0.0 if name in ("register", "rows") else 0.1)


def test_a_head_that_finds_no_room_stays_as_it_was_and_is_brought_up_later(home):
    """The charge is on the disk by then, and is found again."""
    place, full = Head(home / "ledger.head", required=True), ExitStack()

    def fill(step):
        if step == "reserve:committed":
            full.enter_context(files_of_at_most(0))

    Ledger.open().register(REVIEWS)
    before, there = place.read(), sorted(home.iterdir())
    secret = (home / "secret").read_bytes().strip()
    ledger = Ledger(f"sqlite:///{home / 'ledger.db'}", secret=secret, head=place, on_step=fill)
    with full, pytest.raises(OSError, match=r"File too large: '.*ledger\.head'"):
        ledger.reserve(**asked())
    assert (place.read(), sorted(home.iterdir())) == (before, there)
    (charge,) = Ledger.open().charges()
    assert place.read().entries == before.entries + 1
    assert Ledger.open().reserve(**asked()) == charge


def test_a_new_secret_that_finds_no_room_leaves_the_old_one_in_use(home):
    """An empty one that was left waiting closed the ledger for good."""
    tag = Ledger.open().request_key("part")
    with files_of_at_most(0), pytest.raises(OSError, match=r"File too large: '.*secret\.new'"):
        rotate_stored_secret()
    assert Ledger.open().request_key("part") == tag
    before = (home / "secret").read_bytes()
    rotate_stored_secret()
    assert (home / "secret").read_bytes() != before
    assert not (home / "secret.new").exists()
    assert Ledger.open().request_key("part") == tag

"""The ledger within one process: admission, idempotence, rows, keys; on SQLite and on PostgreSQL."""

import hashlib
import json
import math
import sqlite3
import stat
import threading
import time
import traceback
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.privacy.ledger.ledger_requests import one_sum

from understudy.errors import BudgetRefused, InputError, UnderstudyError
from understudy.privacy.accounting import epsilon_rdp, gaussian_event
from understudy.privacy.labels import Guarantee, private, released
from understudy.privacy.ledger.database import file_system_type, open_engine
from understudy.privacy.ledger.ledger import Charge, Ledger, SourceRecord
from understudy.privacy.ledger.records import disjoint_sources
from understudy.privacy.queries import queries_from_json

SECRET = b"the client zone's secret, for tests"


def record(name="reviews", **changes):
    fields = {"unit": "example", "relation": "replace_special", "epsilon": 8.0, "delta": 1e-4, "n": 1000}
    return SourceRecord(name=name, **(fields | changes))


def fields(**changes):
    asked = {
        "source": "reviews",
        "request_key": "request",
        "queries": one_sum(),
        "epsilon": 2.0,
        "delta": 1e-5,
        "epsilon_rdp": 2.2,
        "unit": "example",
        "relation": "replace_special",
        "code_digest": "code",
    }
    return asked | changes


def digests(count, start=0):
    return [hashlib.sha256(str(i).encode()).digest() for i in range(start, start + count)]


@pytest.fixture
def ledger(url):
    opened = Ledger(url, secret=SECRET)
    opened.register(record())
    return opened


@pytest.fixture
def sqlite_path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def sqlite_ledger(sqlite_path):
    opened = Ledger(f"sqlite:///{sqlite_path}", secret=SECRET)
    opened.register(record())
    return opened


def fits(ledger, asked):
    try:
        ledger.reserve(**asked)
    except BudgetRefused:
        return False
    return True


# Sources


def test_registering_again_changes_nothing(ledger):
    first = ledger.source("reviews")
    assert ledger.register(record()) == first
    assert ledger.sources() == (first,)
    assert datetime.fromisoformat(first.registered_at).tzinfo == UTC


def test_sources_are_disjoint_whichever_of_them_was_registered_later(ledger):
    ledger.register(record(name="clinic"))
    ledger.register(record(name="school", disjoint_from=("reviews", "reviews")))
    assert ledger.source("school").disjoint_from == ("reviews",)
    apart = {name: disjoint_sources(name, ledger.sources()) for name in ("reviews", "clinic", "school", "new")}
    assert apart == {"reviews": {"school"}, "clinic": set(), "school": {"reviews"}, "new": set()}


@pytest.mark.parametrize("other", ["school", "nobody"])
def test_a_source_is_disjoint_from_others_that_there_are(ledger, other):
    with pytest.raises(InputError, match=f"--disjoint-from {other}: expected the name of another source"):
        ledger.register(record(name="school", disjoint_from=("reviews", other)))
    assert [source.name for source in ledger.sources()] == ["reviews"]


@pytest.mark.parametrize(
    "changes",
    [{"epsilon": 80.0}, {"delta": 1e-5}, {"n": 999}, {"unit": "client"}, {"disjoint_from": ("reviews",)}],
)
def test_a_name_keeps_its_properties(ledger, changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        ledger.register(record(**changes))
    assert ledger.source("reviews").epsilon == 8.0


def test_an_unknown_source_is_said(ledger):
    for call in (ledger.source, ledger.spent, ledger.purge, lambda name: ledger.hmac(name, b"")):
        with pytest.raises(InputError, match=r"this ledger has reviews: correct .*`understudy ledger register clinic"):
            call("clinic")
    with pytest.raises(InputError, match="clinic"):
        ledger.reserve(**fields(source="clinic"))
    with pytest.raises(InputError, match="clinic"):
        ledger.register_rows("clinic", digests(1))


# Charges


def test_a_charge_is_recorded_and_spends(ledger):
    charge = ledger.reserve(**fields())
    assert (charge.new, charge.kind, charge.status, charge.attempt) == (True, "counted", "reserved", 1)
    assert ledger.spent("reviews") == (2.0, 1e-5)
    assert ledger.charge(charge.id) == charge.model_copy(update={"new": False})
    assert ledger.charges() == ledger.charges("reviews") == (ledger.charge(charge.id),)
    assert ledger.charges("clinic") == ()
    assert Charge.model_validate_json(charge.model_dump_json()) == charge
    assert (charge.queries, charge.event) == (one_sum(), '{"kind":"gaussian","noise_multiplier":100.0}')
    assert ledger.material(charge.id).queries == queries_from_json(one_sum())


def test_the_same_request_is_charged_once(ledger):
    first = ledger.reserve(**fields())
    again = ledger.reserve(**fields())
    assert (again.id, again.new) == (first.id, False)
    ledger.release(first.id)
    assert ledger.reserve(**fields()).status == "released"
    assert len(ledger.charges()) == 1


def test_accepting_a_new_charge_pays_again(ledger):
    first = ledger.reserve(**fields())
    second = ledger.reserve(instead_of=first.id, **fields())
    assert (second.attempt, second.new, second.id != first.id) == (2, True, True)
    assert ledger.reserve(**fields()).id == second.id
    assert ledger.spent("reviews")[0] == 4.0


def test_of_two_that_pay_again_for_one_charge_the_second_shares_what_the_first_made(ledger):
    first = ledger.reserve(**fields())
    second = ledger.reserve(instead_of=first.id, **fields())
    shared = ledger.reserve(instead_of=first.id, **fields())
    assert (shared.id, shared.new) == (second.id, False)
    assert ledger.spent("reviews")[0] == 4.0
    assert ledger.reserve(instead_of=second.id, **fields()).attempt == 3


def test_the_budget_is_kept_to_the_last_bit_and_no_further(ledger):
    for i in range(4):
        ledger.reserve(**fields(request_key=str(i)))
    with pytest.raises(BudgetRefused, match="left epsilon=0,"):
        ledger.reserve(**fields(request_key="one more", epsilon=0.05))
    assert ledger.reserve(**fields(request_key="0")).new is False
    assert len(ledger.charges()) == 4


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://me:hidden@host/ledger?password=hidden", "mysql://host/ledger"),
        ("postgresql://127.0.0.1:1/ledger?password=hidden", "postgresql.*://127.0.0.1:1/ledger cannot be used"),
        # What follows an @ in a password would be the host, and what follows a colon there its port.
        ("postgresql://me:a@b:hidden@host/ledger", "%40"),
    ],
)
def test_a_ledger_that_cannot_be_used_is_named_without_its_password(url, said):
    with pytest.raises(UnderstudyError, match=said) as refused:
        Ledger(url, secret=SECRET)
    assert "hidden" not in str(refused.value)


def test_a_charge_sees_one_that_is_being_written(ledger, url):
    """The second of two overlapping transactions must not admit by what was there before the first."""
    entered, outcome = threading.Event(), []

    def wait_for_the_other(step):
        if step == "reserve:written":
            entered.set()
            time.sleep(0.5)

    slow = Ledger(url, secret=SECRET, on_step=wait_for_the_other)

    def reserve_slowly():
        outcome.append(slow.reserve(**fields(epsilon=8.0)).id)

    thread = threading.Thread(target=reserve_slowly)
    thread.start()
    assert entered.wait(30)
    with pytest.raises(BudgetRefused, match="spent epsilon=8,"):
        ledger.reserve(**fields(request_key="another", epsilon=8.0))
    thread.join(30)
    assert [c.id for c in ledger.charges()] == outcome


def test_deltas_add_up_too(ledger):
    ledger.reserve(**fields(delta=9e-5))
    with pytest.raises(BudgetRefused):
        ledger.reserve(**fields(request_key="two", epsilon=0.1, delta=2e-5))


def test_released_charges_still_count(ledger):
    for i in range(4):
        ledger.release(ledger.reserve(**fields(request_key=str(i))).id)
    with pytest.raises(BudgetRefused):
        ledger.reserve(**fields(request_key="more"))


def test_charges_made_in_one_second_are_listed_in_the_order_in_which_they_were_made(url):
    """Their ids are random: eight of them would be in order by chance once in 40,320 times."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    ledger = Ledger(url, secret=SECRET, clock=lambda: at)
    ledger.register(record())
    made = [ledger.reserve(**fields(request_key=str(i), epsilon=0.1)).id for i in range(8)]
    assert [charge.id for charge in ledger.charges("reviews")] == made
    assert [charge.id for charge in ledger.charges()] == made


@pytest.mark.parametrize("changes", [{"unit": "client"}, {"relation": "add_or_remove_one"}])
def test_another_unit_or_relation_is_refused(ledger, changes):
    with pytest.raises(InputError, match=r"source='reviews': .*unit and relation"):
        ledger.reserve(**fields(**changes))
    assert ledger.charges() == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon_rdp": math.nan},
        {"delta": 1e-3},
        {"delta": -1e-9},
        {"delta": 1.5},
        {"request_key": ""},
        {"queries": ""},
        {"queries": "[]"},
        {"queries": one_sum() + " "},
        {"unknown_field": 1},
    ],
)
def test_fields_out_of_range_are_refused(sqlite_ledger, changes):
    with pytest.raises(InputError):
        sqlite_ledger.reserve(**fields(**changes))
    assert sqlite_ledger.charges() == ()


def test_a_request_key_belongs_to_one_request(ledger):
    ledger.reserve(**fields())
    for changes in ({"queries": one_sum(200.0)}, {"delta": 2e-5}, {"simulation": True}):
        with pytest.raises(UnderstudyError, match="request key"):
            ledger.reserve(**fields(**changes))


@pytest.mark.parametrize(("noise", "epsilon"), [(0.1, 1.0), (0.0, 1.0), (100.0, 0.0272), (1000.0, 0.0019)])
def test_a_charge_below_the_cost_of_its_queries_is_refused(ledger, noise, epsilon):
    """An edited calibration: the noise says one thing and the epsilon another."""
    cheat = fields(queries=one_sum(noise), epsilon=epsilon)
    with pytest.raises(UnderstudyError, match=rf"epsilon=.* the epsilon={epsilon:g}"):
        ledger.reserve(**cheat)
    assert ledger.charges() == ()
    assert ledger.spent("reviews") == (0.0, 0.0)
    # What stays private costs nothing, so there is nothing to compare.
    assert ledger.reserve(**cheat | {"epsilon": math.inf}).kind == "internal"


def test_the_cost_is_recomputed_for_the_whole_list(sqlite_ledger):
    one = one_sum(100.0)
    four = one[:-1] + "," + one[1:].replace('"sum"', '"other"').replace('"steps":1', '"steps":3')
    with pytest.raises(UnderstudyError, match=r"epsilon=0.0273"):
        sqlite_ledger.reserve(**fields(queries=four, epsilon=0.0273))
    assert sqlite_ledger.reserve(**fields(queries=one, epsilon=0.0273)).new


def test_more_units_than_were_registered_are_refused(ledger):
    with pytest.raises(InputError, match=r"1000 examples.*--rows 1001"):
        ledger.reserve(**fields(queries=one_sum(units=1001)))
    assert ledger.charges() == ()
    assert ledger.reserve(**fields(queries=one_sum(units=1000))).new


def test_internal_charges_and_simulations_are_recorded_but_not_counted(ledger):
    internal = ledger.reserve(**fields(request_key="inf", epsilon=math.inf, epsilon_rdp=math.inf))
    simulation = ledger.reserve(**fields(request_key="seed", simulation=True))
    assert (internal.kind, simulation.kind, simulation.simulation) == ("internal", "internal", True)
    assert internal.epsilon == math.inf
    assert ledger.spent("reviews") == (0.0, 0.0)
    for charge in (internal, simulation):
        assert not charge.exportable
        assert charge.label() == private("reviews")
        assert len(ledger.material(charge.id).salt) == 32
        with pytest.raises(UnderstudyError, match="promises nothing"):
            charge.guarantee()
        assert ledger.release(charge.id).status == "released"
    assert Charge.model_validate_json(internal.model_dump_json()) == internal


def test_a_counted_charge_labels_what_it_paid_for(ledger):
    charge = ledger.reserve(**fields())
    assert charge.label() == released(
        Guarantee(
            source="reviews",
            charge_id=charge.id,
            unit="example",
            relation="replace_special",
            epsilon=2.0,
            delta=1e-5,
            accountant="PLD",
        )
    )


def test_charge_ids_are_random(ledger):
    ids = {ledger.reserve(**fields(request_key=str(i), epsilon=0.1)).id for i in range(5)}
    assert len(ids) == 5
    assert all(len(i) == 24 and int(i, 16) >= 0 for i in ids)
    with pytest.raises(InputError, match="expected a charge"):
        ledger.charge("nothing")


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(asked=st.lists(st.tuples(st.floats(0.01, 4), st.floats(1e-6, 5e-5), st.booleans()), min_size=1, max_size=8))
def test_no_sequence_of_requests_overspends(tmp_path_factory, asked):
    ledger = Ledger(f"sqlite:///{tmp_path_factory.mktemp('l') / 'ledger.db'}", secret=SECRET)
    ledger.register(record())
    paid = []
    for number, (epsilon, delta, release) in enumerate(asked):
        try:
            charge = ledger.reserve(
                **fields(request_key=str(number), queries=one_sum(1000.0), epsilon=epsilon, delta=delta)
            )
        except BudgetRefused:
            assert total(paid, epsilon, 0) > 8 or total(paid, delta, 1) > Decimal("1e-4")
            continue
        paid.append((epsilon, delta))
        if release:
            ledger.release(charge.id)
    assert total(paid, 0.0, 0) <= 8
    assert total(paid, 0.0, 1) <= Decimal("1e-4")
    assert ledger.spent("reviews") == pytest.approx(
        (float(total(paid, 0.0, 0)), float(total(paid, 0.0, 1))), rel=1e-15, abs=0
    )


def total(paid, new, position):
    """Exact, of the decimals that were typed."""
    return sum((Decimal(repr(p[position])) for p in paid), start=Decimal(repr(new)))


def test_a_renyi_filter_admits_more_and_stops(sqlite_path):
    ledger = Ledger(f"sqlite:///{sqlite_path}", secret=SECRET)
    ledger.register(record(epsilon=2.0, composition="renyi"))
    event = gaussian_event(noise_multiplier=20.0)
    epsilon = epsilon_rdp(event, 1e-5)
    asked = fields(queries=one_sum(20.0), epsilon=epsilon, epsilon_rdp=epsilon)
    admitted = next(i for i in range(200) if not fits(ledger, asked | {"request_key": str(i)}))
    with pytest.raises(BudgetRefused, match="Renyi filter"):
        ledger.reserve(**(asked | {"request_key": "one more"}))
    spent = ledger.spent("reviews")
    assert admitted > 2 * 2.0 / epsilon
    assert spent[0] <= 2.0
    assert spent[1] == 1e-4


@pytest.mark.parametrize("composition", ["sum", "renyi"])
def test_a_renyi_filter_knows_how_many_masked_sums_were_charged(sqlite_path, composition):
    ledger = Ledger(f"sqlite:///{sqlite_path}", secret=SECRET)
    ledger.register(record(composition=composition))
    masked = one_sum(kind="masked_sum", steps=7)
    for number, queries in enumerate([masked, one_sum(), masked]):
        epsilon = 0.5 if queries == masked else 0.1
        ledger.reserve(**fields(request_key=str(number), queries=queries, epsilon=epsilon, epsilon_rdp=1.0))
    rounds = [7, 0, 7] if composition == "renyi" else [0, 0, 0]
    assert [cost.masked_rounds for cost in ledger.costs("reviews").values()] == rounds


# Key material and release


def test_material_is_stable_until_release_and_gone_after(ledger):
    charge = ledger.reserve(**fields())
    material = ledger.material(charge.id)
    assert material == ledger.material(charge.id)
    assert (material.secret, material.charge_id, len(material.salt)) == (SECRET, charge.id, 32)
    closed = ledger.release(charge.id)
    assert closed.status == "released"
    assert closed.released_at is not None
    assert ledger.release(charge.id) == closed
    with pytest.raises(UnderstudyError, match="was released"):
        ledger.material(charge.id)


def test_every_start_after_the_first_is_a_restart(ledger):
    charge, other = (ledger.reserve(**fields(request_key=key, epsilon=0.5)) for key in ("one", "two"))
    assert ledger.restarts(charge.id) == 0
    for _ in range(3):
        ledger.material(charge.id)
    ledger.material(other.id)
    assert (ledger.restarts(charge.id), ledger.restarts(other.id)) == (2, 0)
    ledger.release(charge.id)
    assert ledger.restarts(charge.id) == 2
    with pytest.raises(InputError, match="expected a charge"):
        ledger.restarts("nothing")


def test_material_does_not_show_itself(ledger):
    material = ledger.material(ledger.reserve(**fields()).id)
    shown = f"{material!r} {material}"
    assert material.salt.hex() not in shown
    assert "secret" not in shown
    assert str(material.salt) not in shown


def test_a_new_charge_is_bound_as_it_is_made(ledger):
    first = ledger.reserve(environment="cpu/2 threads", **fields())
    again = ledger.reserve(environment="cuda", **fields())
    assert first.environment == again.environment == ledger.charge(first.id).environment == "cpu/2 threads"
    assert ledger.reserve(instead_of=first.id, environment="cuda", **fields()).environment == "cuda"
    ledger.verify()


def test_an_environment_is_bound_once(ledger):
    charge = ledger.reserve(**fields())
    ledger.bind_environment(charge.id, "cpu/2 threads")
    ledger.bind_environment(charge.id, "cpu/2 threads")
    for other in ("cuda", "cpu/4 threads", "cpu/2 threads "):
        with pytest.raises(UnderstudyError, match="another environment than this one") as refused:
            ledger.bind_environment(charge.id, other)
        assert "cpu" not in str(refused.value), "beside it may stand a keyed hash of rows"
    with pytest.raises(InputError):
        ledger.bind_environment("nothing", "cpu")


# Rows


def test_rows_belong_to_one_source(ledger):
    ledger.register(record("clinic"))
    ledger.register_rows("reviews", digests(50))
    ledger.register_rows("reviews", digests(60))
    ledger.register_rows("clinic", digests(10, start=100))
    for refuse in (ledger.register_rows, ledger.check_rows):
        with pytest.raises(InputError, match=r"row 3 of source='clinic' .*'reviews'"):
            refuse("clinic", [*digests(3, start=200), *digests(1, start=7)])
    # Nothing of the refused rows was noted.
    ledger.register_rows("reviews", digests(3, start=200))


def test_a_source_is_registered_with_its_rows_or_not_at_all(ledger):
    """As where another run registers the same rows after they were checked."""
    ledger.register_rows("reviews", digests(3))
    with pytest.raises(InputError, match=r"row 1 .*'reviews'"):
        ledger.register(record("clinic"), digests(2, start=-1))
    assert [source.name for source in ledger.sources()] == ["reviews"]
    ledger.register(record("clinic"), digests(2, start=50), digests(2, start=900))
    assert set(ledger.owners_of(digests(51)).values()) == {"reviews", "clinic"}
    with pytest.raises(InputError, match="client registered under 'clinic'"):
        ledger.register(record("ward"), digests(1, start=70), digests(1, start=901))
    assert len(ledger.sources()) == 2
    ledger.verify()


def test_checking_rows_notes_nothing_and_needs_no_source(ledger):
    ledger.check_rows("not yet there", digests(5))
    ledger.register_rows("reviews", digests(5))
    with pytest.raises(InputError, match="row 0"):
        ledger.check_rows("not yet there", digests(5))


def test_repeated_and_absent_rows_are_fine(ledger):
    ledger.register_rows("reviews", digests(3) * 2)
    ledger.register_rows("reviews", [])
    with pytest.raises(InputError, match="row 2"):
        ledger.check_rows("another", [b"new" * 11, b"row" * 11, digests(3)[1]])


def test_clients_belong_to_one_source_whatever_they_wrote(ledger):
    """The same clients with other documents: as rows they are new."""
    ledger.register(record("clinic"))
    ledger.register_rows("reviews", digests(6), digests(3, start=900) * 2)
    for refuse in (ledger.register_rows, ledger.check_rows):
        with pytest.raises(InputError, match=r"row 1 of source='clinic' .*client.*'reviews'"):
            refuse("clinic", digests(2, start=50), [*digests(1, start=800), *digests(1, start=902)])
    ledger.register_rows("reviews", digests(2, start=50), digests(2, start=901))
    # A row and a client of one content are not taken for each other.
    ledger.register_rows("clinic", digests(1, start=900), digests(1))


def test_rows_without_a_digest_match_nothing(ledger):
    ledger.register(record("clinic"))
    ledger.register_rows("reviews", [b"", *digests(1), b""])
    ledger.register_rows("clinic", [b""])
    with pytest.raises(InputError, match="row 2 "):
        ledger.check_rows("clinic", [b"", b"", *digests(1)])


@pytest.mark.parametrize(
    ("change", "at_once"),
    [
        ("DELETE FROM ledger_rows WHERE keyed_hash = (SELECT keyed_hash FROM ledger_rows ORDER BY 1 LIMIT 1)", True),
        ("UPDATE ledger_rows SET source = 'clinic'", True),
        (
            "UPDATE ledger_rows SET keyed_hash = (SELECT mac FROM ledger_chain WHERE number = 1) "
            "WHERE keyed_hash = (SELECT keyed_hash FROM ledger_rows ORDER BY 1 LIMIT 1)",
            False,
        ),
    ],
)
def test_hashes_removed_by_hand_are_noticed(ledger, url, change, at_once):
    ledger.register(record("clinic"))
    ledger.register_rows("reviews", digests(5))
    ledger.verify()
    with open_engine(url).begin() as connection:
        assert connection.exec_driver_sql(change).rowcount
    refusing = [ledger.verify]
    if at_once:
        refusing += [lambda: ledger.check_rows("other", digests(1)), lambda: ledger.register_rows("clinic", digests(1))]
    for refuse in refusing:
        with pytest.raises(UnderstudyError, match=r"source '(reviews|clinic)' are not .*noted"):
            refuse()


def test_a_hundred_thousand_rows_take_seconds(sqlite_ledger):
    rows = digests(100_000)
    begin = time.monotonic()
    sqlite_ledger.register_rows("reviews", rows)
    assert time.monotonic() - begin < 20
    sqlite_ledger.register(record("clinic"))
    with pytest.raises(InputError, match="row 99999 "):
        sqlite_ledger.check_rows("clinic", [*digests(99_999, start=10**6), rows[5]])


def test_purged_rows_get_no_second_budget_under_another_name(ledger):
    ledger.register(record("clinic"))
    ledger.register_rows("reviews", digests(5))
    ledger.purge("reviews")
    with pytest.raises(InputError, match=r"row 0 .*'reviews'"):
        ledger.register_rows("clinic", digests(5))
    ledger.register_rows("reviews", digests(5))


def test_purge_can_forget_the_rows_and_keeps_the_charges(ledger):
    ledger.register(record("clinic"))
    ledger.register_rows("reviews", digests(5))
    charge = ledger.reserve(**fields())
    tag = ledger.hmac("reviews", b"content")
    ledger.purge("reviews", forget_rows=True)
    ledger.register_rows("clinic", digests(5))
    assert ledger.spent("reviews") == (2.0, 1e-5)
    assert ledger.reserve(**fields()).id == charge.id
    assert ledger.hmac("reviews", b"content") != tag
    with pytest.raises(UnderstudyError, match="was purged"):
        ledger.material(charge.id)
    for i in range(3):
        ledger.reserve(**fields(request_key=f"later {i}"))
    with pytest.raises(BudgetRefused):
        ledger.reserve(**fields(request_key="too much"))


# Keyed digests


def test_hmac_depends_on_source_and_content(ledger):
    ledger.register(record("clinic"))
    one = ledger.hmac("reviews", b"content")
    assert one == ledger.hmac("reviews", b"content")
    assert len({one, ledger.hmac("reviews", b"other"), ledger.hmac("clinic", b"content")}) == 3
    assert one != hashlib.sha256(b"content").digest()


def test_a_keyed_hash_needs_no_registration_and_outlives_rotation_and_purge(ledger):
    before = ledger.keyed_hash("soon", "hold-out", b"unit")
    ledger.register(record("soon"))
    assert ledger.keyed_hash("soon", "hold-out", b"unit") == before
    ledger.purge("soon", forget_rows=True)
    ledger.rotate_secret(b"another secret, of 32 bytes or more")
    assert ledger.keyed_hash("soon", "hold-out", b"unit") == before
    others = [("other", "hold-out", b"unit"), ("soon", "ids", b"unit"), ("so", "onhold-out", b"unit")]
    assert before not in [ledger.keyed_hash(*other) for other in others]
    assert len(before) == 32


def test_request_keys_tell_parts_apart(ledger):
    parts = [("a", "bc"), ("ab", "c"), ("abc",), ("a", b"bc"), ("a", "bc", "")]
    assert len({ledger.request_key(*p) for p in parts}) == len(parts)
    assert ledger.request_key("a", b"b") == ledger.request_key("a", b"b")


def test_another_ledger_has_other_keys(ledger, tmp_path):
    other = Ledger(f"sqlite:///{tmp_path / 'other.db'}", secret=SECRET)
    other.register(record())
    assert other.request_key("a") != ledger.request_key("a")
    assert other.hmac("reviews", b"content") != ledger.hmac("reviews", b"content")


# Files


def test_nothing_private_is_in_the_file(sqlite_ledger, sqlite_path):
    text = "the patient's name is Ada"
    rows = [hashlib.sha256(text.encode()).digest(), *digests(2000)]
    sqlite_ledger.register_rows("reviews", rows)
    charge = sqlite_ledger.reserve(**fields())
    salt = sqlite_ledger.material(charge.id).salt
    tag = sqlite_ledger.hmac("reviews", rows[0])
    assert salt in sqlite_path.read_bytes()  # the search below can find one
    sqlite_ledger.release(charge.id)
    content = sqlite_path.read_bytes()
    for needle in (salt, SECRET, tag, text.encode(), *rows[:50]):
        assert needle not in content
        assert needle.hex().encode() not in content
    assert [p.name for p in sqlite_path.parent.iterdir() if p.name.startswith("ledger")] == ["ledger.db"]


def test_purged_rows_are_overwritten(sqlite_ledger, sqlite_path):
    sqlite_ledger.register_rows("reviews", digests(2000))
    charge = sqlite_ledger.reserve(**fields())
    salt = sqlite_ledger.material(charge.id).salt
    with closing(sqlite3.connect(sqlite_path)) as connection, connection:
        hashes = [row[0] for row in connection.execute("SELECT keyed_hash FROM ledger_rows")]
    connection.close()
    before = sqlite_path.read_bytes()
    assert all(h in before for h in (*hashes, salt))
    sqlite_ledger.purge("reviews", forget_rows=True)
    after = sqlite_path.read_bytes()
    assert not any(h in after for h in (*hashes, salt))


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ("ALTER TABLE ledger_charges DROP COLUMN renyi_curve", "ledger_charges differs in renyi_curve"),
        ("ALTER TABLE ledger_starts ADD COLUMN machine TEXT", "ledger_starts differs in machine"),
    ],
)
def test_the_ledger_of_another_version_is_refused_in_words(sqlite_ledger, sqlite_path, change, differing):
    sqlite_ledger.register(record())
    sqlite_ledger.reserve(**fields())
    with closing(sqlite3.connect(sqlite_path)) as connection, connection:
        connection.execute(change)
    before = sqlite_path.read_bytes()
    with pytest.raises(UnderstudyError, match=f"its table {differing}"):
        Ledger(f"sqlite:///{sqlite_path}", secret=b"s" * 32)
    assert sqlite_path.read_bytes() == before


def test_sqlite_is_closed_to_others_and_durable(real_disk, sqlite_ledger, sqlite_path):
    assert stat.S_IMODE(sqlite_path.stat().st_mode) == 0o600
    with open_engine(f"sqlite:///{sqlite_path}").connect() as connection:
        values = {
            p: connection.exec_driver_sql(f"PRAGMA {p}").scalar()
            for p in ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
        }
    assert values == {"journal_mode": "delete", "synchronous": 3, "secure_delete": 1, "foreign_keys": 1}


def test_transactions_wait_for_each_other(sqlite_ledger, sqlite_path):
    holder = sqlite3.connect(sqlite_path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    done = threading.Event()

    def reserve():
        sqlite_ledger.reserve(**fields())
        done.set()

    thread = threading.Thread(target=reserve)
    thread.start()
    assert not done.wait(0.3)
    holder.execute("COMMIT")
    holder.close()
    thread.join(timeout=120)
    assert done.is_set()


@pytest.mark.parametrize(
    ("mounts", "directory", "expected"),
    [
        ("/dev/a / ext4 rw 0 0\nserver:/x /home nfs4 rw 0 0\n", "/home/ada", "nfs4"),
        ("/dev/a / ext4 rw 0 0\nserver:/x /home nfs4 rw 0 0\n", "/homes/ada", "ext4"),
        ("/dev/a / ext4 rw 0 0\nx /my\\040share fuse.sshfs rw 0 0\n", "/my share/deep", "fuse.sshfs"),
        ("/dev/a / ext4 rw 0 0\nx /home nfs rw 0 0\nx /home xfs rw 0 0\n", "/home", "xfs"),
        ("", "/home", ""),
    ],
)
def test_file_system_of_a_directory(tmp_path, mounts, directory, expected):
    table = tmp_path / "mounts"
    table.write_text(mounts)
    assert file_system_type(Path(directory), table) == expected
    assert file_system_type(Path(directory), tmp_path / "absent") == ""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "smb3"])
def test_network_file_systems_are_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("understudy.privacy.ledger.database.file_system_type", lambda *_: kind)
    with pytest.raises(InputError, match=rf"\({kind}\).*UNDERSTUDY_HOME.*UNDERSTUDY_LEDGER_URL"):
        Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", secret=SECRET)
    assert not (tmp_path / "ledger.db").exists()


def test_a_link_into_a_network_file_system_is_refused(tmp_path, monkeypatch):
    (tmp_path / "share").mkdir()
    (tmp_path / "ledger.db").symlink_to(tmp_path / "share" / "ledger.db")
    there = (tmp_path / "share").resolve()
    monkeypatch.setattr(
        "understudy.privacy.ledger.database.file_system_type", lambda folder, _: "nfs4" if folder == there else "ext4"
    )
    with pytest.raises(InputError, match=r"\(nfs4\)"):
        Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", secret=SECRET)
    assert not list(there.iterdir())


def test_an_error_of_the_database_quotes_no_statement_and_no_value(tmp_path):
    """Prefect logs an error with all that led to it, and how many rows were new is private."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", secret=SECRET)
    ledger.register(record())
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON ledger_rows BEGIN SELECT RAISE(FAIL, 'no room'); END")
    rows = digests(4711)
    with pytest.raises(UnderstudyError, match="no room") as caught:
        ledger.register_rows("reviews", rows)
    told = "".join(traceback.format_exception(caught.value))
    assert "4711" not in told
    assert "INSERT" not in told


@pytest.mark.parametrize("bad", ["sqlite://", "sqlite:///:memory:", "mysql://host/db", "not a url"])
def test_other_databases_are_refused(bad):
    with pytest.raises(InputError, match="expected"):
        Ledger(bad, secret=SECRET)


def test_a_ledger_that_cannot_be_used_is_said(tmp_path):
    with pytest.raises(InputError, match=r"absent/ledger.db"):
        Ledger(f"sqlite:///{tmp_path / 'absent' / 'ledger.db'}", secret=SECRET)
    (tmp_path / "ledger.db").write_text("this is a text and no database" * 100)
    with pytest.raises(UnderstudyError, match="cannot be used"):
        Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", secret=SECRET)
    with pytest.raises(UnderstudyError, match=r"//localhost:1/none") as unreachable:
        Ledger("postgresql://ada:hunter2@localhost:1/none", secret=SECRET)
    assert "hunter2" not in str(unreachable.value)


def test_a_ledger_of_another_schema_is_refused(sqlite_ledger, sqlite_path):
    with closing(sqlite3.connect(sqlite_path)) as connection, connection:
        connection.execute("UPDATE ledger_meta SET value = x'39' WHERE name = 'schema'")
    connection.close()
    with pytest.raises(UnderstudyError, match="schema 2, found 9"):
        Ledger(f"sqlite:///{sqlite_path}", secret=SECRET)


def test_entries_carry_the_time_of_the_clock(sqlite_path):
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    ledger = Ledger(f"sqlite:///{sqlite_path}", secret=SECRET, clock=lambda: moment)
    assert ledger.register(record()).registered_at == "2024-05-06T07:08:09+00:00"
    assert ledger.release(ledger.reserve(**fields()).id).released_at == "2024-05-06T07:08:09+00:00"


def test_stored_records_are_plain_json(sqlite_ledger, sqlite_path):
    with closing(sqlite3.connect(sqlite_path)) as connection, connection:
        (text,) = connection.execute("SELECT record FROM ledger_sources").fetchone()
    connection.close()
    assert json.loads(text)["epsilon"] == 8.0

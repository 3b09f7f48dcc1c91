"""Any history of a ledger that two processes hold: a plain model says what stands, and what may never happen.

The model knows what was asked and in which order, and nothing of how a ledger keeps it: charges are entries of a list,
budgets sums of fractions. A process may be killed between any two steps of an operation, and the other one may act
while the first has committed and not yet moved the head.
"""

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from unit.privacy.ledger.ledger_requests import asked, one_sum

from understudy.errors import BudgetRefused, InputError, UnderstudyError
from understudy.privacy.ledger.head import Head
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.privacy.mechanisms import Mechanisms

SOURCES = {
    "reviews": SourceRecord(
        name="reviews", unit="example", relation="replace_special", epsilon=0.5, delta=1e-5, n=1000
    ),
    "clinic": SourceRecord(
        name="clinic", unit="example", relation="replace_special", epsilon=0.65, delta=1e-5, n=1000,
        composition="renyi", renyi_orders=(8.0, 32.0),
    ),
}  # fmt: skip
# What one unit of the queries below costs at Renyi order a is a / (2 z^2): the Gaussian mechanism.
NOISE = {100.0: 0.1, 12.5: 0.4}
CONTENTS = (0.0, 0.25, 0.5)


@dataclass
class Charged:
    """What the model knows of a charge."""

    id: str
    source: str
    key: str
    attempt: int
    noise: float
    epsilon: float
    delta: float
    simulation: bool
    secret: bytes
    status: str = "reserved"
    salted: bool = True
    environment: str | None = None
    starts: dict[int, int] = field(default_factory=dict)
    first: float | None = None
    salt: bytes | None = None

    @property
    def counted(self) -> bool:
        return not self.simulation and math.isfinite(self.epsilon)

    @property
    def open(self) -> bool:
        return self.status == "reserved" and self.salted


# What is not known yet of a charge that is made for a request once more.
NEW = {"status": "reserved", "salted": True, "environment": None, "first": None, "salt": None}


class Killed(Exception):
    """A process ended in the middle of an operation."""


class Process:
    """One that holds a ledger of its own, with its own secret, release logs and a head that all share."""

    def __init__(self, root: Path, name: str, secret: bytes) -> None:
        self.root, self.name, self.secret = root, name, secret
        self.at: dict[str, Callable[[], None]] = {}
        self.open(secret)

    def open(self, secret: bytes) -> None:
        self.secret = secret
        head = Head(self.root / "ledger.head", required=False)
        self.ledger = Ledger(f"sqlite:///{self.root / 'ledger.db'}", secret=secret, head=head, on_step=self._step)

    def _step(self, name: str) -> None:
        if act := self.at.pop(name.partition(":")[2], None):
            act()

    def draw(self, charge_id: str, content: float, *, part: int, once: bool) -> torch.Tensor:
        """The release that the charge pays for, of a query whose first number alone differs between contents."""
        material = self.ledger.material(charge_id, part=part)
        log, note = self.root / self.name / charge_id, partial(self.ledger.note_query, charge_id)
        log.mkdir(parents=True, exist_ok=True)
        query = {"x": torch.tensor([content, 0.0, 0.0, 0.0], dtype=torch.float64)}
        noise = material.queries[0].noise_multiplier
        mechanisms = Mechanisms.live(material, release_log=log, note=note)
        return mechanisms.gaussian_sum(
            query, sensitivity=1.0, noise_multiplier=noise, step=0, purpose="sum", once=once
        )["x"]


class Histories(RuleBasedStateMachine):
    """Rules are what processes may do, in any order; after each, the other process is asked what stands."""

    processes = st.integers(0, 1)
    keys = st.sampled_from(["a", "b", "c", "d", "e", "f"])
    noises = st.sampled_from(sorted(NOISE))
    any_charge = st.integers(0, 5)

    def __init__(self, root: Path) -> None:
        super().__init__()
        # A folder for each history: the examples of one test share theirs.
        self.root = root / str(sum(1 for _ in root.iterdir()))
        self.root.mkdir()
        self.charges: list[Charged] = []
        self.shown: dict[str, tuple[float, float]] = dict.fromkeys(SOURCES, (0.0, 0.0))
        self.secrets = [b"0" * 32]
        self.released: dict[tuple[str, float], bytes] = {}
        self.noise: dict[bytes, tuple[str, float]] = {}
        self.entries = 0
        self.step = self.counted = 0

    @initialize()
    def found(self) -> None:
        self.process = [Process(self.root, name, self.secrets[0]) for name in ("one", "two")]
        for record, process in zip(SOURCES.values(), self.process, strict=True):
            process.ledger.register(record)

    # What the model says

    def latest(self, key: str) -> Charged | None:
        return max((c for c in self.charges if c.key == key), key=lambda c: c.attempt, default=None)

    def spent(self, source: str) -> tuple[Fraction, Fraction]:
        """What was charged, in fractions; of a Renyi filter by the formula of Gaussian mechanisms."""
        return self.spent_by(source, [c for c in self.charges if c.source == source and c.counted])

    def spent_by(self, source: str, counted: list[Charged]) -> tuple[Fraction, Fraction]:
        record = SOURCES[source]
        if record.composition == "sum" or not counted:
            asked_for = [(Fraction(repr(c.epsilon)), Fraction(repr(c.delta))) for c in counted]
            return sum((epsilon for epsilon, _ in asked_for), Fraction()), sum((d for _, d in asked_for), Fraction())
        bounds = [
            sum(order / (2 * c.noise**2) for c in counted)
            + math.log(len(record.renyi_orders) / record.delta) / (order - 1)
            for order in record.renyi_orders
        ]
        return Fraction(min(bounds)), Fraction(repr(record.delta))

    def fits(self, new: Charged) -> bool:
        record = SOURCES[new.source]
        epsilon, delta = self.spent_by(
            new.source, [*(c for c in self.charges if c.source == new.source and c.counted), new]
        )
        return epsilon <= Fraction(repr(record.epsilon)) and delta <= Fraction(repr(record.delta))

    def chosen(self, number: int) -> Charged:
        """One of the last few charges: the last one most often while there are few."""
        return self.charges[-1 - number % len(self.charges)]

    def ready(self, process: int) -> Process:
        """The process, with the secret of now: one that a rotation left behind is refused first, and opens again."""
        found = self.process[process]
        if found.secret != self.secrets[-1]:
            with pytest.raises(UnderstudyError, match="belongs to the secret"):
                found.ledger.charges()
            found.open(self.secrets[-1])
        return found

    def head(self) -> int:
        return Head(self.root / "ledger.head", required=False).read().entries

    def count(self) -> int:
        with closing(sqlite3.connect(self.root / "ledger.db")) as connection:
            return connection.execute("SELECT count(*) FROM ledger_chain").fetchone()[0]

    # What processes do

    @rule(
        process=processes, key=keys, source=st.sampled_from(sorted(SOURCES)), noise=noises,
        more=st.sampled_from([0.0, 0.0, 0.2, math.inf]), delta=st.sampled_from([1e-6, 1e-6, 4e-6]),
        simulation=st.sampled_from([False, False, False, True]),
        instead_of=st.one_of(st.none(), st.sampled_from(["latest", "earlier", "another's", "nobody's"])),
        killed=st.sampled_from([None, None, None, "begun", "written", "committed"]),
        meanwhile=st.one_of(st.none(), st.none(), keys), bound=st.sampled_from([None, "cpu", "cuda"]),
    )  # fmt: skip
    def reserve(
        self, process, key, source, noise, more, delta, simulation, instead_of, killed, meanwhile, bound
    ) -> None:
        """A request is given its charge or a new one; `meanwhile` the other process asks for a charge of its own."""
        one, other = self.ready(process), self.ready(1 - process)
        epsilon = round(NOISE[noise] + more, 9)
        new = Charged("", source, key, 1, noise, epsilon, delta, simulation, self.secrets[-1], environment=bound)
        known, replaced = self.latest(key), self.replaced(key, instead_of)
        fields = asked(
            source=source, request_key=key, queries=one_sum(noise), epsilon=epsilon, delta=delta, simulation=simulation
        )
        others: list[tuple[str, bool]] = []
        if killed:
            one.at[killed] = _kill
        elif meanwhile:
            given = asked(source="reviews", request_key=meanwhile, queries=one_sum(100.0), epsilon=0.1, delta=1e-6)
            one.at["committed"] = lambda: others.append(_tried(lambda: other.ledger.reserve(**given)))
        outcome = _tried(lambda: one.ledger.reserve(instead_of=replaced, environment=bound, **fields))
        one.at.clear()
        if known is not None and known.id != replaced:
            same = (known.source, known.noise, known.delta, known.simulation) == (source, noise, delta, simulation)
            expected = known.id if same else UnderstudyError
        else:
            new.attempt = 1 if known is None else known.attempt + 1
            expected = None if not new.counted or self.fits(new) else BudgetRefused
        self.settled(one, new, outcome, expected=expected, killed=killed)
        for found in others:
            beside = Charged("", "reviews", meanwhile, 1, 100.0, 0.1, 1e-6, False, self.secrets[-1])
            before = self.latest(meanwhile)
            if before is None:
                self.settled(other, beside, found, expected=None if self.fits(beside) else BudgetRefused, killed=None)
            else:
                same = (before.source, before.noise, before.delta, before.simulation) == ("reviews", 100.0, 1e-6, False)
                self.settled(other, beside, found, expected=before.id if same else UnderstudyError, killed=None)
            # The first writes the head last, and does not set it back.
            assert self.head() == self.count()

    @rule(
        process=processes, key=keys, source=st.sampled_from(sorted(SOURCES)), noise=noises,
        more=st.sampled_from([0.0, 0.0, 1e-9]), delta=st.sampled_from([1e-6, 4e-6]),
    )  # fmt: skip
    def ask(self, process, key, source, noise, more, delta) -> None:
        """The plainest request there is."""
        self.reserve(process, key, source, noise, more, delta, False, None, None, None, None)

    @precondition(lambda self: self.charges)
    @rule(process=processes, number=any_charge, times=st.integers(1, 3))
    def pay_again(self, process, number, times) -> None:
        """As often as there is room, and no more: the next attempt of a request that has a charge."""
        for _ in range(times):
            known = self.latest(self.chosen(number).key)
            fields = asked(
                source=known.source, request_key=known.key, queries=one_sum(known.noise), epsilon=known.epsilon,
                delta=known.delta, simulation=known.simulation,
            )  # fmt: skip
            new = replace(known, id="", attempt=known.attempt + 1, secret=self.secrets[-1], starts={}, **NEW)
            expected = None if not new.counted or self.fits(new) else BudgetRefused
            one = self.ready(process)
            outcome = _tried(partial(one.ledger.reserve, instead_of=known.id, **fields))
            self.settled(one, new, outcome, expected=expected, killed=None)

    @precondition(lambda self: self.charges)
    @rule(process=processes, number=any_charge, other=st.sampled_from(["source", "queries", "delta", "simulation"]))
    def ask_otherwise(self, process, number, other) -> None:
        """A request that differs from that of its key in one thing is given no charge."""
        known = self.latest(self.chosen(number).key)
        fields = asked(
            source=known.source, request_key=known.key, queries=one_sum(known.noise), epsilon=known.epsilon,
            delta=known.delta, simulation=known.simulation,
        )  # fmt: skip
        changed = {
            "source": next(name for name in SOURCES if name != known.source),
            "queries": one_sum(2 * known.noise),
            "delta": 2 * known.delta,
            "simulation": not known.simulation,
        }
        outcome = _tried(partial(self.ready(process).ledger.reserve, **fields | {other: changed[other]}))
        self.settled(self.process[process], known, outcome, expected=UnderstudyError, killed=None)

    def replaced(self, key: str, instead_of: str | None) -> str | None:
        own = sorted((c for c in self.charges if c.key == key), key=lambda c: c.attempt)
        others = [c.id for c in self.charges if c.key != key]
        named = {
            "latest": own[-1].id if own else None,
            "earlier": own[0].id if own else None,
            "another's": others[0] if others else None,
            "nobody's": "0" * 24,
        }
        return None if instead_of is None else named[instead_of]

    def settled(self, process: Process, new: Charged, outcome, *, expected, killed: str | None) -> None:
        """Compare what a reservation came to with what the model `expected`: an id, an error, or None: a new charge."""
        if isinstance(outcome, Killed):
            if killed == "committed" and expected is None:
                # It stands although nobody was told; its id is known from the ledger.
                known = {charge.id for charge in self.charges}
                (new.id,) = {charge.id for charge in process.ledger.charges()} - known
                self.charges.append(new)
            return
        if isinstance(expected, type):
            assert isinstance(outcome, expected), outcome
            return
        assert not isinstance(outcome, Exception), outcome
        assert outcome.new is (expected is None)
        if expected is not None:
            assert outcome.id == expected
            return
        assert outcome.id not in {charge.id for charge in self.charges}
        new.id = outcome.id
        self.charges.append(new)

    @precondition(lambda self: self.charges)
    @rule(process=processes, number=any_charge, killed=st.sampled_from([None, None, "begun", "written", "committed"]))
    def release(self, process, number, killed) -> None:
        one, charge = self.ready(process), self.chosen(number)
        if killed:
            one.at[killed] = _kill
        outcome = _tried(lambda: one.ledger.release(charge.id))
        one.at.clear()
        if killed in (None, "committed"):
            charge.status, charge.salted = "released", False
        if killed is None:
            assert (outcome.id, outcome.status, outcome.resumable) == (charge.id, "released", False)

    @precondition(lambda self: self.charges)
    @rule(
        process=processes, number=any_charge, content=st.sampled_from(CONTENTS), part=st.integers(0, 1),
        once=st.booleans(), killed=st.sampled_from([None, None, None, "begun", "written", "committed"]),
    )  # fmt: skip
    def draw(self, process, number, content, part, once, killed) -> None:
        """The same content gives the same bytes; noise of one content is no other's; of a `once`, one content only."""
        one, charge = self.ready(process), self.chosen(number)
        if killed:
            # The start is noted by then; what is killed is the note of the query, where there is one.
            one.at["committed"] = lambda: one.at.update({killed: _kill})
        outcome = _tried(lambda: one.draw(charge.id, content, part=part, once=once))
        one.at.clear()
        if not charge.open:
            assert isinstance(outcome, UnderstudyError), outcome
            return
        charge.starts[part] = charge.starts.get(part, 0) + 1
        if isinstance(outcome, Killed):
            # Only a query that nobody has noted is killed after it was.
            if killed == "committed" and charge.first is None:
                charge.first = content
            return
        if once and charge.first not in (None, content):
            assert isinstance(outcome, UnderstudyError), outcome
            return
        assert not isinstance(outcome, Exception), outcome
        charge.first = content if once and charge.first is None else charge.first
        told = outcome.numpy().tobytes()
        assert self.released.setdefault((charge.id, content), told) == told
        assert self.noise.setdefault(told[4:], (charge.id, content)) == (charge.id, content)

    @precondition(lambda self: self.charges)
    @rule(number=any_charge, contents=st.permutations(CONTENTS), once=st.booleans())
    def draw_in_both(self, number, contents, once) -> None:
        """Two machines draw for one charge, maybe of two queries, each into a release log of its own."""
        for process, content in enumerate(contents[:2]):
            self.draw(process, number, content, 0, once, None)

    @precondition(lambda self: self.charges)
    @rule(process=processes, number=any_charge)
    def look_at_material(self, process, number) -> None:
        """Secret and salt of a charge never change, and no two charges share a salt."""
        one, charge = self.ready(process), self.chosen(number)
        outcome = _tried(lambda: one.ledger.material(charge.id, part=2))
        if not charge.open:
            assert isinstance(outcome, UnderstudyError), outcome
            return
        charge.starts[2] = charge.starts.get(2, 0) + 1
        assert (outcome.charge_id, outcome.secret) == (charge.id, charge.secret)
        charge.salt = charge.salt or outcome.salt
        assert outcome.salt == charge.salt
        assert [c.id for c in self.charges if c.salt == outcome.salt] == [charge.id]

    @precondition(lambda self: self.charges)
    @rule(process=processes, number=any_charge, fingerprint=st.sampled_from(["cpu", "cuda"]))
    def bind(self, process, number, fingerprint) -> None:
        one, charge = self.ready(process), self.chosen(number)
        outcome = _tried(lambda: one.ledger.bind_environment(charge.id, fingerprint))
        charge.environment = charge.environment or fingerprint
        assert isinstance(outcome, UnderstudyError) is (charge.environment != fingerprint), outcome

    @rule(process=processes, source=st.sampled_from(sorted(SOURCES)), often=st.sampled_from([False, False, True]))
    def purge(self, process, source, often) -> None:
        if not often:  # a purge closes all charges of a source, after which little happens
            return
        self.ready(process).ledger.purge(source)
        for charge in self.charges:
            charge.salted &= charge.source != source

    @rule(process=processes)
    def rotate(self, process) -> None:
        fresh = str(len(self.secrets)).encode() * 32
        one = self.ready(process)
        one.ledger.rotate_secret(fresh)
        one.secret = fresh
        self.secrets.append(fresh)

    @precondition(lambda self: any(c.salted for c in self.charges))
    @rule(process=processes)
    def rotate_and_release(self, process) -> None:
        """Nobody needs the secret from before once the last charge under it is closed."""
        self.rotate(process)
        for charge in self.charges:
            if charge.salted:
                self.ready(process).ledger.release(charge.id)
                charge.status, charge.salted = "released", False
        self.nothing_is_kept_that_no_charge_needs()

    @rule(process=processes)
    def open_again(self, process) -> None:
        self.process[process].open(self.secrets[-1])

    @rule(process=processes, source=st.sampled_from(sorted(SOURCES)))
    def seal(self, process, source) -> None:
        """Everything is as the chain says; another source of the name is refused, the same one changes nothing."""
        one, record = self.ready(process), SOURCES[source]
        one.ledger.verify()
        assert one.ledger.register(record).epsilon == record.epsilon
        with pytest.raises(InputError):
            one.ledger.register(record.model_copy(update={"epsilon": 9.0}))

    # What always holds

    @invariant()
    def each_sees_what_was_committed(self) -> None:
        """The two are asked in turn, so that what one did is mostly read by the other."""
        self.step += 1
        ledger = self.ready(self.step % 2).ledger
        found = {c.id: c for c in ledger.charges()}
        assert self.head() == self.count(), "a head that a kill has left behind is brought up"
        assert set(found) == {c.id for c in self.charges}
        assert len(found) == len(self.charges)
        for charge in self.charges:
            stored = found[charge.id]
            told = (stored.source, stored.request_key, stored.attempt, stored.epsilon, stored.delta, stored.status)
            assert told == (charge.source, charge.key, charge.attempt, charge.epsilon, charge.delta, charge.status)
            assert (stored.kind == "counted") is charge.counted
            assert stored.exportable is charge.counted
            assert (stored.resumable, stored.environment) == (charge.salted, charge.environment)
        attempts = [(c.key, c.attempt) for c in self.charges]
        assert len(set(attempts)) == len(attempts)

    @invariant()
    def what_was_spent_is_what_was_charged(self) -> None:
        """Never more than the budget, and never less than before."""
        counted = len(self.charges)
        if counted == self.counted and self.step % 4:
            return
        self.counted, ledger = counted, self.ready(self.step % 2).ledger
        for name, record in SOURCES.items():
            shown, exact = ledger.spent(name), self.spent(name)
            assert shown == (pytest.approx(float(exact[0]), rel=1e-9), pytest.approx(float(exact[1]), rel=1e-9))
            assert shown[0] <= record.epsilon
            assert shown[1] <= record.delta
            assert shown >= self.shown[name], "what was spent does not come back"
            self.shown[name] = shown

    @invariant()
    def nothing_is_kept_that_no_charge_needs(self) -> None:
        """Salts of open charges, earlier secrets under which one was made, starts; and the head is not ahead."""
        with closing(sqlite3.connect(self.root / "ledger.db")) as connection:
            salts = dict(connection.execute("SELECT id, salt FROM ledger_charges").fetchall())
            kept = connection.execute("SELECT count(*) FROM ledger_secrets WHERE wrapped IS NOT NULL").fetchone()[0]
            starts = connection.execute(
                "SELECT charge, part, count(*) FROM ledger_starts GROUP BY charge, part"
            ).fetchall()
        own = [salt for salt in salts.values() if salt is not None]
        assert len(set(own)) == len(own)
        assert {name for name, salt in salts.items() if salt is not None} == {c.id for c in self.charges if c.salted}
        assert kept == len({c.secret for c in self.charges if c.salted} - {self.secrets[-1]})
        assert set(starts) == {(c.id, part, times) for c in self.charges for part, times in c.starts.items()}
        assert max(self.entries, self.head()) <= self.count()
        self.entries = self.count()


def _kill() -> None:
    raise Killed


def _tried(call):
    """What a call gives or raises."""
    try:
        return call()
    except (UnderstudyError, Killed) as error:
        return error


def test_any_history_of_two_processes_is_as_the_model_says(tmp_path):
    """New histories each time where the profile says so."""
    run_state_machine_as_test(partial(Histories, tmp_path), settings=settings(max_examples=10, stateful_step_count=30))


@pytest.mark.slow
def test_many_long_histories_of_two_processes_are_as_the_model_says(tmp_path):
    exploring = settings(max_examples=60, stateful_step_count=60, derandomize=False)
    run_state_machine_as_test(partial(Histories, tmp_path), settings=exploring)

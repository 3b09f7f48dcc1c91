"""The ledger under many processes and under kill -9: nothing is lost, nothing is spent twice."""

import signal

import forked
import pytest
from unit.privacy.ledger.ledger_requests import asked

from understudy.errors import BudgetRefused, UnderstudyError
from understudy.privacy.ledger.head import Head
from understudy.privacy.ledger.ledger import Ledger, SourceRecord

SECRET = b"the client zone's secret, for tests"

# What each process runs: open the ledger, wait for the starting signal, then reserve as told.
WORKER = """
import os, pathlib, signal
from understudy.errors import BudgetRefused
from understudy.privacy.ledger.ledger import Ledger
from understudy.privacy.ledger.head import Head

def kill_at(step):
    if step == job.get("kill_at"):
        os.kill(os.getpid(), signal.SIGKILL)

head = Head(pathlib.Path(job["head"]), required=True) if "head" in job else None
ledger = Ledger(job["url"], secret=job["secret"], on_step=kill_at, head=head)
pipe.send("ready")
pipe.recv()
results = []
for request_key in job["request_keys"]:
    try:
        charge = ledger.reserve(instead_of=job.get("instead_of"), **job["asked"] | {"request_key": request_key})
        results.append((charge.id, charge.new))
        if job.get("release"):
            ledger.release(charge.id)
    except BudgetRefused:
        results.append("refused")
pipe.send(results)
"""


@pytest.fixture
def ledger(url):
    opened = Ledger(url, secret=SECRET)
    opened.register(
        SourceRecord(name="reviews", unit="example", relation="replace_special", epsilon=100.0, delta=1e-3, n=900)
    )
    return opened


def start(url, *, epsilon=0.1, **job):
    fixed = {"url": url, "secret": SECRET, "asked": asked(epsilon=epsilon), "request_keys": ["request"]}
    return forked.start(WORKER, job=fixed | job)


def run_together(processes):
    """Lets all go at once and gives what each found."""
    for _, pipe in processes:
        assert pipe.recv() == "ready"
    for _, pipe in processes:
        pipe.send("go")
    results = []
    for process, pipe in processes:
        assert pipe.poll(300)
        results.append(pipe.recv())
        assert process.wait() == 0
    return results


def test_two_hundred_charges_at_once_and_none_lost(ledger, url, tmp_path):
    """Nor does the head, which all of them write, stay behind what all of them recorded."""
    head = Head(tmp_path / "ledger.head", required=True)
    head.announce()
    jobs = [[f"{worker}/{i}" for i in range(50)] for worker in range(4)]
    results = run_together([start(url, request_keys=keys, head=str(head.path)) for keys in jobs])
    assert head.read().entries == 2 + 200
    ids = {charge_id for found in results for charge_id, _ in found}
    assert len(ids) == 200
    assert {c.id for c in ledger.charges("reviews")} == ids
    assert {c.request_key for c in ledger.charges("reviews")} == {key for keys in jobs for key in keys}
    assert ledger.spent("reviews") == (pytest.approx(20.0), pytest.approx(200e-6))


def test_of_two_processes_for_the_last_of_the_budget_one_is_refused(ledger, url):
    ledger.reserve(**asked(epsilon=94.0))
    results = run_together([start(url, request_keys=[name], epsilon=6.0) for name in ("one", "two")])
    outcomes = sorted("refused" if found == ["refused"] else "charged" for found in results)
    assert outcomes == ["charged", "refused"]
    assert ledger.spent("reviews")[0] == 100.0


def test_identical_requests_at_once_share_one_charge(ledger, url):
    results = run_together([start(url) for _ in range(3)])
    ids = [found[0][0] for found in results]
    assert len(set(ids)) == 1
    assert sorted(found[0][1] for found in results) == [False, False, True]
    assert len(ledger.charges()) == 1


def test_identical_requests_that_pay_again_at_once_share_one_charge(ledger, url):
    first = ledger.reserve(**asked())
    results = run_together([start(url, instead_of=first.id) for _ in range(3)])
    assert sorted(found[0][1] for found in results) == [False, False, True]
    assert {charge.id for charge in ledger.charges()} == {first.id, *(found[0][0] for found in results)}
    assert len(ledger.charges()) == 2


def kill_at(url, step, **job):
    process, pipe = start(url, kill_at=step, **job)
    assert pipe.recv() == "ready"
    pipe.send("go")
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(("step", "charged"), [("begun", 0), ("written", 0), ("committed", 1)])
def test_killed_while_reserving_the_charge_is_made_once(ledger, url, step, charged):
    kill_at(url, f"reserve:{step}")
    assert len(ledger.charges()) == charged
    resumed = ledger.reserve(**asked())
    assert resumed.new == (charged == 0)
    assert len(ledger.charges()) == 1
    assert ledger.spent("reviews")[0] == 0.1
    assert len(ledger.material(resumed.id).salt) == 32


@pytest.mark.parametrize(
    ("step", "status"), [("begun", "reserved"), ("written", "reserved"), ("committed", "released")]
)
def test_killed_while_releasing_the_salt_is_kept_or_gone_whole(ledger, url, step, status):
    kill_at(url, f"release:{step}", release=True)
    (charge,) = ledger.charges()
    assert charge.status == status
    if status == "reserved":
        assert len(ledger.material(charge.id).salt) == 32
    else:
        with pytest.raises(UnderstudyError, match="was released"):
            ledger.material(charge.id)
    assert ledger.release(charge.id).status == "released"
    assert ledger.reserve(**asked()).id == charge.id
    assert ledger.spent("reviews")[0] == 0.1


def test_a_charge_that_was_killed_for_ever_counts_for_ever(ledger, url):
    kill_at(url, "reserve:committed", epsilon=60.0)
    with pytest.raises(BudgetRefused, match="spent epsilon=60,"):
        ledger.reserve(**asked(request_key="another", epsilon=50.0))


# What a run does with its ledger, from the first opening of a home on.
RUN = """
from understudy.errors import BudgetRefused
from understudy.privacy.ledger.ledger import Ledger, SourceRecord

pipe.recv()
try:
    Ledger.open().register(SourceRecord(**source), rows)
    charge = Ledger.open().reserve(**asked)
    Ledger.open().bind_environment(charge.id, "cpu")
    Ledger.open().material(charge.id)
    pipe.send(Ledger.open().release(charge.id).status)
except BudgetRefused:
    pipe.send("refused")
"""


def test_runs_of_one_source_and_of_others_share_a_new_home(home):
    """Of two that do not fit one budget together, one is refused; no run sees anything of the others' locks."""
    public = {"unit": "example", "relation": "replace_special", "epsilon": 3.0, "delta": 1e-3, "n": 900}
    runs = []
    for number, name in enumerate(("reviews", "reviews", "clinic")):
        charge = asked(source=name, request_key=str(number), epsilon=2.0)
        rows = [bytes([row]) + name.encode() for row in range(100)]
        runs.append(forked.start(RUN, source={"name": name, **public}, rows=rows, asked=charge))
    for _, pipe in runs:
        pipe.send("go")
    found = [pipe.recv() if pipe.poll(120) else None for _, pipe in runs]
    assert [process.wait() for process, _ in runs] == [0] * 3
    assert (sorted(found[:2]), found[2]) == (["refused", "released"], "released")
    ledger = Ledger.open()
    ledger.verify()
    assert [ledger.spent(name)[0] for name in ("reviews", "clinic")] == [2.0, 2.0]

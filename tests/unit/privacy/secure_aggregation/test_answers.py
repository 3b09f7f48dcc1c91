"""A client that was restarted sends what it sent before, or nothing."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import forked
import numpy as np
import pytest

from understudy.errors import UnderstudyError
from understudy.privacy.noise import derive_key
from understudy.privacy.secure_aggregation import client
from understudy.privacy.secure_aggregation.aggregation import SecureSettings, masked_sum
from understudy.privacy.secure_aggregation.answers import Answers
from understudy.privacy.secure_aggregation.round import UnmaskRequest, plan_round

N, D = 8, 6
SETTINGS = SecureSettings(bits=12, noise_multiplier=1.0, smallest_surviving=4, threshold=3)


def secret(i):
    return derive_key(b"secure aggregation, for tests", charge_id="", salt=b"", step=i, purpose="client")


def vectors():
    rows = np.random.default_rng(0).standard_normal((N, D))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def together(records=None, rows=None, **options):
    fixed = {"participating": np.ones(N, bool), "d": D, "client_secret": secret, "step": 0, "record": True}
    return masked_sum(vectors() if rows is None else rows, SETTINGS, records=records, **(fixed | options))


EVERYONE = UnmaskRequest(frozenset(range(N)), frozenset())
WITHOUT_5 = UnmaskRequest(frozenset(range(N)) - {5}, frozenset({5}))


class Round:
    """Client 0 of a round, started as often as one likes; the others are as they were."""

    def __init__(self, records):
        result = together()
        self.plan, self.records = result.plan, records
        sent = result.transcript.messages
        self.keys = {m.sender: m.payload for m in sent if m.kind == "keys" and m.sender != 0}
        self.sealed = {m.sender: m.payload for m in sent if m.receiver == 0}

    def start(self, vector=None, plan=None):
        vector = vectors()[0] if vector is None else vector
        return client.start(plan or self.plan, 0, vector, secret=secret(0), records=self.records)

    def distributed(self):
        return client.distribute(self.plan, self.start(), self.keys)[0]

    def reveal(self, request):
        return client.reveal(self.plan, self.distributed(), request, self.sealed)[1]

    def mask(self, without=None, vector=None):
        keys = {i: key for i, key in self.keys.items() if i != without}
        return client.masked_input(self.plan, self.start(vector), keys)


@pytest.fixture
def round_(tmp_path):
    return Round(tmp_path / "records")


def test_a_restarted_client_answers_no_second_request(round_):
    """Client 5 among the survivors, then among the dropped: both of its shares, and its vector lies open."""
    first = round_.reveal(WITHOUT_5)
    assert round_.reveal(WITHOUT_5) == first
    with pytest.raises(UnderstudyError, match=r"client 0 .*a second, different request"):
        round_.reveal(EVERYONE)
    assert round_.reveal(WITHOUT_5) == first


REVEAL = """
from understudy.errors import UnderstudyError
from unit.privacy.secure_aggregation.test_answers import Round

try:
    pipe.send(Round(records).reveal(request))
except UnderstudyError as error:
    pipe.send(str(error))
"""


def test_another_process_answers_no_second_request(round_):
    def answer(request):
        process, pipe = forked.start(REVEAL, records=round_.records, request=request)
        answered = pipe.recv()
        assert process.wait() == 0
        return answered

    first = round_.reveal(WITHOUT_5)
    assert answer(WITHOUT_5) == first
    assert "a second, different request" in answer(EVERYONE)


def test_a_restarted_client_masks_for_the_same_partners_only(round_):
    """The difference of two masked vectors is the mask with the partner that is left out."""
    first = round_.mask()
    assert round_.mask() == first
    with pytest.raises(UnderstudyError, match="other partners"):
        round_.mask(without=5)


def test_a_restarted_client_shares_with_the_same_neighbours_only(round_):
    _, first = client.distribute(round_.plan, round_.start(), round_.keys)
    assert client.distribute(round_.plan, round_.start(), round_.keys)[1] == first
    assert set(first) == set(round_.keys)
    fewer = {i: key for i, key in round_.keys.items() if i != 5}
    exchanged = round_.keys | {4: round_.keys[5], 5: round_.keys[4]}
    for keys in (fewer, exchanged):
        with pytest.raises(UnderstudyError, match="other neighbours"):
            client.distribute(round_.plan, round_.start(), keys)


@pytest.mark.parametrize("sent", ["keys", "shares", "masked", "unmask"])
def test_whatever_was_sent_binds_the_session_to_the_vector(round_, sent):
    acts = {
        "keys": lambda vector: client.advertise(round_.start(vector)),
        "shares": lambda vector: client.distribute(round_.plan, round_.start(vector), round_.keys),
        "masked": lambda vector: round_.mask(vector=vector),
        "unmask": lambda vector: round_.reveal(EVERYONE),
    }
    acts[sent](vectors()[0])
    for kind in ("keys", "shares", "masked"):
        with pytest.raises(UnderstudyError, match="another vector"):
            acts[kind](vectors()[1])
    acts[sent](vectors()[0])


def test_a_new_attempt_is_a_session_of_its_own(round_):
    round_.mask()
    again = plan_round(SETTINGS, n=N, d=D, step=0, attempt=b"second")
    other = round_.start(vectors()[1], plan=again)
    assert client.advertise(other) != client.advertise(round_.start())
    with pytest.raises(TypeError, match="attempt"):
        plan_round(SETTINGS, n=N, d=D, step=0)


def test_of_two_different_requests_at_once_one_is_answered(tmp_path):
    """The record is made whole and once, whoever is first."""
    for number in range(5):
        answers = [Answers(tmp_path, bytes([number]) * 32, 0, secret(0)) for _ in range(8)]

        def ask(i, answers=answers):
            try:
                return answers[i].once("unmask", (bytes([i]),), bytes([i]))
            except UnderstudyError:
                return None

        with ThreadPoolExecutor(8) as pool:
            found = [payload for payload in pool.map(ask, range(8)) if payload is not None]
        assert len(found) == 1
        assert [ask(i) for i in range(8)].count(found[0]) == 1


def test_what_is_sent_is_on_the_disk_first_and_closed_to_others(round_, monkeypatch):
    client.advertise(round_.start())
    assert stat.S_IMODE(round_.records.stat().st_mode) == 0o700
    files = list(round_.records.iterdir())
    assert {path.suffix for path in files} == {".vector", ".keys"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(UnderstudyError, match="nothing is sent"):
        round_.mask()
    assert {path.suffix for path in round_.records.iterdir()} == {".vector", ".keys"}


def test_nothing_of_the_vector_or_the_secret_is_in_the_records(round_):
    round_.mask()
    kept = b"".join(path.read_bytes() for path in round_.records.iterdir())
    assert secret(0) not in kept
    assert round_.start().encoded.tobytes() not in kept
    assert secret(0).hex() not in repr(round_.start().answers)


def test_a_round_that_is_resumed_repeats_its_messages_and_one_on_other_rows_is_refused(tmp_path):
    first = together(tmp_path)
    again = together(tmp_path)
    assert again.transcript.messages == first.transcript.messages
    assert (again.values == first.values).all()
    plain = together()
    assert plain.transcript.messages == first.transcript.messages
    changed = vectors()
    changed[3] = 0
    with pytest.raises(UnderstudyError, match=r"client 3 .*another vector"):
        together(tmp_path, rows=changed)
    with pytest.raises(UnderstudyError, match=r"client 2 .*another vector"):
        together(tmp_path, participating=np.arange(N) != 2)

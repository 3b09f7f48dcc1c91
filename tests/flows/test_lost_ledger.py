"""A ledger that lost entries, through the command line: one line that says what to do, and nothing is founded."""

import json

import pytest

REGISTER = ("ledger", "register", "ward", "--budget", "8,1e-4", "--rows", "100")


@pytest.fixture
def deleted(call, home):
    assert call(*REGISTER)[0] == 0
    (home / "ledger.db").unlink()
    return home / "ledger.db"


def test_a_deleted_ledger_is_refused_by_every_command(call, deleted):
    for words in (REGISTER, ("ledger", "show"), ("ledger", "budget", "ward"), ("secret", "rotate")):
        code, said = call(*words)
        assert code == 1
        (line,) = [line for line in said.splitlines() if line.startswith("understudy:")]
        assert "ledger.db is gone" in line
        assert "understudy ledger accept-loss" in line
        assert not deleted.exists()


def test_an_accepted_loss_is_shown_for_ever(call, deleted):
    code, said = call("ledger", "accept-loss", "--json")
    loss = json.loads(said)
    assert (code, loss["entries"], loss["left"]) == (0, 2, 1)
    assert call(*REGISTER)[0] == 0
    code, said = call("ledger", "show")
    assert code == 0
    assert loss["at"] in said
    assert "1 of 2 entries" in " ".join(said.split())
    code, said = call("ledger", "accept-loss")
    assert code == 2
    assert "lost entries" in said

"""Two homes of one ledger: what one of them released is not released again for another query by the other."""

import shutil

import pytest
import torch

from understudy.errors import UnderstudyError
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.privacy.queries import Query, queries_to_json
from understudy.tasks.charge_receipt import ChargeReceipt, open_mechanisms, release_log

SUM = Query(kind="gaussian_sum", name="scores", units=10, sensitivity=1.0, noise_multiplier=4.0)
COUNTS = Query(kind="histogram", name="sizes", units=10, sensitivity=1.0, noise_multiplier=4.0)


@pytest.fixture
def homes(tmp_path, monkeypatch):
    """Enters one of several homes, which have the ledger and the secret in common."""
    monkeypatch.setenv("UNDERSTUDY_SECRET", "s" * 64)
    monkeypatch.setenv("UNDERSTUDY_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")

    def enter(name: str) -> None:
        home = tmp_path / name
        home.mkdir(mode=0o700, exist_ok=True)
        monkeypatch.setenv("UNDERSTUDY_HOME", str(home))

    return enter


@pytest.fixture
def receipt(homes):
    homes("one")
    ledger, queries = Ledger.open(), (SUM, COUNTS)
    ledger.register(
        SourceRecord(name="diaries", unit="example", relation="replace_special", epsilon=8, delta=1e-2, n=10)
    )
    charge = ledger.reserve(
        source="diaries",
        request_key="one request",
        queries=queries_to_json(queries),
        epsilon=2.0,
        delta=1e-3,
        epsilon_rdp=2.5,
        unit="example",
        relation="replace_special",
        code_digest="0" * 64,
    )
    return ChargeReceipt(charge_id=charge.id, source="diaries", label=charge.label(), queries=queries)


def released(receipt, *query: float) -> torch.Tensor:
    """Opened anew, as after a restart."""
    found = open_mechanisms(receipt).gaussian_sum(
        {"x": torch.tensor(query)}, sensitivity=1.0, noise_multiplier=4.0, step=0, purpose="scores", once=True
    )
    return found["x"]


def test_another_query_is_refused_wherever_the_charge_is_known(homes, receipt):
    first = released(receipt, 1.0, 0.0)
    homes("two")
    with pytest.raises(UnderstudyError, match="has released gaussian_sum step=0"):
        released(receipt, 0.0, 1.0)
    assert not release_log(receipt.charge_id).exists()
    assert torch.equal(released(receipt, 1.0, 0.0), first), "the same query gets the same noise"


def test_a_lost_release_log_does_not_release_anew(homes, receipt):
    released(receipt, 1.0, 0.0)
    shutil.rmtree(release_log(receipt.charge_id))
    with pytest.raises(UnderstudyError, match="has released"):
        released(receipt, 1.0, 1.0)


def test_counts_that_one_home_released_are_not_those_of_another_query_in_the_next(homes, receipt):
    counts = torch.tensor([3, 7])
    first = open_mechanisms(receipt).histogram(counts, sigma=4.0, purpose="sizes")
    assert torch.equal(open_mechanisms(receipt).histogram(counts + 1, sigma=4.0, purpose="sizes"), first)
    homes("two")
    with pytest.raises(UnderstudyError, match="has released histogram"):
        open_mechanisms(receipt).histogram(counts + 1, sigma=4.0, purpose="sizes")
    assert torch.equal(open_mechanisms(receipt).histogram(counts, sigma=4.0, purpose="sizes"), first)

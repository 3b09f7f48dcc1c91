"""A run that the machine's memory cannot hold is refused before it is charged, in a dry run as well."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.errors import InputError
from understudy.models import room
from understudy.privacy.ledger.ledger import Ledger
from understudy.runs.validation import validate


@pytest.fixture(autouse=True)
def small_machine(monkeypatch):
    monkeypatch.setattr(room, "device_memory", lambda: 20 << 20)


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_gradient_matching_is_refused(call, data, random_model_folder, tmp_path, more, home):
    words = ["--source", "ward", "--epsilon", 3, "--budget", "8,0.015", "--label-names", "bad=bad,good=good"]
    words += ["--set", "max_length=24", "--set", "length=4", "--set", "projection.k=5"]
    where = ["--data", data, "--model", random_model_folder, "--out", tmp_path / "out"]
    code, said = call("run", "gradient-matching", *where, *words, *more)
    assert code == 2
    assert "this machine allows 0.0" in said
    assert (Ledger.open().sources(), Ledger.open().charges()) == ((), ())


@pytest.mark.parametrize("epsilon", [None, 3.0], ids=["plain", "private"])
def test_trajectory_matching_is_refused(request_of, tmp_path, epsilon):
    path = tmp_path / "pairs.parquet"
    pq.write_table(pa.table({"instruction": [f"ask {i}" for i in range(40)], "response": ["yes", "no"] * 20}), path)
    request = request_of(data=str(path), epsilon=epsilon, label_names=None, overrides=("max_length=56",))
    with pytest.raises(InputError, match=r"this machine allows 0\.0"):
        validate(request, "trajectory-matching")
    assert (Ledger.open().sources(), Ledger.open().charges()) == ((), ())

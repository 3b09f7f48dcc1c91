"""A run that the machine's memory cannot hold is refused before it is charged, in a dry run as well.

What the server zone's machine cannot hold is refused there, before a model is loaded.
"""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.artifacts.zone_keys import public_key
from understudy.errors import InputError
from understudy.flows import knowledge_distillation, preference_optimization
from understudy.flows.server_side import ordered
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
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


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry run"])
@pytest.mark.parametrize("given", [(), ("--set", "preferences.learning_rate=1e-4")], ids=["rate is sought", "rate"])
def test_preference_optimization_is_refused(call, random_model_folder, tmp_path, given, more, home):
    words = ["--source", "ward", "--epsilon", 3, "--budget", "8,0.015", *given]
    where = ["--data", "sample:clients", "--model", random_model_folder, "--out", tmp_path / "out"]
    code, said = call("run", "preference-optimization", *where, *words, *more)
    assert code == 2
    assert "this machine allows 0.0" in said
    assert (Ledger.open().sources(), Ledger.open().charges()) == ((), ())


@pytest.mark.parametrize("epsilon", [3.0, float("inf")])
@pytest.mark.parametrize("zone", ["both", "client"])
def test_knowledge_distillation_is_refused(request_of, tmp_path, epsilon, zone, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_ZONE", zone)
    path = tmp_path / "pairs.parquet"
    pq.write_table(pa.table({"instruction": [f"ask {i}" for i in range(40)], "response": ["yes", "no"] * 20}), path)
    request = request_of(data=str(path), epsilon=epsilon, label_names=None, overrides=())
    with pytest.raises(InputError, match=r"this machine allows 0\.0"):
        validate(request, "knowledge-distillation")
    assert (Ledger.open().sources(), Ledger.open().charges()) == ((), ())


def test_the_server_zone_refuses_a_step_before_it_is_taken(random_model_folder, monkeypatch, home):
    """The client zone cannot tell what that machine holds."""
    model = {"model": str(random_model_folder)}
    pairs = knowledge_distillation.WritePairs(bundle=None, charge="", config=KnowledgeDistillationConfig(**model))
    texts = preference_optimization.WriteTexts(
        adapter=None, config=PreferenceOptimizationConfig(**model), label_names=()
    )
    steps = {knowledge_distillation: pairs, preference_optimization: texts}
    orders = [(flow, step, ordered(step)) for flow, step in steps.items()]
    monkeypatch.setenv("UNDERSTUDY_TRUSTED_KEY", public_key("client").text)
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    for flow, step, order in orders:
        monkeypatch.setattr(type(step), "take", lambda *_: pytest.fail("the step was taken"))
        with pytest.raises(InputError, match=r"this machine allows 0\.0"):
            flow.SERVER.answer(order)

"""The same request after an update that has further charged settings: it asks before it pays once more."""

import functools
import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ConfigDict
from tests_support import SMALL

from understudy.errors import UnderstudyError
from understudy.flows.commands.run import price
from understudy.methods import registry
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.privacy.ledger.ledger import Charge, Ledger
from understudy.runs.configuration import configure
from understudy.runs.earlier_charges import parts_of
from understudy.runs.given_settings import given_settings
from understudy.runs.registration import registered
from understudy.runs.run_plan import RunPlan
from understudy.tasks.charging import charge


def as_a_later_version_has_it(plan: RunPlan) -> RunPlan:
    """Its charged settings have one more, which no private row meets, and which nobody gave."""

    class Later(type(plan.charged)):  # type: ignore[misc]
        model_config = ConfigDict(frozen=True, extra="forbid")
        further: float = 0.25

    return plan.model_copy(update={"charged": Later.model_validate(plan.charged.model_dump())})


def test_an_update_with_a_further_setting_never_pays_again_by_itself(request_of):
    """A schedule charged a second time for the same request on the same rows, and nobody was asked."""
    plan = registered(request_of(), "conditional-generation")
    ask = functools.partial(charge.fn, environment={"code": "0" * 64})
    first = ask(plan, accept_new=False)
    later = as_a_later_version_has_it(plan)
    for code in ("0", "1"):
        with pytest.raises(UnderstudyError, match=rf"charge {first.charge_id} .* paid for what this run asks for"):
            charge.fn(later, environment={"code": code * 64}, accept_new=False)
    assert [paid.id for paid in Ledger.open().charges()] == [first.charge_id]
    # What was begun goes on under its charge, also where post-processing is asked for otherwise.
    assert ask(plan, accept_new=False) == first
    other_samples = registered(request_of(samples=9), "conditional-generation")
    assert ask(other_samples, accept_new=False) == first

    second = ask(later, accept_new=True)
    assert second.charge_id != first.charge_id
    assert ask(later, accept_new=False) == ask(later, accept_new=True) == second
    assert Ledger.open().spent("ward")[0] == 6


def test_a_charge_of_a_version_that_noted_no_request_is_asked_about_once(request_of, monkeypatch):
    """Whether it paid for this run nobody can say: the key that it has is of another version's settings."""
    plan = registered(request_of(delta=0.001, epsilon=2.0), "conditional-generation")
    reserve = Ledger.reserve

    def reserved(ledger: Ledger, *, environment: str, **asked: Any) -> Charge:
        parts = {name: value for name, value in json.loads(environment).items() if name != "asked"}
        return reserve(ledger, environment=json.dumps(parts, sort_keys=True), **asked)

    with monkeypatch.context() as earlier:
        earlier.setattr(Ledger, "reserve", reserved)
        first = charge.fn(plan, environment={"code": "0" * 64}, accept_new=False)
    kept = Ledger.open().charge(first.charge_id).environment
    assert kept is not None
    assert "asked" not in kept
    assert charge.fn(plan, environment={"code": "0" * 64}, accept_new=False) == first
    later = as_a_later_version_has_it(plan)
    ask = functools.partial(charge.fn, environment={"code": "1" * 64})
    with pytest.raises(UnderstudyError, match=rf"charge {first.charge_id} .* did not note for which request"):
        ask(later, accept_new=False)
    assert ask(later, accept_new=True) != first
    # From now on requests of these queries are noted, and another one is a choice of the user's.
    asked = request_of(delta=0.001, epsilon=2.0)
    seeded = asked.model_copy(update={"overrides": (*asked.overrides, "public_seed=1")})
    ask(registered(seeded, "conditional-generation"), accept_new=False)
    assert Ledger.open().spent("ward")[0] == 6


def test_a_run_that_was_killed_right_after_it_was_charged_has_noted_its_request(request_of, monkeypatch):
    """The charge was tied to nothing yet, and after an update the same request was charged without a question."""
    plan = registered(request_of(), "conditional-generation")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as at_once:
        at_once.setattr(Ledger, "bind_environment", killed)
        with pytest.raises(KeyboardInterrupt):
            charge.fn(plan, environment={"code": "0" * 64}, accept_new=False)
    (paid,) = Ledger.open().charges()
    with pytest.raises(UnderstudyError, match=rf"charge {paid.id} .* paid for what this run asks for"):
        charge.fn(as_a_later_version_has_it(plan), environment={"code": "1" * 64}, accept_new=False)
    assert charge.fn(plan, environment={"code": "0" * 64}, accept_new=False).charge_id == paid.id


def test_two_processes_may_begin_one_charge_in_other_words(request_of, monkeypatch):
    """The second was told of another environment: only what it gave in words differed from what the first left out."""
    plan = registered(request_of(), "conditional-generation")
    reserve = Ledger.reserve

    def meanwhile(ledger: Ledger, *, environment: str, **asked: Any) -> Charge:
        in_other_words = json.dumps(json.loads(environment) | {"asked": "f" * 64}, sort_keys=True)
        first = reserve(ledger, environment=in_other_words, **asked)
        found = reserve(ledger, environment=environment, **asked)
        assert found.id == first.id
        return found

    monkeypatch.setattr(Ledger, "reserve", meanwhile)
    begin = functools.partial(charge.fn, plan, environment={"code": "0" * 64}, accept_new=False)
    assert begin() == begin()
    assert parts_of(Ledger.open().charges()[-1].environment)["asked"] == "f" * 64


def test_where_nothing_is_paid_no_price_is_named(request_of):
    """The question was whether to "pay epsilon=inf", and the announcement that epsilon=inf is charged to a budget."""
    plan = registered(request_of(epsilon=math.inf), "conditional-generation")
    assert "nothing is charged" in price(plan, is_charged=False, accepts_new=False)
    first = charge.fn(plan, environment={"code": "0" * 64}, accept_new=False)
    for one, code in ((as_a_later_version_has_it(plan), "0"), (plan, "1")):
        with pytest.raises(UnderstudyError, match=r"spends nothing of the budget.*--accept-new-charge") as asked:
            charge.fn(one, environment={"code": code * 64}, accept_new=False)
        assert "epsilon=inf" not in str(asked.value)
    assert charge.fn(plan, environment={"code": "1" * 64}, accept_new=True) != first
    assert Ledger.open().spent("ward") == (0.0, 0.0)


def test_another_request_is_charged_without_a_question(request_of, data):
    """Another setting, or other rows, is what the user changed: the price is said, and nothing else is asked."""
    ask = functools.partial(charge.fn, environment={"code": "0" * 64}, accept_new=False)
    first = ask(registered(request_of(), "conditional-generation"))
    asked = request_of(epsilon=2.0, delta=0.001)
    seeded = asked.model_copy(update={"overrides": (*asked.overrides, "public_seed=1")})
    charges = [first.charge_id, ask(registered(seeded, "conditional-generation")).charge_id]
    rows = pq.read_table(data).to_pylist()
    pq.write_table(pa.Table.from_pylist([*rows[:-1], rows[-1] | {"text": "another text"}]), data)
    charges.append(ask(registered(asked, "conditional-generation")).charge_id)
    assert [paid.id for paid in Ledger.open().charges()] == charges


def test_a_request_gives_what_its_profile_has_not(request_of):
    method = registry.get("conditional-generation")
    config = configure(request_of(), method.name)
    charged = method.charge.settings(config.model_copy(update={"model_digest": "of its files"}))
    given = json.loads(given_settings(method, config, charged))
    assert (given["profile"], given["lora.rank"], given["model_digest"]) == ("tiny", 2, "of its files")
    assert not {"samples", "generate.sampling.max_new_tokens", "public_seed"} & given.keys()
    paper = ConditionalGenerationConfig(profile="paper")
    assert json.loads(given_settings(method, paper, method.charge.settings(paper))) == {"profile": "paper"}


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_question_comes_before_the_price(call, command, data, random_model_folder, request_of, tmp_path):
    """The price of a charge was said that was refused then."""
    plan = registered(request_of(), "conditional-generation")
    paid = charge.fn(as_a_later_version_has_it(plan), environment={"code": "0" * 64}, accept_new=False)
    words = [command, "conditional-generation", "--data", data, "--source", "ward", "--epsilon", "3"]
    words += ["--label-names", "bad=bad,good=good", "--model", random_model_folder, "--samples", 12]
    words += [word for setting in SMALL for word in ("--set", setting)]
    words += ["--seeds", "0"] if command == "compare" else []
    words += ["--out", tmp_path / command]
    code, said = call(*words)
    assert (code, f"charge {paid.charge_id}" in said, "charges source" in said) == (1, True, False), said
    assert not (tmp_path / command / "export").exists()
    code, said = call(*words, "--dry-run")
    assert code == 0, said
    assert [one.id for one in Ledger.open().charges()] == [paid.charge_id]

"""Settings that exclude each other are refused by name."""

import json

import pytest
from pydantic import ValidationError
from tests_support import write_random_model

from understudy.errors import InputError
from understudy.frozen import not_in_keys
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig, promised
from understudy.methods.trajectory_matching.method import METHOD
from understudy.methods.trajectory_matching.queries import plan_of_expert, queries_of
from understudy.privacy.accounting import epsilon_pld
from understudy.privacy.queries import event_of


def test_start_epochs_beyond_the_snapshots_are_refused():
    with pytest.raises(ValidationError, match=r"distil\.max_start=3.*experts\.epochs=2"):
        TrajectoryMatchingConfig(experts={"epochs": 2}, distil={"max_start": 3})


def test_no_pseudo_tokens_are_refused():
    with pytest.raises(ValidationError, match="tokens"):
        TrajectoryMatchingConfig(distil={"tokens": 0})


def test_private_experts_never_carry_real_rows():
    with pytest.raises(ValidationError, match="carrier=selected"):
        TrajectoryMatchingConfig(experts={"private": True}, carrier="selected")
    with pytest.raises(ValueError, match="carrier=selected"):
        promised(TrajectoryMatchingConfig(carrier="selected"), has_epsilon=True)


@pytest.mark.parametrize("private", [True, False])
def test_experts_are_private_exactly_with_an_epsilon(private):
    found = promised(TrajectoryMatchingConfig(), has_epsilon=private)
    assert (found.experts.private, found.carrier) == (private, "written" if private else "selected")
    other = TrajectoryMatchingConfig(experts={"private": not private})
    with pytest.raises(ValueError, match=r"experts\.private"):
        promised(other, has_epsilon=private)


def test_all_steps_of_all_experts_are_one_event_of_the_wanted_epsilon(tmp_path):
    config = promised(TrajectoryMatchingConfig(experts={"count": 2, "epochs": 2}), has_epsilon=True)
    queries = queries_of(config, n=200, epsilon=2.0, delta=1e-4, cache=tmp_path)
    assert [query.batch for query in queries] == ["expert-0", "expert-1"]
    assert 1.97 < epsilon_pld(event_of(queries), 1e-4) <= 2.0
    one = queries_of(config.model_copy(update={"experts": config.experts.model_copy(update={"count": 1})}),
                     n=200, epsilon=2.0, delta=1e-4, cache=tmp_path)  # fmt: skip
    assert one[0].noise_multiplier < queries[0].noise_multiplier
    assert plan_of_expert(config, queries, 1).queries == queries[1:]


def test_experts_without_a_charge_ask_nothing_and_promise_nothing():
    config = promised(TrajectoryMatchingConfig(), has_epsilon=False)
    assert queries_of(config, n=200, epsilon=float("inf"), delta=1e-4) == ()
    with pytest.raises(InputError, match=r"experts\.private=true"):
        queries_of(config, n=200, epsilon=8.0, delta=1e-4)


@pytest.mark.parametrize(
    ("named", "digest"),
    [
        (lambda folder: {"tuning": {"transfer": folder}}, lambda config: config.tuning.transfer_digest),
        (
            lambda folder: {"selection": {"strategy": "less", "model": folder}},
            lambda config: config.selection.model_digest,
        ),
    ],
    ids=["transfer", "selector"],
)
def test_another_model_of_one_name_is_another_setting(named, digest, tmp_path):
    """Its digest stands in the settings, so in the cache key of what it does, and is no part of the charge."""
    folder = write_random_model(tmp_path / "other")
    config = TrajectoryMatchingConfig(**named(str(folder)))
    found = []
    for content in ("{}", '{"changed": true}'):
        (folder / "generation_config.json").write_text(content)
        found.append(METHOD.preparation.resolve(config, 100, ()))
    assert len({digest(one) for one in found} - {""}) == 2
    assert len({METHOD.charge.settings(one).model_dump_json() for one in found}) == 1


@pytest.mark.parametrize(
    ("settings", "digest"),
    [
        ({"carriers": "{}", "carrier": "public"}, lambda config: config.carriers_digest),
        (
            {"selection": {"strategy": "bm25", "target": "{}"}, "carrier": "public"},
            lambda config: config.selection.target_digest,
        ),
    ],
    ids=["carriers", "target"],
)
def test_other_pairs_in_one_public_file_are_another_setting(settings, digest, tmp_path):
    """What a run began with stands in its settings, wherever it lies, and is no part of the charge."""
    found = []
    for place, answer in (("one.csv", "good"), ("one.csv", "bad"), ("other.csv", "bad")):
        public = tmp_path / place
        public.write_text(f"instruction,response\na film,{answer}\n")
        named = json.loads(json.dumps(settings).replace("{}", str(public)))
        config = TrajectoryMatchingConfig.model_validate(named | {"experts": {"private": True}})
        found.append(METHOD.preparation.resolve(config, 100, ()))
    assert len({digest(one) for one in found} - {""}) == 2
    assert len({one.model_dump_json(exclude=not_in_keys(one)) for one in found}) == 2
    assert len({METHOD.charge.settings(one).model_dump_json() for one in found}) == 1


def test_another_evaluation_is_no_other_charge_and_nothing_that_is_distilled_meets_it(tmp_path):
    public = tmp_path / "public.csv"
    found = []
    for answer in ("good", "bad"):
        public.write_text(f"instruction,response\na film,{answer}\n")
        plain = TrajectoryMatchingConfig(evaluation={"shots": 1, "shots_from": str(public)})
        found.append(METHOD.preparation.resolve(plain, 100, ()))
    assert len({one.evaluation.shots_digest for one in found} - {""}) == 2
    assert METHOD.preparation.public_tables(found[0])["evaluation.shots_from"] == str(public)
    plain = METHOD.preparation.resolve(TrajectoryMatchingConfig(), 100, ())
    assert {one.unmeasured for one in found} == {plain}
    assert {METHOD.charge.settings(one) for one in found} == {METHOD.charge.settings(plain)}

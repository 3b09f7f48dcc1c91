"""The statement: stable keys first, nothing rounded down, nothing private, readable by a privacy officer."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import UnderstudyError
from understudy.privacy.grid import charged_sensitivity, grid_of
from understudy.privacy.inherited import EarlierRelease
from understudy.privacy.labels import Guarantee
from understudy.privacy.ledger.records import Charge, SourceRecord
from understudy.privacy.naming import named_table, without_place
from understudy.privacy.queries import Query, queries_to_json
from understudy.privacy.shown_cost import cost_in_words, round_up
from understudy.privacy.statement import (
    STABLE_KEYS,
    Access,
    PretrainedModel,
    StatementFacts,
    build_statement,
    mechanism_facts,
)
from understudy.privacy.statement_words import render_markdown

SOURCE = SourceRecord(name="reviews", unit="example", relation="replace_special", epsilon=8.0, delta=1e-4, n=1000)
QUERIES = (
    Query(
        kind="gaussian_sum",
        name="train/lm",
        units=1000,
        steps=200,
        sensitivity=0.1,
        noise_multiplier=1.5,
        batch="train",
        sampling_probability=0.0213,
    ),
    Query(kind="histogram", name="class-sizes", units=1000, sensitivity=1.0, noise_multiplier=20.0),
)
ASKS = {"train/lm": "sum of clipped gradients", "class-sizes": "rows per class"}


def charge(**changes):
    fields = {
        "id": "0123456789abcdef01234567",
        "source": "reviews",
        "request_key": "secret-looking-request-key",
        "attempt": 1,
        "kind": "counted",
        "queries": queries_to_json(QUERIES),
        "epsilon": 2.99971,
        "delta": 1.23456e-5,
        "unit": "example",
        "relation": "replace_special",
        "accountant": "PLD",
        "epsilon_rdp": 3.21049,
        "status": "released",
        "simulation": False,
        "key_id": "00ff",
        "code_digest": "c0de",
        "created_at": "2024-05-06T07:08:09+00:00",
        "released_at": "2024-05-06T08:08:09+00:00",
        "new": False,
    }
    return Charge(**(fields | changes))


def facts(**changes):
    fields = {
        "mechanisms": tuple(mechanism_facts(query, asks=ASKS[query.name]) for query in QUERIES),
        "contributions": "each example's gradient is clipped to L2 norm 0.1",
        "trust": "the machine that trains sees raw rows",
        "against": "everyone who sees what is released",
        "released": ("synthetic text", "the trained model"),
        "accesses": (Access(task="train", reads="rows", through="DP-SGD"),),
        "choices": "fixed in advance",
        "declared_public": {"n": 1000, "label names": ("negative", "positive"), "delta": 1e-5},
        "pretrained_models": (PretrainedModel(name="tiny-llama", digest="abcd"),),
        "restarts": 0,
        "config_digest": "c0nf",
        "time": "2024-05-06T08:09:10+00:00",
    }
    return StatementFacts(**(fields | changes))


def statement(*, spent=(5.00001, 2e-5), **changes):
    by_charge = {k: v for k, v in changes.items() if k in Charge.model_fields}
    by_facts = {k: v for k, v in changes.items() if k in StatementFacts.model_fields}
    return build_statement(facts(**by_facts), charge=charge(**by_charge), source=SOURCE, spent=spent)


def earlier(**changes):
    promised = {"unit": "example", "relation": "replace_special", "epsilon": 2.0, "delta": 1e-6, "accountant": "PLD"}
    guarantee = Guarantee(**({"source": "clinic", "charge_id": "earlier"} | promised | changes))
    return EarlierRelease(setting="model", name="model", guarantees=(guarantee,))


def test_what_it_builds_on_is_named_and_the_sum_is_promised():
    release, own = earlier(), charge()
    found = statement(inherited=(release, release))
    assert found["inherited"] == [release.model_dump()] * 2
    assert found["warnings"][0] == (
        "model=model was itself released, under a promise of epsilon=2, delta=1e-06 for one example (replace_special, "
        "PLD) of source 'clinic' (charge earlier)."
    )
    added = cost_in_words(
        own.epsilon + 2, own.delta + 1e-6, unit="example", relation="replace_special", accountant="sum of PLD"
    )
    assert found["warnings"][-1].endswith(f"is promised the sum, {added}."), "one charge counts once"
    assert f"**Note:** {found['warnings'][-1]}" in render_markdown(found)
    assert statement()["inherited"] == statement()["warnings"] == []


def test_a_sum_with_a_heuristic_promise_is_called_heuristic():
    found = statement(inherited=(earlier().model_copy(update={"heuristic": True}),))["warnings"]
    assert "under a heuristic promise of" in found[0]
    assert found[-1].endswith(", which is heuristic like the promise that it contains.")


def apart(**changes):
    release = earlier(**changes)
    return release.model_copy(update={"disjoint": tuple(one.source for one in release.guarantees)})


def test_promises_of_sources_that_are_disjoint_do_not_add():
    found = statement(inherited=(apart(source="school"),))
    assert found["warnings"][-2:] == [
        "Source 'school' was registered as disjoint: nobody in it is in 'reviews'.",
        "So this run's own promise holds as it is.",
    ]
    assert found["inherited"][0]["disjoint"] == ("school",), "the statement says that it was declared"


def test_a_source_that_is_disjoint_does_not_hide_one_that_is_not():
    own = charge()
    both = (
        apart(source="school", unit="client", relation="add_or_remove_one"),
        earlier(charge_id="other", epsilon=3.0),
    )
    said = statement(inherited=both)["warnings"][-1]
    cost = cost_in_words(
        own.epsilon + 3, own.delta + 1e-6, unit="example", relation="replace_special", accountant="sum of PLD"
    )
    whom = "Whoever is in the rows of this run and of those of them that are not disjoint"
    assert said == f"{whom} is promised the sum, {cost}."


def test_epsilons_of_other_units_are_not_added():
    said = statement(inherited=(earlier(unit="client", relation="add_or_remove_one"),))["warnings"]
    assert "cannot be added" in said[-1]


def test_stable_keys_come_first_and_in_order():
    found = statement()
    assert tuple(found)[: len(STABLE_KEYS)] == STABLE_KEYS
    written = "epsilon delta unit relation accountant epsilon_rdp mechanisms ledger_entries source verdict"
    assert list(found)[:10] == written.split()


def test_it_says_everything_that_privacy_asks_for():
    wanted = {"rounding", "contributions", "trust", "against", "released", "accesses", "choices"}
    wanted |= {"declared_public", "this_run", "budget", "pretrained_models", "third_parties", "randomness"}
    wanted |= {
        "floating_point",
        "restarts",
        "code_digest",
        "config_digest",
        "time",
        "audits",
        "not_private",
        "warnings",
    }
    assert wanted <= set(statement())


def test_figures_are_rounded_up_everywhere():
    found = statement()
    assert (found["epsilon"], found["delta"], found["epsilon_rdp"]) == (3.0, 1.235e-5, 3.211)
    assert found["this_run"]["epsilon"] == 3.0
    assert found["ledger_entries"][0]["epsilon"] == 3.0
    assert (found["budget"]["spent_epsilon"], found["budget"]["epsilon"]) == (5.001, 8.0)
    words = render_markdown(found)
    assert "2.99" not in words
    assert "5.00001" not in words


@given(st.floats(min_value=1e-300, max_value=1e300), st.integers(1, 8))
def test_rounding_up_never_goes_down_and_hardly_up(value, digits):
    rounded = round_up(value, digits=digits)
    assert value <= rounded <= value * (1 + 1.1 * 10 ** (1 - digits))
    assert round_up(rounded, digits=digits) == rounded


def test_round_numbers_stay():
    assert [round_up(v) for v in (3.0, 0.1, 1e-5, 0.0, math.inf)] == [3.0, 0.1, 1e-5, 0.0, math.inf]


def test_it_is_json_both_ways():
    for found in (statement(), statement(kind="internal", epsilon=math.inf, epsilon_rdp=math.inf)):
        text = json.dumps(found, allow_nan=False)
        # A tuple comes back as a list, which reads the same.
        assert json.dumps(json.loads(text)) == text
        assert render_markdown(json.loads(text)) == render_markdown(found)


def test_verdicts():
    assert statement()["verdict"] == "proven under assumptions"
    assert statement(heuristics=("noise is reused",))["verdict"] == "heuristic"
    assert "**Note:** too much noise" in render_markdown(statement(warnings=("too much noise",)))
    internal = statement(kind="internal", epsilon=math.inf, epsilon_rdp=math.inf)
    assert (internal["verdict"], internal["epsilon"], internal["epsilon_rdp"]) == ("none", None, None)
    simulation = statement(kind="internal", simulation=True)
    assert (simulation["verdict"], simulation["epsilon"]) == ("none", None)


def test_the_noise_that_ran_is_told():
    first, second = statement()["mechanisms"]
    assert first["standard_deviation"] == 1.5 * charged_sensitivity(0.1)
    assert first["sensitivity"] == charged_sensitivity(0.1) > 0.1
    assert (first["grid"], second["grid"]) == (grid_of(0.1), 1.0)
    assert (first["steps"], first["sampling_probability"], first["l2_clip_norm"]) == (200, 0.0213, 0.1)
    assert "Poisson" in first["sampler"]
    assert (second["l2_clip_norm"], second["standard_deviation"]) == (None, 20.0)
    assert "every unit" in second["sampler"]


@pytest.mark.parametrize(
    "mechanisms",
    [
        lambda both: both[:1],
        lambda both: both[::-1],
        lambda both: (),
        lambda both: (*both, both[0]),
        lambda both: (both[0].model_copy(update={"noise_multiplier": 9.9}), both[1]),
        lambda both: (both[0].model_copy(update={"steps": 1}), both[1]),
    ],
    ids=["one left out", "another order", "none", "one too many", "more noise", "fewer steps"],
)
def test_mechanisms_that_are_not_the_charged_list_are_refused(mechanisms):
    with pytest.raises(ValueError, match="charged list"):
        statement(mechanisms=mechanisms(facts().mechanisms))


def test_epsilon_is_computed_again_from_the_list():
    """A charge of less than its list costs, as a damaged calibration once made it, is stated by nobody."""
    damaged = (QUERIES[0].model_copy(update={"noise_multiplier": 0.1}), QUERIES[1])
    with pytest.raises(UnderstudyError, match=r"(?s)epsilon=2\.99971.*calibrations"):
        statement(queries=queries_to_json(damaged))
    with pytest.raises(UnderstudyError, match=r"epsilon=0\.1 "):
        statement(epsilon=0.1)
    internal = {"kind": "internal", "epsilon": math.inf, "epsilon_rdp": math.inf}
    mechanisms = tuple(mechanism_facts(query, asks="a sum") for query in damaged)
    found = statement(mechanisms=mechanisms, queries=queries_to_json(damaged), **internal)
    assert found["epsilon"] is None, "nothing is promised"


def test_a_masked_sum_is_told_with_the_grid_of_its_integers():
    query = Query(
        kind="masked_sum", name="scores", units=100, steps=8, sensitivity=1.0, noise_multiplier=4.0, batch="taking-part"
    )
    found = mechanism_facts(query, asks="sum of score vectors", grid=2.0**-12)
    assert (found.noise, found.grid, found.sensitivity, found.steps) == ("discrete gaussian", 2.0**-12, 1.0, 8)
    assert "every unit" in found.sampler, "a mask that everyone is on samples nothing"
    sampled = query.model_copy(update={"sampling_probability": 0.25})
    assert "Poisson" in mechanism_facts(sampled, asks="").sampler


def test_a_charge_of_another_source_is_refused():
    with pytest.raises(ValueError, match="clinic"):
        build_statement(facts(), charge=charge(source="clinic"), source=SOURCE, spent=(0.0, 0.0))


def test_words_say_what_is_promised():
    words = render_markdown(statement())
    for part in (
        "# Privacy statement for the source `reviews`",
        "**Status of the guarantee: proven under assumptions.**",
        "one example is replaced by an empty one",
        "at most a factor e^3 (about 20.1)",
        "extra probability of at most 1.235e-05",
        "cross-check by Renyi DP: epsilon 3.211",
        "gaussian noise of standard deviation 0.150146 ",
        "grid 2^-30",
        "discrete gaussian noise of standard deviation 20 ",
        "grid 2^0",
        "each contribution clipped to L2 norm 0.1",
        "train reads rows: DP-SGD",
        "label names: negative, positive",
        "Third parties that saw raw text: none.",
        "passing an audit does not prove privacy",
        "charge 0123456789abcdef01234567",
    ):
        assert part in words, part


def test_words_of_a_client_level_run_and_of_no_guarantee():
    client = render_markdown(
        statement(unit="client", relation="add_or_remove_one", epsilon_without_amplification=40.01234)
    )
    assert "one client is added or removed" in client
    assert "epsilon 40.02" in client
    internal = render_markdown(statement(kind="internal", epsilon=math.inf, epsilon_rdp=math.inf))
    assert "**Status of the guarantee: none.**" in internal
    simulation = render_markdown(statement(kind="internal", simulation=True))
    assert "the noise came from a seed that the user knows" in simulation


def test_huge_epsilons_do_not_overflow():
    assert "about inf" in render_markdown(statement(epsilon=5000.0))


def test_the_request_key_and_the_key_id_stay_inside():
    text = json.dumps(statement()) + render_markdown(statement())
    assert "secret-looking-request-key" not in text
    assert "00ff" not in text


def test_a_model_that_another_zone_knows_is_named_without_a_digest():
    served = PretrainedModel(role="professional model", name="professional at http://127.0.0.1:8000", digest="")
    text = render_markdown(statement(pretrained_models=(served,)))
    assert "professional model: professional at http://127.0.0.1:8000 (digest not known here)" in text


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("/home/somebody/models/random", "random"),
        ("./random/", "random"),
        ("../models/random", "random"),
        ("~/models/pairs.parquet", "pairs.parquet"),
        ("~somebody/pairs.csv", "pairs.csv"),
        ("out/ward/export/model", "model"),
        *((name, name) for name in ("tiny-llama", "org/model", "org/rows#test", "sample:public", "pairs.csv")),
        *((name, name) for name in ("hub:org/rows#a/b", "sample:clinic")),
        *((name, name) for name in ("professional at http://127.0.0.1:8000/v1", "builtin", ".", "/", "")),
    ],
)
def test_a_statement_says_nothing_of_where_a_model_lies(asked, named):
    assert without_place(asked) == PretrainedModel(name=asked, digest="abcd").name == named


def test_a_table_is_known_by_its_digest_and_not_by_its_place():
    assert named_table("/home/somebody/pairs.csv", digest="0123456789abcdef") == "pairs.csv (sha256 0123456789ab)"
    assert named_table("/home/somebody/pairs.csv") == "pairs.csv"

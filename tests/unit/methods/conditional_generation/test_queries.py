import math

import pytest
from dp_accounting import ComposedDpEvent
from tests_support import VARIANTS, scheduled_by

from understudy.errors import InputError, UnderstudyError
from understudy.methods.conditional_generation import queries
from understudy.methods.conditional_generation.method import METHOD
from understudy.methods.conditional_generation.queries import QuerySchedule
from understudy.methods.method import Promise
from understudy.privacy.accounting import combined_noise_multiplier, epsilon_pld, event_from_json, event_to_json
from understudy.privacy.calibration import analytic_gaussian_sigma
from understudy.privacy.queries import Query, event_of, queries_from_json, queries_to_json

scheduled = scheduled_by(queries)
CASES = {
    **VARIANTS,
    "untrained": {"variant": "untrained"},
    "histogram": {"class_sizes": "as_in_data"},
    "unselected": {"selection": {"draws": 1}},
    "topics": {"topics": {"number": 5}},
    "both histograms": {"class_sizes": "as_in_data", "topics": {"number": 5}},
    "untrained, topics": {"variant": "untrained", "topics": {"keywords": [["a"], ["b"]]}},
}
DELTA = 1e-4


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("calibrations")


@pytest.mark.parametrize("name", CASES)
def test_the_whole_event_meets_the_target(make_config, cache, name):
    planned = scheduled(make_config(**CASES[name]), n=400, epsilon=3.0, delta=DELTA, cache=cache)
    assert 0.99 * 3.0 < epsilon_pld(event_of(planned.queries), DELTA) <= 3.0
    assert event_from_json(event_to_json(event_of(planned.queries))) == event_of(planned.queries)
    assert QuerySchedule.model_validate_json(planned.model_dump_json()) == planned


@pytest.mark.parametrize(
    ("name", "streams"),
    [
        ("alternating", [("fine-tuning", ["lm", "discriminator"])]),
        ("joint", [("fine-tuning", ["joint"])]),
        ("naive", [("fine-tuning", ["lm"])]),
        ("naive_filter", [("fine-tuning", ["lm", "filter"])]),
        ("naive_pplm", [("fine-tuning", ["lm"]), ("head", ["discriminator"])]),
        ("untrained", []),
    ],
)
def test_streams_of_each_variant(make_config, cache, name, streams):
    planned = scheduled(make_config(**CASES[name]), n=400, epsilon=3.0, delta=DELTA, cache=cache)
    assert [(t.name, [s.name for s in t.streams]) for t in planned.trainings] == streams


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "alternating",
            [("class-means", None), ("fine-tuning/lm", "fine-tuning"), ("fine-tuning/discriminator", "fine-tuning")],
        ),
        ("naive_pplm", [("class-means", None), ("fine-tuning/lm", "fine-tuning"), ("head/discriminator", "head")]),
        ("histogram", [("class-sizes", None), ("class-means", None), ("fine-tuning/joint", "fine-tuning")]),
        ("unselected", [("fine-tuning/joint", "fine-tuning")]),
        ("untrained", [("class-means", None)]),
        ("untrained, topics", [("topics", None), ("class-means", None)]),
        ("topics", [("topics", None), ("class-means", None), ("fine-tuning/joint", "fine-tuning")]),
        (
            "both histograms",
            [("class-sizes", None), ("topics", None), ("class-means", None), ("fine-tuning/joint", "fine-tuning")],
        ),
    ],
)
def test_the_list_of_queries_is_all_that_the_rows_are_asked(make_config, cache, name, expected):
    planned = scheduled(make_config(**CASES[name]), n=400, epsilon=3.0, delta=DELTA, cache=cache)
    assert [(query.name, query.batch) for query in planned.queries] == expected
    assert {query.units for query in planned.queries} == {400}
    assert queries_from_json(queries_to_json(planned.queries)) == planned.queries
    training = {f"{t.name}/{s.name}": (t, s) for t in planned.trainings for s in t.streams}
    for query in planned.queries:
        if query.batch is None:
            own = {
                "class-sizes": planned.histogram_sigma,
                "topics": planned.topics_sigma,
                "class-means": planned.means_noise,
            }[query.name]
            assert (query.noise_multiplier, query.sensitivity, query.steps) == (own, 1.0, 1)
            assert query.kind == ("gaussian_sum" if query.name == "class-means" else "histogram")
            continue
        owner, stream = training[query.name]
        assert (query.kind, query.steps) == ("gaussian_sum", owner.steps)
        assert query.sampling_probability == owner.sampling_probability
        assert (query.sensitivity, query.noise_multiplier) == (stream.l2_clip_norm, stream.noise_multiplier)


def test_two_streams_of_one_batch_are_one_event(make_config, cache):
    one = scheduled(make_config(update="joint"), n=400, epsilon=3.0, delta=DELTA, cache=cache)
    two = scheduled(
        make_config(update="alternating", train={"noise_ratio": 2.0}), n=400, epsilon=3.0, delta=DELTA, cache=cache
    )
    z = one.trainings[0].streams[0].noise_multiplier
    lm, discriminator = (stream.noise_multiplier for stream in two.trainings[0].streams)
    assert discriminator == pytest.approx(2 * lm)
    assert combined_noise_multiplier(lm, discriminator) == pytest.approx(z)
    assert lm > z


def test_steps_and_sampling_come_from_the_config_and_n(make_config):
    config = make_config(train={"batch_size": 30, "epochs": 2.5})
    training = scheduled(config, n=400, epsilon=math.inf, delta=DELTA).trainings[0]
    assert training.sampling_probability == 30 / 400
    assert training.steps == math.ceil(2.5 * 400 / 30)
    assert training.expected_batch == pytest.approx(30)
    small = scheduled(config, n=20, epsilon=math.inf, delta=DELTA).trainings[0]
    assert (small.sampling_probability, small.steps) == (1.0, 3)


@pytest.mark.parametrize("name", CASES)
def test_infinite_epsilon_means_no_noise(make_config, name):
    planned = scheduled(make_config(**CASES[name]), n=400, epsilon=math.inf, delta=DELTA)
    assert all(stream.noise_multiplier == 0 for training in planned.trainings for stream in training.streams)
    assert planned.histogram_sigma in (None, 0.0)
    assert planned.means_noise in (None, 0.0)
    assert planned.topics_sigma in (None, 0.0)
    assert QuerySchedule.model_validate_json(planned.model_dump_json()) == planned


def test_the_histogram_costs_its_share(make_config, cache):
    with_it = scheduled(make_config(class_sizes="as_in_data"), n=400, epsilon=3.0, delta=DELTA, cache=cache)
    without = scheduled(make_config(), n=400, epsilon=3.0, delta=DELTA, cache=cache)
    assert isinstance(event_of(with_it.queries), ComposedDpEvent)
    assert with_it.histogram_sigma is not None
    assert with_it.histogram_sigma > 5
    assert without.histogram_sigma is None
    noise = [p.trainings[0].streams[0].noise_multiplier for p in (without, with_it)]
    assert noise[0] < noise[1] < 1.2 * noise[0]


def test_the_histogram_of_topics_costs_its_own_share(make_config, cache):
    """Beside that of the classes, which keeps its own."""
    topics = {"number": 5, "share": 0.2}
    both = scheduled(make_config(class_sizes="as_in_data", topics=topics), n=400, epsilon=3.0, delta=DELTA, cache=cache)
    classes = scheduled(make_config(class_sizes="as_in_data"), n=400, epsilon=3.0, delta=DELTA, cache=cache)
    assert both.topics_sigma == analytic_gaussian_sigma(epsilon=0.2 * 3.0, delta=0.2 * DELTA, sensitivity=1.0)
    assert both.histogram_sigma == classes.histogram_sigma
    assert classes.topics_sigma is None
    assert both.trainings[0].streams[0].noise_multiplier > classes.trainings[0].streams[0].noise_multiplier


@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        ("topics.share", {"topics": {"number": 5, "share": 1e-9}}),
        ("class_sizes_share", {"class_sizes": "as_in_data", "class_sizes_share": 1e-9}),
    ],
)
def test_a_share_that_leaves_nothing_of_counts_is_refused_before_accounting_takes_hours(make_config, setting, changes):
    with pytest.raises(InputError, match=rf"^{setting}=1e-09: .* found \d.*e\+0\d, .*; raise {setting}"):
        queries.queries_of(make_config(**changes), n=400, epsilon=3.0, delta=DELTA)


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"delta": 0.0}, {"n": 0}])
def test_values_out_of_range_are_refused(make_config, wrong):
    with pytest.raises(InputError):
        scheduled(make_config(), **{"n": 400, "epsilon": 3.0, "delta": DELTA, **wrong})


def test_the_class_means_cost_their_share(make_config, cache):
    """A fifth of epsilon for one query costs the training little: noise adds up in squares."""
    means, without = (
        scheduled(make_config(selection={"draws": draws}), n=400, epsilon=3.0, delta=DELTA, cache=cache)
        for draws in (4, 1)
    )
    alone = [query for query in means.queries if query.name == "class-means"]
    assert epsilon_pld(event_of(alone), 0.2 * DELTA) == pytest.approx(0.6, rel=0.01)
    assert without.means_noise is None
    noise = [p.trainings[0].streams[0].noise_multiplier for p in (without, means)]
    assert noise[0] < noise[1] < 1.2 * noise[0]


def test_without_training_the_class_means_get_the_whole_budget(make_config, cache):
    alone, with_sizes, beside = (
        scheduled(make_config(**changes), n=400, epsilon=3.0, delta=DELTA, cache=cache).means_noise
        for changes in (
            {"variant": "untrained"},
            {"variant": "untrained", "class_sizes": "as_in_data"},
            {"variant": "multitask"},
        )
    )
    assert alone == pytest.approx(analytic_gaussian_sigma(epsilon=3.0, delta=DELTA, sensitivity=1.0), rel=0.01)
    assert alone < with_sizes < beside


@pytest.mark.parametrize("taken", [[], ["class-means"]])
def test_a_list_without_training_and_class_means_is_no_schedule(make_config, cache, taken):
    config = make_config(variant="untrained", class_sizes="as_in_data")
    planned = scheduled(config, n=400, epsilon=3.0, delta=DELTA, cache=cache)
    left = tuple(query for query in planned.queries if taken and query.name not in taken)
    with pytest.raises(UnderstudyError, match="found others"):
        queries.schedule_of(left)


FOREIGN = {
    "of knowledge distillation": [("fine-tuning/responses", "fine-tuning")],
    "of an expert": [("expert-0/experts", "expert-0")],
    "another stream": [("fine-tuning/lm", "fine-tuning"), ("fine-tuning/other", "fine-tuning")],
    "streams that no variant has together": [("fine-tuning/lm", "fine-tuning"), ("fine-tuning/joint", "fine-tuning")],
    "a head alone": [("head/discriminator", "head")],
    "another training beside": [("fine-tuning/lm", "fine-tuning"), ("more/lm", "more")],
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_list_of_trainings_that_no_variant_has_is_no_schedule(name):
    """It would be charged, and the method ask what is on another list."""
    asked = tuple(
        Query(kind="gaussian_sum", name=query, units=400, sensitivity=1.0, noise_multiplier=2.0, batch=batch,
              sampling_probability=0.1, steps=3)
        for query, batch in FOREIGN[name]
    )  # fmt: skip
    with pytest.raises(UnderstudyError, match="found others"):
        queries.schedule_of(asked)


@pytest.mark.parametrize("name", CASES)
def test_a_schedule_is_found_in_its_own_list(make_config, name):
    planned = scheduled(make_config(**CASES[name]), n=400, epsilon=math.inf, delta=DELTA)
    assert queries.schedule_of(planned.queries) == planned


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "no checkpoint was chosen, the last one is used."),
        ({"train": {"averaging": 0.9}}, "no checkpoint was chosen, an average over all steps is used."),
        ({"variant": "untrained"}, "no model was trained."),
    ],
)
def test_the_statement_says_which_weights_are_released(make_config, changes, said):
    config = make_config(**changes)
    asked = queries.queries_of(config, n=400, epsilon=math.inf, delta=DELTA)
    described = METHOD.preparation.describe(config, Promise(asked, 400, math.inf, DELTA))
    assert described.choices.endswith(said)
    reads = {access.task: access.reads for access in described.evaluations}
    loss = {"evaluate-loss": "the held-out rows"} if config.trains else {}
    assert reads == {"evaluate": "the rows and the held-out rows"} | loss


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"selection": {"draws": 1}}, "Poisson sampling and Gaussian sums"),
        ({"variant": "untrained"}, "Gaussian sums"),
        (
            {"class_sizes": "as_in_data"},
            "Poisson sampling and Gaussian sums and histograms with discrete Gaussian noise",
        ),
        (
            {"variant": "untrained", "topics": {"keywords": [["ticket"], ["crew"]]}},
            "Gaussian sums and histograms with discrete Gaussian noise",
        ),
    ],
)
def test_a_statement_names_every_mechanism_that_rows_are_read_through(make_config, settings, said):
    config = make_config(**settings)
    promise = Promise(queries.queries_of(config, n=400, epsilon=math.inf, delta=DELTA), 400, math.inf, DELTA)
    (access,) = METHOD.preparation.describe(config, promise).accesses
    assert access.through == f"the mechanisms' {said}"

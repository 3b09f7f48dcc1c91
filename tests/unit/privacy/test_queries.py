"""The list of queries: event, epsilon and text follow from it, and from nothing else."""

import math

import dp_accounting as dp
import pytest
from pydantic import ValidationError

from understudy.errors import InputError, UnderstudyError
from understudy.privacy.accounting import epsilon_pld
from understudy.privacy.calibration import analytic_gaussian_sigma
from understudy.privacy.events import DiscreteGaussianDpEvent, without_amplification
from understudy.privacy.grid import LEAST_SENSITIVITY, charged_sensitivity, grid_of
from understudy.privacy.queries import (
    Query,
    check_epsilon_of,
    check_queries,
    epsilon_without_amplification,
    event_delta,
    event_of,
    queries_from_json,
    queries_to_json,
)
from understudy.privacy.rounded_gaussian import rounded_gaussian


def sum_of(name="train/lm", z=1.0, **changes):
    plain = {"kind": "gaussian_sum", "units": 900, "steps": 30, "sensitivity": 0.5, "batch": "train"}
    return Query(**{**plain, "name": name, "noise_multiplier": z, "sampling_probability": 0.05, **changes})


def once(name="target", z=2.0, **changes):
    return Query(kind="gaussian_sum", name=name, units=900, sensitivity=1.0, noise_multiplier=z, **changes)


SIZES = Query(kind="histogram", name="class-sizes", units=900, sensitivity=1.0, noise_multiplier=20.0)


def test_the_event_is_that_of_the_list_in_its_order():
    joint = (2.0**-2 + 3.0**-2) ** -0.5
    found = event_of((SIZES, sum_of(z=2.0), once(z=4.0), sum_of("train/head", z=3.0)))
    histogram, training, target = found.events
    assert histogram == DiscreteGaussianDpEvent(20.0, 1)
    assert (training.count, training.event.sampling_probability) == (30, 0.05)
    assert training.event.event.noise_multiplier == pytest.approx(joint)
    assert target == dp.GaussianDpEvent(4.0)


def test_two_queries_on_one_mask_cost_more_than_two_on_masks_of_their_own_would_seem_to():
    together = event_of((sum_of(z=1.0), sum_of("train/head", z=1.0)))
    apart = event_of((sum_of(z=1.0), sum_of("train/head", z=1.0, batch="other")))
    assert epsilon_pld(together, 1e-4) > 1.1 * epsilon_pld(apart, 1e-4)


def test_a_series_without_a_mask_is_composed_without_amplification():
    found = event_of((once(steps=7),))
    assert found == dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 7)


def test_the_text_is_canonical_and_gives_the_list_back():
    listed = (SIZES, sum_of(), once(z=1 / 3))
    assert queries_from_json(queries_to_json(listed)) == listed
    assert queries_to_json(queries_from_json(queries_to_json(listed))) == queries_to_json(listed)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"kind":"gaussian_sum"}]', "nonsense"])
def test_a_text_that_is_no_list_is_refused(text):
    with pytest.raises(UnderstudyError, match="canonical JSON"):
        queries_from_json(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"sensitivity": 0.0},
        {"sensitivity": float("inf")},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": float("nan")},
        {"steps": 0},
        {"units": 0},
        {"batch": None},
        {"name": "../up"},
        {"sampling_probability": 1.5},
        {"kind": "histogram"},
        {"kind": "masked_sum", "sensitivity": 2.0},
    ],
)
def test_a_senseless_query_is_refused(changes):
    with pytest.raises(ValidationError):
        sum_of(**changes)


def test_a_list_that_contradicts_itself_is_refused():
    for listed in (
        (once(), once()),
        (sum_of(), sum_of("b", sampling_probability=0.1)),
        (sum_of(), sum_of("b", steps=9)),
    ):
        with pytest.raises(InputError):
            check_queries(listed)


def test_epsilon_is_recomputed_and_an_understated_one_refused():
    z = analytic_gaussian_sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0)
    check_epsilon_of((once(z=z * 1.001),), epsilon=1.0, delta=1e-5)
    with pytest.raises(UnderstudyError, match=r"epsilon=91.*calibration"):
        # A damaged calibration, which would be charged and stated as epsilon 1.
        check_epsilon_of((once(z=0.1),), epsilon=1.0, delta=1e-5)
    with pytest.raises(UnderstudyError, match="epsilon=1 "):
        check_epsilon_of((once(z=z * 0.99),), epsilon=1.0, delta=1e-5)
    check_epsilon_of((once(z=0.0),), epsilon=float("inf"), delta=1e-5)
    with pytest.raises(UnderstudyError, match="epsilon=inf"):
        check_epsilon_of((once(z=0.0),), epsilon=1e6, delta=1e-5)


def test_only_masked_sums_take_something_off_delta():
    masked = Query(kind="masked_sum", name="scores", units=9, steps=20, sensitivity=1.0, noise_multiplier=5.0)
    assert event_delta((once(), SIZES), epsilon=3.0, delta=1e-5) == 1e-5
    left = event_delta((masked,), epsilon=3.0, delta=1e-5)
    assert 1e-5 * (1 - 1e-10) < left < 1e-5
    # Each of the twenty rounds takes its own distance off.
    off = 1e-5 - event_delta((masked,), epsilon=20.0, delta=1e-5)
    assert off == pytest.approx(20 * (1 + math.exp(20)) * 1e-20, rel=1e-6, abs=0)
    # At an epsilon where e^epsilon times the distance eats all of delta, nothing may be charged.
    with pytest.raises(UnderstudyError):
        check_epsilon_of((masked,), epsilon=40.0, delta=1e-9)


def masked_rounds(noise_multiplier, *, steps=5):
    return Query(
        kind="masked_sum", name="scores", units=90, steps=steps, sensitivity=1.0, noise_multiplier=noise_multiplier,
        batch="rounds", sampling_probability=0.05,
    )  # fmt: skip


def test_epsilon_without_amplification_covers_its_own_distance_from_the_law():
    """Not that of the amplified epsilon, which is far smaller: e^epsilon times the distance must fit into delta."""
    plain = epsilon_without_amplification((once(),), delta=1e-5)
    assert plain == epsilon_pld(event_of((once(),)), 1e-5), "nothing masked, nothing taken off"
    found = epsilon_without_amplification((masked_rounds(0.6),), delta=1e-5)
    left = event_delta((masked_rounds(0.6),), epsilon=found, delta=1e-5)
    assert 0 < left < 1e-5
    assert epsilon_pld(without_amplification(event_of((masked_rounds(0.6),))), left) <= found
    # Here the amplified epsilon is far smaller, and at this one the distance would be larger than delta. It is so also
    # where the distance at a small epsilon is lost in delta's last bits.
    for delta in (1e-5, 1e-2):
        assert epsilon_without_amplification((masked_rounds(0.3),), delta=delta) is None


def test_rows_that_no_mechanism_reads_are_promised_nothing():
    """A list without queries costs infinity, so no finite epsilon can be charged or stated for it."""
    assert queries_from_json(queries_to_json(())) == ()
    assert epsilon_pld(event_of(()), 1e-5) == math.inf
    check_epsilon_of((), epsilon=math.inf, delta=1e-5)
    with pytest.raises(InputError, match="at least one query for epsilon=8"):
        check_epsilon_of((), epsilon=8.0, delta=1e-5)


@pytest.mark.parametrize("epsilon", [8.0, math.inf])
def test_a_clip_norm_that_floats_do_not_hold_is_refused_before_it_is_charged(epsilon):
    asked = once("sum", 9.0)
    for sensitivity in (1e-300, 1e-43, LEAST_SENSITIVITY / 1.01):
        faint = asked.model_copy(update={"sensitivity": sensitivity})
        with pytest.raises(InputError, match=r"query 'sum'.*clip norm"):
            check_epsilon_of((asked.model_copy(update={"name": "other"}), faint), epsilon=epsilon, delta=1e-5)
    least = asked.model_copy(update={"sensitivity": LEAST_SENSITIVITY})
    check_epsilon_of((least,), epsilon=epsilon, delta=1e-5)


def test_noise_that_no_mechanism_would_draw_is_refused_before_it_is_charged():
    """In steps of the grid it does not fit 64 bits, which the paid run would find out."""
    most = 1 << 30
    check_epsilon_of((once(z=float(most)),), epsilon=1.0, delta=1e-5)
    assert rounded_gaussian(bytes(32), 1, scale=most * charged_sensitivity(1.0) / grid_of(1.0)).shape == (1,)
    with pytest.raises(InputError, match=r"query 'target'.*64 bits.*4\.29e\+09; raise --epsilon"):
        check_epsilon_of((sum_of("a", noise_multiplier=50.0), once(z=4.0 * most)), epsilon=1.0, delta=1e-5)

"""Events as data: canonical JSON both ways, and how queries combine."""

import math

import dp_accounting as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import InputError, UnderstudyError
from understudy.privacy import events

multipliers = st.floats(min_value=1e-6, max_value=1e6)
leaves = st.one_of(
    multipliers.map(lambda z: events.gaussian_event(noise_multiplier=z)),
    multipliers.map(lambda s: events.histogram_event(sigma=s)),
    st.builds(
        events.sgd_event,
        sampling_probability=st.floats(min_value=1e-9, max_value=1),
        noise_multiplier=multipliers,
        steps=st.integers(1, 10**6),
    ),
    st.just(dp.NonPrivateDpEvent()),
)
any_event = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda es: events.composed_event(*es)),
        st.tuples(inner, st.integers(1, 50)).map(lambda pair: dp.SelfComposedDpEvent(*pair)),
    ),
    max_leaves=5,
)


@given(any_event)
def test_json_round_trip_rebuilds_the_event(event):
    text = events.event_to_json(event)
    assert events.event_from_json(text) == event
    assert events.event_to_json(events.event_from_json(text)) == text


def test_json_is_canonical():
    whole = events.sgd_event(sampling_probability=1, noise_multiplier=1, steps=3)
    assert events.event_to_json(whole) == events.event_to_json(
        events.sgd_event(sampling_probability=1.0, noise_multiplier=1.0, steps=3)
    )
    assert events.event_to_json(whole) == (
        '{"count":3,"event":{"event":{"kind":"gaussian","noise_multiplier":1.0},"kind":"poisson_sampled",'
        '"sampling_probability":1.0},"kind":"self_composed"}'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"kind":"os.system"}',
        '{"kind":"gaussian"}',
        '{"kind":"gaussian","noise_multiplier":"1.0"}',
        '{"kind":"gaussian","noise_multiplier":1.0,"more":1}',
        '{"kind":"self_composed","count":2,"event":null}',
        '{"kind":"composed","events":{"kind":"none"}}',
    ],
)
def test_foreign_text_is_no_event(text):
    with pytest.raises(UnderstudyError, match="canonical JSON"):
        events.event_from_json(text)


def test_an_unlisted_event_cannot_be_charged():
    with pytest.raises(UnderstudyError, match="cannot be charged"):
        events.event_to_json(dp.LaplaceDpEvent(1.0))


@given(st.lists(multipliers, min_size=1, max_size=5))
def test_combining_is_that_of_one_joint_query(zs):
    combined = events.combined_noise_multiplier(*zs)
    assert combined == pytest.approx(sum(z**-2 for z in zs) ** -0.5, rel=1e-12)
    assert combined <= min(zs) * (1 + 1e-12)


def test_a_query_without_noise_leaves_none_over():
    assert events.combined_noise_multiplier(1.0, 0.0) == 0.0
    assert events.combined_noise_multiplier(3.0) == 3.0
    assert events.combined_noise_multiplier(1e-200, 1e-200) == pytest.approx(1e-200 / math.sqrt(2), abs=0)


@pytest.mark.parametrize("bad", [(), (-1.0,), (float("nan"),), (1.0, float("inf"))])
def test_bad_multipliers_are_refused(bad):
    with pytest.raises(InputError, match="noise multipliers"):
        events.combined_noise_multiplier(*bad)


@pytest.mark.parametrize("changes", [{"sampling_probability": 0.0}, {"sampling_probability": 1.5}, {"steps": 0}])
def test_bad_plans_are_refused(changes):
    fields = {"sampling_probability": 0.1, "noise_multiplier": 1.0, "steps": 10} | changes
    with pytest.raises(InputError, match="found"):
        events.sgd_event(**fields)


def test_without_amplification_everybody_takes_part():
    event = events.composed_event(
        events.histogram_event(sigma=5.0), events.sgd_event(sampling_probability=0.1, noise_multiplier=2.0, steps=7)
    )
    plain = dp.SelfComposedDpEvent(events.gaussian_event(noise_multiplier=2.0), 7)
    assert events.without_amplification(event) == events.composed_event(events.histogram_event(sigma=5.0), plain)

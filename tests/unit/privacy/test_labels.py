"""The label algebra: what joining, post-processing and adding up may and may not do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from understudy.privacy.labels import Guarantee, Label, join, post_process, private, public, released, total


def guarantee(charge_id="c1", source="reviews", epsilon=1.0, delta=1e-5, **changes):
    fields = {"unit": "example", "relation": "replace_special", "accountant": "PLD"} | changes
    return Guarantee(source=source, charge_id=charge_id, epsilon=epsilon, delta=delta, **fields)


# The content is a function of the charge id, as in a ledger.
guarantees = st.sampled_from([guarantee(f"c{i}", f"source{i % 3}", epsilon=0.1 * (i + 1)) for i in range(8)])
labels = st.one_of(
    st.just(public()),
    st.lists(st.sampled_from(["source0", "source1", "diary"]), min_size=1).map(lambda names: private(*names)),
    st.lists(guarantees, min_size=1).map(lambda found: released(*found)),
)


@given(labels, labels, labels)
def test_join_is_commutative_associative_and_idempotent(a, b, c):
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(b, c)) == join(a, b, c)
    assert join(a, a) == a


@given(labels)
def test_public_is_neutral_and_post_processing_changes_nothing(label):
    assert join(label, public()) == label == join(label)
    assert post_process(label) == label
    assert Label.model_validate_json(label.model_dump_json()) == label


@given(labels, labels)
def test_join_never_forgets_a_source(a, b):
    joined = join(a, b)
    wanted = {*a.sources, *b.sources, *(g.source for g in (*a.guarantees, *b.guarantees))}
    assert wanted == {*joined.sources, *(g.source for g in joined.guarantees)}
    assert (joined.kind == "private") == ("private" in {a.kind, b.kind})


def test_private_dominates_released():
    joined = join(released(guarantee(source="reviews")), private("clinic"))
    assert joined == private("reviews", "clinic")


def test_a_charge_counts_once_however_often_it_is_used():
    shared = released(guarantee("c1", epsilon=2.0))
    other = released(guarantee("c2", epsilon=3.0, delta=2e-5))
    assert total(join(shared, shared, other), "reviews") == (5.0, pytest.approx(3e-5))


def test_sources_add_unless_they_are_disjoint():
    label = released(guarantee("c1", "a", 1.0), guarantee("c2", "b", 2.0), guarantee("c3", "c", 4.0))
    assert [total(label, name)[0] for name in "abc"] == [7.0, 7.0, 7.0]
    assert total(label, "a", disjoint=["b"])[0] == 5.0
    assert total(label, "b", disjoint=["a"])[0] == 6.0
    assert total(label, "c", disjoint=["a", "b"])[0] == 4.0
    assert total(label, "c", disjoint=["c"])[0] == 7.0, "a source has its own units"


@given(st.permutations([guarantee(f"c{i}", epsilon=e) for i, e in enumerate([0.1, 0.2, 0.3, 1e-9, 7.0])]))
def test_a_total_does_not_depend_on_the_order(order):
    assert total(join(*(released(g) for g in order)), "reviews") == total(released(*order), "reviews")


def test_epsilons_of_different_units_are_not_added():
    label = released(guarantee("c1", "a"), guarantee("c2", "b", unit="client"))
    with pytest.raises(ValueError, match="different units"):
        total(label, "a")
    assert total(label, "a", disjoint=["b"]) == (1.0, 1e-5) == total(label, "b", disjoint=["a"])


def test_a_private_label_has_no_total_and_a_public_one_costs_nothing():
    with pytest.raises(ValueError, match="private"):
        total(private("reviews"), "reviews")
    assert total(public(), "reviews") == (0.0, 0.0)


def test_one_charge_with_two_contents_is_refused():
    with pytest.raises(ValueError, match="two different guarantees"):
        join(released(guarantee("c1", epsilon=1.0)), released(guarantee("c1", epsilon=0.5)))


def test_names_in_words():
    assert str(public()) == "public"
    assert str(private("reviews")) == "private(reviews)"
    assert str(released(guarantee("abc"))) == "released(reviews@abc)"


@pytest.mark.parametrize("epsilon", [float("inf"), float("nan"), -1.0])
def test_a_guarantee_needs_a_finite_epsilon(epsilon):
    with pytest.raises(ValidationError):
        guarantee(epsilon=epsilon)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "private"},
        {"kind": "released"},
        {"kind": "public", "sources": ("reviews",)},
        {"kind": "private", "sources": ("reviews",), "guarantees": (guarantee(),)},
        {"kind": "released", "guarantees": (guarantee(), guarantee())},
    ],
)
def test_malformed_labels_are_refused(fields):
    with pytest.raises(ValidationError):
        Label(**fields)


def test_private_needs_a_source():
    with pytest.raises(ValueError, match="names of its sources"):
        private()

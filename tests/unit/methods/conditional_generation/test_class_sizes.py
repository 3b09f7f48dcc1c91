import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import InputError
from understudy.methods.conditional_generation.class_sizes import count_labels, public_sizes, released_sizes, share_out

NAMES = ["a", "b", "c"]


def test_null_rows_are_not_counted():
    label, valid = torch.tensor([0, 2, 2, 0, 0]), torch.tensor([True, True, True, True, False])
    assert count_labels(label, valid, 4).tolist() == [2, 0, 2, 0]


def test_balanced_sizes_add_up(make_config):
    assert public_sizes(make_config(samples=10), NAMES) == {"a": 4, "b": 3, "c": 3}


def test_explicit_sizes_are_taken_as_they_are(make_config):
    assert public_sizes(make_config(class_sizes={"c": 5, "a": 0}), NAMES) == {"a": 0, "b": 0, "c": 5}


def test_sizes_as_in_the_data_are_not_public(make_config):
    assert public_sizes(make_config(class_sizes="as_in_data"), NAMES) is None


@pytest.mark.parametrize("sizes", [{"d": 3}, {"a": 0}])
def test_unknown_or_empty_sizes_are_refused(make_config, sizes):
    with pytest.raises(InputError, match="class_sizes"):
        public_sizes(make_config(class_sizes=sizes), NAMES)


def test_a_noised_histogram_is_clipped_and_scaled():
    assert released_sizes([-7, 30, 10], NAMES, samples=8) == {"a": 0, "b": 6, "c": 2}


def test_a_histogram_of_noise_alone_falls_back_to_equal_sizes():
    assert released_sizes([-7, 0, -1], NAMES, samples=9) == {"a": 3, "b": 3, "c": 3}


@given(
    weights=st.lists(st.floats(0, 1e6), min_size=3, max_size=3).filter(lambda w: sum(w) > 1e-6),
    total=st.integers(0, 10_000),
)
def test_shares_add_up_and_are_off_by_less_than_one(weights, total):
    sizes = share_out(weights, NAMES, total=total)
    assert sum(sizes.values()) == total
    for weight, size in zip(weights, sizes.values(), strict=True):
        assert abs(size - weight * total / sum(weights)) < 1 + 1e-6

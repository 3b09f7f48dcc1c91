"""The grid: rounding stays within what is set aside for it, sums are exact, floats of it are roundings."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import UnderstudyError
from understudy.privacy import grid_sum
from understudy.privacy.grid import ALLOWANCE, MOST_NUMBERS, charged_sensitivity, grid_of
from understudy.privacy.grid_sum import GridSum, from_steps, to_steps

sensitivities = st.floats(1e-6, 1e6)


@given(sensitivities)
def test_the_grid_is_a_power_of_two_so_fine_that_rounding_costs_under_a_thousandth(sensitivity):
    grid = grid_of(sensitivity)
    assert math.frexp(grid)[0] == 0.5
    assert grid * math.sqrt(MOST_NUMBERS) <= sensitivity * ALLOWANCE / 2
    assert sensitivity < charged_sensitivity(sensitivity) < sensitivity * 1.001


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=50), sensitivities)
def test_rounding_moves_a_number_by_half_a_step_at_most(values, sensitivity):
    exact, grid = torch.tensor(values, dtype=torch.float64) * sensitivity, grid_of(sensitivity)
    steps = to_steps(exact, grid=grid)
    assert steps.dtype == torch.int64
    assert float((from_steps(steps, grid=grid, dtype=torch.float64) - exact).abs().max()) <= grid / 2


def test_narrow_numbers_are_widened_before_they_are_counted_in_steps():
    """Of so fine a grid one over a step is no float32."""
    values = 1e-36 * torch.randn(50, generator=torch.Generator().manual_seed(0))
    steps = to_steps(values, grid=grid_of(1e-36))
    assert torch.equal(steps, to_steps(values.double(), grid=grid_of(1e-36)))
    assert int(steps.abs().max()) > 1 << 26


def test_floats_of_steps_are_the_nearest_ones():
    steps = torch.tensor([0, 1, -3, 2**24 + 1, 2**24 + 3, 2**60])
    found = from_steps(steps, grid=2.0**-26)
    assert found.dtype == torch.float32
    assert found.double().mul(2.0**26).tolist() == [0, 1, -3, 2**24, 2**24 + 4, 2**60]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**35])
def test_a_query_that_is_not_finite_is_refused(bad):
    with pytest.raises(UnderstudyError, match="nothing was released"):
        to_steps(torch.tensor([0.0, bad]), grid=2.0**-26)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sensitivity", [2.0**-900, 2.0**1020])
def test_a_query_that_is_not_finite_is_refused_on_every_grid(sensitivity, bad):
    """On the coarsest ones the farthest value that is allowed is no float64."""
    total = GridSum(sensitivity=sensitivity)
    total.add({"a": torch.tensor([bad, 0.0], dtype=torch.float64)}, units=1)
    with pytest.raises(UnderstudyError, match="nothing was released"):
        total.steps()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("place", [0, 5, 9])
def test_a_number_that_is_not_finite_is_refused_wherever_it_is(place, dtype, monkeypatch):
    monkeypatch.setattr(grid_sum, "_AT_ONCE", 4)
    values = torch.zeros(10, dtype=dtype)
    for bad in (math.nan, math.inf, -math.inf):
        values[place] = bad
        with pytest.raises(UnderstudyError, match="nothing was released"):
            to_steps(values, grid=2.0**-26)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan, 1e-320])
def test_a_senseless_sensitivity_is_refused(bad):
    with pytest.raises(ValueError, match="sensitivity"):
        grid_of(bad)


def test_a_sum_of_a_million_contributions_moves_by_one_contribution_and_no_more():
    """In float32 the removal of one row of a million moves the sum by up to 1.004 times the clip norm."""
    clip, rows, numbers = 1.0, 1 << 20, 4
    generator = torch.Generator().manual_seed(0)
    direction = torch.tensor([1.0, 0.7, 0.4, 0.1], dtype=torch.float64)
    contributions = (direction + 0.1 * torch.randn(rows, numbers, generator=generator)).double()
    contributions *= clip / contributions.norm(dim=1, keepdim=True)

    def total(without: int | None) -> torch.Tensor:
        kept = contributions.clone()
        if without is not None:
            kept[without] = 0.0
        found = GridSum(sensitivity=clip)
        for part in kept.split(8192):
            found.add({"sum": part.sum(0)}, units=len(part))
        return from_steps(found.steps()["sum"], grid=grid_of(clip), dtype=torch.float64)

    whole, in_float32 = total(None), contributions.sum(0).float()
    worst32 = 0.0
    for slot in (0, 12_345, rows - 1):
        moved = float((whole - total(slot)).norm())
        assert moved <= charged_sensitivity(clip)
        assert moved == pytest.approx(clip, rel=1e-6)
        neighbour = (contributions.sum(0) - contributions[slot]).float()
        worst32 = max(worst32, float((in_float32 - neighbour).double().norm()))
    assert worst32 > charged_sensitivity(clip)  # what the grid repairs


def test_a_sum_leaves_what_it_is_given_as_it_was_and_may_be_read_twice():
    found, value = GridSum(sensitivity=1.0), torch.ones(3, dtype=torch.float64)
    for _ in range(4):
        found.add({"a": value}, units=1)
    first = found.steps()["a"].clone()
    assert torch.equal(found.steps()["a"], first)
    found.add({"a": value}, units=1 << 17)
    assert torch.equal(found.steps()["a"], first // 4 * 5)
    assert torch.equal(value, torch.ones(3, dtype=torch.float64))


def test_which_units_are_added_together_changes_the_sum_by_roundings_only():
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(4096, 5, generator=generator, dtype=torch.float64)
    sums = []
    for size in (1, 64, 4096):
        found = GridSum(sensitivity=10.0)
        for part in values.split(size):
            found.add({"a": part.sum(0)}, units=size)
        sums.append(found.steps()["a"])
    assert all(int((one - sums[0]).abs().max()) <= 1 for one in sums)


@pytest.mark.parametrize("units", [3, 40_000])
def test_small_tensors_that_are_held_together_come_back_as_themselves(units, monkeypatch):
    """With so many units each part is rounded by itself."""
    monkeypatch.setattr(grid_sum, "_SMALL", 50)
    shapes = {"b": (7,), "large": (10, 9), "a": (4, 3), "scalar": (), "none": (0, 4), "wide": (5, 5)}
    made = torch.Generator().manual_seed(0)
    parts = [{name: torch.randn(shape, generator=made) for name, shape in shapes.items()} for _ in range(3)]
    parts[0]["wide"] = parts[0]["wide"].double().T  # of another type, and not contiguous
    total = GridSum(sensitivity=0.3)
    for part in parts:
        total.add(part, units=units)
    grid, found = grid_of(0.3), total.steps()
    assert {name: tuple(steps.shape) for name, steps in found.items()} == shapes
    for name, steps in found.items():
        exact = [part[name].double() for part in parts]
        expected = to_steps(sum(exact), grid=grid) if units == 3 else sum(to_steps(one, grid=grid) for one in exact)
        assert torch.equal(steps, expected)
        assert steps.is_contiguous()


def test_a_sum_of_nothing_is_zero_in_the_shapes_that_were_named():
    like = {"a": torch.ones(3, 2, dtype=torch.bfloat16), "b": torch.ones(())}
    found = GridSum(sensitivity=1.0, like=like).steps()
    assert {name: (steps.dtype, tuple(steps.shape)) for name, steps in found.items()} == {
        "a": (torch.int64, (3, 2)),
        "b": (torch.int64, ()),
    }
    assert not any(bool(steps.any()) for steps in found.values())
    added = GridSum(sensitivity=1.0, like=like)
    added.add({"a": torch.full((3, 2), 0.5), "b": torch.tensor(0.25)}, units=1)
    assert torch.equal(from_steps(added.steps()["a"], grid=grid_of(1.0)), torch.full((3, 2), 0.5))


def test_no_more_units_are_added_up_in_floats_than_their_rounding_is_covered_for(monkeypatch):
    """Of eight units at a time: what would pass eight is rounded before, and then it begins anew."""
    monkeypatch.setattr(grid_sum, "_UNITS_AT_ONCE", 8)
    rounded, whole = [], grid_sum._rounded
    monkeypatch.setattr(grid_sum, "_rounded", lambda value, grid: rounded.append(value.clone()) or whole(value, grid))
    total, parts = GridSum(sensitivity=1.0), torch.randn(7, 9, generator=torch.Generator().manual_seed(2)).double() / 3
    for part, units in zip(parts, (3, 5, 1, 3, 4, 8, 2), strict=True):
        total.add({"a": part}, units=units)
    steps = total.steps()["a"]
    runs = [parts[0] + parts[1], parts[2] + parts[3] + parts[4], parts[5], parts[6]]
    assert len(rounded) == len(runs)
    assert all(torch.equal(found, run) for found, run in zip(rounded, runs, strict=True))
    assert torch.equal(steps, sum(to_steps(run, grid=grid_of(1.0)) for run in runs))


def test_large_tensors_and_those_of_another_device_are_held_by_themselves():
    small, large = torch.zeros(3), torch.zeros(1 << 17)
    elsewhere = torch.zeros(3, device="meta")
    values = {
        "a": small,
        "large": large,
        "far": elsewhere,
        "b": small,
        "larger": torch.zeros(1 << 18),
        "far too": elsewhere,
    }
    assert grid_sum._together(values) == (("a", "b"), ("large",), ("far", "far too"), ("larger",))

"""The rounded Gaussian: a function of the key alone, whatever path, thread count or machine computes it."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.privacy import rounded_gaussian as module
from understudy.privacy.box_muller import rounded_normals, standard_normals
from understudy.privacy.compiled_box_muller import compiled
from understudy.privacy.noise import uniform_words
from understudy.privacy.rounded_gaussian import BLOCK, ERROR, each_block, rounded_gaussian

KEY = bytes(range(32))
SCALES = (0.3, 1.0, 57.25, 2.0**27, 4000 * 2.0**27)


def oracle(radius: int, angle: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The pair of 64 known digits each, with 60 digits of precision."""
    with mpmath.workdps(60):
        size = mpmath.sqrt(-mpmath.log(mpmath.mpf(radius) / 2**64))
        signed = (angle << 2) % 2**64
        signed -= 2**64 if signed >= 2**63 else 0
        t = mpmath.pi / 4 * signed / mpmath.mpf(2) ** 63
        first, second = size * (mpmath.cos(t) - mpmath.sin(t)), size * (mpmath.cos(t) + mpmath.sin(t))
        return (-first if angle >> 63 else first), (-second if (angle >> 62) & 1 else second)


def largest_error(words: np.ndarray) -> float:
    """Of the fast path over the pairs for which its bound is claimed."""
    half = len(words) // 2
    found, in_range = standard_normals(words)
    worst = 0.0
    for pair in np.flatnonzero(in_range).tolist():
        first, second = oracle(int(words[pair]), int(words[half + pair]))
        worst = max(worst, abs(float(first - found[pair])), abs(float(second - found[half + pair])))
    return worst


def test_the_fast_path_is_within_its_bound_on_random_words():
    words = uniform_words(KEY, 4000)
    assert 0 < largest_error(words) < ERROR
    assert standard_normals(words)[1].mean() > 0.99


def test_the_fast_path_is_within_its_bound_at_the_edges_of_its_range():
    radius = [2**46, 2**46 + 1, 2**52 - 1, 2**63, 2**63 - 1, int(2**64 * math.sqrt(0.5)), int(2**64 * 0.999938)]
    # On both sides of where the series near one begins, and up to where its bound ends.
    radius += [2**64 - 2**50 - 1, 2**64 - 2**50, 2**64 - 2**50 + 1, 2**64 - 2**40, 2**64 - 2**28 - 1, 2**64 - 2**28]
    angle = [0, 1, 2**61 - 1, 2**61, 2**62, 2**63, 2**64 - 1]
    pairs = [(r, a) for r in radius for a in angle]
    words = np.array([r for r, _ in pairs] + [a for _, a in pairs], dtype=np.uint64)
    assert standard_normals(words)[1].all()
    assert 0 < largest_error(words) < ERROR


def test_pairs_outside_the_range_of_the_bound_go_down_the_slow_path():
    words = np.array([0, 1, 2**46 - 1, 2**64 - 1, 2**64 - 2**28 + 1] + [7] * 5, dtype=np.uint64)
    assert not standard_normals(words)[1].any()


@pytest.mark.parametrize("scale", SCALES)
def test_a_forced_slow_path_changes_no_value(scale):
    size = 400
    fast = rounded_gaussian(KEY, size, scale=scale)
    assert torch.equal(fast, rounded_gaussian(KEY, size, scale=scale, error=1.0))
    if scale > 1:
        assert float(fast.double().std()) == pytest.approx(scale, rel=0.15)


def test_values_that_the_fast_path_would_get_wrong_are_computed_again():
    """At a scale where float64 leaves every value open, many roundings of the fast path are wrong."""
    size, scale = 600, 2.0**52
    found = rounded_gaussian(KEY, size, scale=scale)
    words = uniform_words(KEY, 1 << 16)
    normals, _ = standard_normals(words)
    naive = np.rint(normals[:size] * scale).astype(np.int64)
    assert (naive != found.numpy()).mean() > 0.2
    radii, angles = np.split(words, 2)
    exact = [oracle(int(r), int(a))[0] for r, a in zip(radii[:20], angles[:20], strict=True)]
    # 64 digits of u and t leave the value open by some 2^-10 of a step here: far less than the fast path's error.
    for value, expected in zip(found[:20].tolist(), exact, strict=True):
        assert abs(value - float(expected * scale)) <= 1.0


def test_the_rounding_is_that_of_more_digits():
    """The digits after the 64th decide a value that 64 digits leave open."""
    low, high = module._enclosure(KEY, 2**64 - 2, 5, pair=3, second=False, scale=2.0**57, further=8)
    assert low < high
    value = module._exactly_rounded(KEY, 2**64 - 2, 5, pair=3, second=False, scale=2.0**57)
    assert low <= value <= high
    other = module._exactly_rounded(KEY, 2**64 - 2, 5, pair=4, second=False, scale=2.0**57)
    assert other != value  # another place of the key stream has other digits


def test_every_value_that_is_left_open_has_digits_of_its_own(monkeypatch):
    """A pair is known by its number in the whole draw, so no block repeats what another has read."""
    asked = []

    def exactly(key, radius, angle, *, pair, second, scale):
        asked.append((pair, second, radius, angle))
        return 2 * pair + second

    monkeypatch.setattr(module, "_exactly_rounded", exactly)
    found = rounded_gaussian(KEY, 2 * BLOCK, scale=3.0, error=1.0).view(2, 2, BLOCK // 2)  # block, second, pair
    assert torch.equal(found, torch.arange(2 * BLOCK).view(2, BLOCK // 2, 2).transpose(1, 2))
    radii, angles = (
        uniform_words(KEY, 2 * BLOCK).reshape(2, 2, BLOCK // 2).transpose(1, 0, 2).reshape(2, BLOCK).tolist()
    )
    assert len(asked) == 2 * BLOCK
    assert all((radius, angle) == (radii[pair], angles[pair]) for pair, _, radius, angle in asked)


@pytest.mark.parametrize("scale", [2.0**36, 2.0**41])
def test_what_the_bound_leaves_open_is_computed_again_and_nothing_else(scale, monkeypatch):
    """The float64 product is within 1.1 times `ERROR` of the scale; a rounding that this may decide is left open."""
    asked = []
    monkeypatch.setattr(module, "_exactly_rounded", lambda *_, pair, second, scale: asked.append((pair, second)) or 0)
    rounded_gaussian(KEY, BLOCK, scale=scale)
    normals, has_bound = standard_normals(uniform_words(KEY, BLOCK))
    product = normals.reshape(2, -1) * scale
    is_open = 0.5 - np.abs(product - np.rint(product)) <= 1.1 * ERROR * scale
    expected = {(pair, bool(second)) for second, pair in np.argwhere(is_open | ~has_bound).tolist()}
    assert set(asked) == expected
    assert 50 < len(asked) < BLOCK / 4


def test_radius_and_angle_of_every_pair_have_further_digits_of_their_own(monkeypatch):
    read, digits = [], module._further_digits
    monkeypatch.setattr(
        module, "_further_digits", lambda key, region, count: read.append(region) or digits(key, region, count)
    )
    for pair in range(9):
        module._enclosure(KEY, 2**63, 5, pair=pair, second=False, scale=1.0, further=8)
    assert sorted(set(read)) == sorted(read)
    assert len(read) == 18
    assert min(read) > 0, "the first region is that of the words"


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 200_000), st.integers(0, 200_000))
def test_asking_for_more_changes_nothing(n, m):
    few, many = sorted((n, m))
    assert torch.equal(rounded_gaussian(KEY, many, scale=1e4)[:few], rounded_gaussian(KEY, few, scale=1e4))


def test_it_depends_on_the_key_and_neither_on_threads_nor_on_the_global_generator():
    before = torch.get_num_threads()
    state = torch.random.get_rng_state()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(rounded_gaussian(KEY, 300_001, scale=1e6))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], r) for r in results[1:])
    assert torch.equal(state, torch.random.get_rng_state())
    assert not torch.equal(rounded_gaussian(KEY[::-1], 100, scale=1e6), results[0][:100])


def test_no_noise_is_zero():
    assert torch.equal(rounded_gaussian(KEY, 5, scale=0.0), torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize(
    "bad",
    [{"size": -1}, {"scale": -1.0}, {"scale": math.inf}, {"scale": math.nan}, {"scale": 2.0**58}, {"key": b"short"}],
)
def test_what_is_out_of_range_is_refused(bad):
    with pytest.raises(ValueError, match="scale"):
        rounded_gaussian(**({"key": KEY, "size": 3, "scale": 1.0} | bad))


def test_a_bound_narrower_than_the_proven_one_is_refused():
    with pytest.raises(ValueError, match="expected"):
        rounded_gaussian(KEY, 3, scale=1.0, error=ERROR / 2)


@pytest.mark.parametrize("scale", [0.0, 1e6])
def test_blocks_that_are_handed_over_are_the_whole_draw(scale):
    size, found, before = 2 * BLOCK + 100, [], torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        each_block(KEY, size, scale=scale, use=lambda start, values: found.append((start, values.copy())))
    finally:
        torch.set_num_threads(before)
    found.sort(key=lambda block: block[0])
    assert [start for start, _ in found] == [0, BLOCK, 2 * BLOCK], "each is handed over once"
    whole = np.concatenate([values for _, values in found])
    assert whole.tolist() == rounded_gaussian(KEY, size, scale=scale).tolist()


@pytest.mark.parametrize("scale", [0.3, 57.25, 2.0**27, 4000 * 2.0**27, 2.0**53, 2.0**56])
def test_the_compiled_path_gives_the_bits_of_numpy(scale):
    """Also which values are open: the slow path is asked about the same ones."""
    fill = compiled()
    assert fill is not None
    words = uniform_words(KEY, 4 * BLOCK)
    edges = [
        0,
        1,
        2**46 - 1,
        2**46,
        2**63,
        2**64 - 2**50,
        2**64 - 2**50 + 1,
        2**64 - 2**28,
        2**64 - 2**28 + 1,
        2**64 - 1,
    ]
    words[: len(edges)] = np.array(edges, dtype=np.uint64)
    pairs, distance = len(words) // 2, 0.5 - 1.1 * ERROR * scale
    root, found = np.empty(pairs), np.empty(2 * pairs, np.int64)
    is_open = np.empty(2 * pairs, np.bool_)
    fill(words, scale, distance, root, found, is_open)
    expected, expected_open = rounded_normals(words, scale, distance)
    has_bound = np.tile(standard_normals(words)[1], 2)
    assert np.array_equal(is_open, expected_open)
    assert np.array_equal(found[has_bound], expected[has_bound])
    assert has_bound.mean() > 0.99


def test_a_long_draw_begins_with_a_short_one(monkeypatch):
    """From a length on the fast path is compiled; nobody sees it by the values, on any number of threads."""
    short = rounded_gaussian(KEY, 3 * BLOCK, scale=1e6)
    assert len(short) < module.COMPILED_FROM
    before, used = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            monkeypatch.setattr(module, "compiled", lambda: used.append(1) or compiled())
            found = rounded_gaussian(KEY, module.COMPILED_FROM + 5, scale=1e6)
            assert torch.equal(found[: len(short)], short)
            longer = rounded_gaussian(KEY, module.COMPILED_FROM + BLOCK, scale=1e6)
            assert torch.equal(found, longer[: len(found)])
    finally:
        torch.set_num_threads(before)
    assert used


@pytest.mark.parametrize(("part", "filled"), [("_fill_roots", 1), ("_fill_values", 4)])
def test_compiled_loops_with_other_bits_are_left_alone(part, filled, monkeypatch):
    from understudy.privacy import compiled_box_muller

    right = getattr(compiled_box_muller, part)

    def wrong(*arguments):
        right(*arguments)
        arguments[filled][7] += 1

    monkeypatch.setattr(compiled_box_muller, part, wrong)
    monkeypatch.setattr("numba.njit", lambda **_: lambda function: function)
    assert compiled_box_muller.compiled.__wrapped__() is None

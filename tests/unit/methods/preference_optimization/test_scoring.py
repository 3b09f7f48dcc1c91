"""The sum of clipped score vectors against loops that know nothing of it, and its sensitivity."""

import itertools
import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.methods.preference_optimization import client_vectors as client_vectors_module
from understudy.methods.preference_optimization import scoring as scoring_module
from understudy.methods.preference_optimization.client_vectors import (
    CandidateSpace,
    Part,
    candidate_space,
    client_vectors,
    mean_rows,
    products_of,
    unit_rows,
)
from understudy.methods.preference_optimization.clients import client_means
from understudy.methods.preference_optimization.histogram import histogram_sum, histogram_vectors, nearest_candidates
from understudy.methods.preference_optimization.scoring import as_query, exact_sum, unclipped_mean
from understudy.privacy.grid import charged_sensitivity, grid_of
from understudy.privacy.grid_sum import to_steps
from understudy.privacy.secure_aggregation.fixed_point import encode, integer_sensitivity, squared_norm

WAYS = [{"normalise": n, "over": o} for n, o in itertools.product(("standardise", "none"), ("within", "prompt", "all"))]

# What multiples of 2^-25 are off a client's vector, about as much as the float32 of an embedding.
ROUNDED = 1e-6
FINER = 2.0**45  # so the multiples are off by nothing that counts, and what is left is the definition


def embeddings(count: int, d: int, seed: int, *, offset: float = 2.0) -> np.ndarray:
    """Unit float32 rows with a large common offset, as sentence embeddings have."""
    rows = np.random.default_rng(seed).normal(size=(count, d)) + offset * np.eye(d)[0]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def transform(scores, *, normalise, groups, sizes_of_noise, prompts):
    """Standardise the groups of one client's vector by the textbook, then clip; with prompts, centre these first."""
    vector = np.array(scores, dtype=np.float64)
    if normalise == "standardise":
        for prompt in prompts:
            vector[prompt] -= vector[prompt].mean()
        for group, noise in zip(groups, sizes_of_noise, strict=True):
            block = vector[group]
            spread = math.sqrt(sum((x - block.mean()) ** 2 for x in block))
            vector[group] = 0 if spread <= noise else (block - block.mean()) / block.std()
    return vector / max(1.0, float(np.linalg.norm(vector)))


def groups_of(count, *, over, per_prompt, labels=None):
    if over == "prompt":
        return [np.arange(start, start + per_prompt) for start in range(0, count, per_prompt)]
    return [np.flatnonzero(labels == label) for label in sorted(set(labels))] if labels is not None else [slice(None)]


def prompts_of(count, *, over, per_prompt):
    """What shares a mean but no spread."""
    return groups_of(count, over="prompt", per_prompt=per_prompt) if over == "within" else []


def by_loop(samples, candidates, mask, *, normalise, over, per_prompt, labels=None, sample_labels=None):
    """One client, one candidate, one sample at a time."""
    wide = candidates.astype(np.float64)
    of = np.zeros(len(wide), int) if labels is None else labels
    total = np.zeros(len(wide))
    for client, texts in enumerate(samples):
        if not mask[client] or len(texts) == 0:
            continue
        kinds = np.zeros(len(texts), int) if sample_labels is None else sample_labels[client]
        scores, means = np.zeros(len(wide)), {}
        for j, candidate in enumerate(wide):
            cosines = [
                float(t @ candidate) / (np.linalg.norm(t) * np.linalg.norm(candidate))
                for t, kind in zip(texts.astype(np.float64), kinds, strict=True)
                if kind == of[j]
            ]
            scores[j] = sum(cosines) / len(cosines) if cosines else 0.0
        for kind in set(kinds):
            own = texts[kinds == kind].astype(np.float64)
            means[kind] = np.linalg.norm((own / np.linalg.norm(own, axis=1, keepdims=True)).mean(0))
        groups = groups_of(len(wide), over=over, per_prompt=per_prompt, labels=labels)
        noise = [1e-6 * means.get(of[g].flat[0], 0.0) * math.sqrt(len(of[g])) for g in groups]
        prompts = prompts_of(len(wide), over=over, per_prompt=per_prompt)
        total += transform(scores, normalise=normalise, groups=groups, sizes_of_noise=noise, prompts=prompts)
    return total


def population(clients: int, d: int, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [embeddings(int(generator.integers(0, 5)), d, seed + 1 + client) for client in range(clients)]


def means_of(samples, d, **labels):
    owner = np.repeat(np.arange(len(samples)), [len(s) for s in samples])
    return client_means(np.concatenate([*samples, np.zeros((0, d), np.float32)]), owner, slots=len(samples), **labels)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("prompts", "per_prompt", "d"), [(6, 4, 12), (2, 20, 7), (1, 9, 16), (1, 40, 6)])
def test_sum_equals_a_loop_over_clients_candidates_and_samples(way, prompts, per_prompt, d, monkeypatch):
    samples = population(23, d, seed=prompts)
    assert {0, 1, 4} <= {len(s) for s in samples}, "null clients, single samples and several"
    candidates = embeddings(prompts * per_prompt, d, seed=99)
    candidates[1] = candidates[0]  # duplicates in a group
    candidates[-per_prompt:] = candidates[-1]  # a prompt whose texts are all equal
    mask = np.random.default_rng(5).random(23) < 0.7
    expected = by_loop(samples, candidates, mask, per_prompt=per_prompt, **way)
    for chunk in (None, 1, 5, 1000):
        found = exact_sum(means_of(samples, d), candidates, mask, per_prompt=per_prompt, chunk=chunk, **way)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, atol=ROUNDED * len(samples), rtol=0)
    monkeypatch.setattr(client_vectors_module, "_GRID", FINER)
    found = exact_sum(means_of(samples, d), candidates, mask, per_prompt=per_prompt, **way)
    np.testing.assert_allclose(found, expected, atol=1e-10 * len(samples), rtol=0)
    assert np.abs(expected).max() > 0.1 or prompts == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("unequal", [False, True])
def test_labels_score_their_own_candidates_and_are_clipped_once(way, unequal):
    d, per_prompt, classes = 5, 3, 3
    labels = np.repeat([0, 2, 0, 1, 2, 1] if not unequal else [0, 2, 0, 0, 0, 1], per_prompt)
    candidates, samples = embeddings(len(labels), d, seed=3), population(14, d, seed=8)
    generator = np.random.default_rng(1)
    kinds = [generator.integers(classes, size=len(s)) for s in samples]
    mask = np.ones(14, dtype=bool)
    expected = by_loop(samples, candidates, mask, per_prompt=per_prompt, labels=labels, sample_labels=kinds, **way)
    means = means_of(samples, d, labels=np.concatenate(kinds), classes=classes)
    assert means.shape == (14, classes * d)
    found = exact_sum(means, candidates, mask, per_prompt=per_prompt, labels=labels, **way)
    np.testing.assert_allclose(found, expected, atol=ROUNDED * len(samples))
    vectors = client_vectors(candidate_space(candidates, per_prompt=per_prompt, labels=labels, **way), means)
    np.testing.assert_allclose(vectors.sum(0), expected, atol=ROUNDED * len(samples))
    single = [client for client, kind in enumerate(kinds) if len(set(kind)) == 1]
    assert single
    for client in single:
        assert not vectors[client][labels != kinds[client][0]].any(), "the vector lives in its label's block"


@pytest.mark.parametrize("way", WAYS)
def test_vectors_one_by_one_add_up_to_the_sum_and_have_norm_at_most_one(way):
    samples, candidates = population(30, 8, seed=2), embeddings(40, 8, seed=7)
    means = means_of(samples, 8)
    vectors = client_vectors(candidate_space(candidates, per_prompt=10, **way), means)
    norms = np.linalg.norm(vectors, axis=1)
    assert norms.max() <= 1 + 1e-15
    assert ((norms > 0.999) == [len(s) > 0 for s in samples]).all(), "clipping is active wherever there is a text"
    found = exact_sum(means, candidates, np.ones(30, dtype=bool), per_prompt=10, **way)
    np.testing.assert_allclose(found, vectors.sum(0), atol=1e-10)


def test_without_normalisation_small_vectors_are_not_scaled_up():
    means = np.array([[0.01, 0.0], [0.0, 3.0]])
    candidates = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    space = candidate_space(candidates, normalise="none", over="all", per_prompt=3)
    assert space.by_norms, "three candidates in two dimensions take the shortcut"
    expected = np.array([[0.01, 0, 0.006], np.array([0, 1, 0.8]) / math.hypot(1, 0.8)])
    np.testing.assert_allclose(client_vectors(space, means), expected, atol=ROUNDED)
    found = exact_sum(means, candidates, np.array([True, True]), normalise="none", over="all", per_prompt=3)
    np.testing.assert_allclose(found, expected.sum(0), atol=ROUNDED)


@pytest.mark.parametrize("normalise", ["standardise", "none"])
def test_shortcut_hands_clients_across_the_spread_of_the_candidates_to_the_product(normalise):
    """Their norms cancel in the Gram matrix: 1e-5 of the largest, whose square float64 holds to 1e-6 only."""
    d, generator = 6, np.random.default_rng(0)
    spread = generator.normal(size=(50, d)) * np.array([1, 1, 1, 1, 1, 1e-5])
    turn = np.linalg.qr(generator.normal(size=(d, d))).Q  # along the axes nothing would cancel
    candidates = unit_rows(spread @ turn)
    means = np.concatenate([np.eye(d)[5:], np.eye(d)[5:] + 1e-7 * generator.normal(size=(200, d)), np.eye(d)]) @ turn
    mask = np.ones(len(means), dtype=bool)
    way = {"normalise": normalise, "over": "all", "per_prompt": 5}
    space = candidate_space(candidates, **way)
    assert space.by_norms
    expected = client_vectors(space, means)
    assert np.linalg.norm(expected, axis=1).min() > (0.99 if normalise == "standardise" else 1e-6)
    for chunk in (None, 70):
        np.testing.assert_allclose(exact_sum(means, candidates, mask, chunk=chunk, **way), expected.sum(0), atol=1e-10)


@pytest.mark.parametrize("over", ["within", "prompt", "all"])
def test_texts_equal_up_to_float32_say_nothing(over):
    d, generator = 12, np.random.default_rng(0)
    same = embeddings(1, d, seed=1).repeat(40, axis=0)
    noisy = same + (6e-8 * generator.normal(size=same.shape)).astype(np.float32)
    means, mask = means_of(population(9, d, seed=4), d), np.ones(9, dtype=bool)
    for candidates in (same, noisy):
        for size in (5, 40):
            found = exact_sum(means, candidates, mask, normalise="standardise", over=over, per_prompt=size)
            assert not found.any()
    apart = same + (1e-4 * generator.normal(size=same.shape)).astype(np.float32)
    assert exact_sum(means, apart, mask, normalise="standardise", over=over, per_prompt=5).any()


def test_prompts_without_variance_leave_the_whole_clip_to_the_others():
    candidates = np.concatenate([embeddings(4, 6, seed=1), embeddings(1, 6, seed=2).repeat(4, axis=0)])
    means = means_of([embeddings(3, 6, seed=5)], 6)
    found = exact_sum(means, candidates, np.ones(1, bool), normalise="standardise", over="prompt", per_prompt=4)
    assert np.linalg.norm(found[:4]) == pytest.approx(1, abs=1e-12)
    assert not found[4:].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("per_prompt", [4, 20])
def test_a_client_that_is_not_finite_counts_as_null(way, bad, per_prompt):
    d = 7
    means, candidates, mask = means_of(population(12, d, seed=6), d), embeddings(20, d, seed=1), np.ones(12, bool)
    null, broken = means.copy(), means.copy()
    null[3], broken[3, 2] = 0.0, bad
    options = {"per_prompt": per_prompt, **way}
    expected = exact_sum(null, candidates, mask, **options)
    assert np.array_equal(exact_sum(broken, candidates, mask, **options), expected)
    assert not np.array_equal(exact_sum(means, candidates, mask, **options), expected)


finite = st.floats(-1, 1, width=64)
odd = st.one_of(finite, st.sampled_from([0.0, 1e-300, 5e-324, 1e100, 1e300, math.nan, math.inf]))


@settings(max_examples=120, deadline=None)
@given(data=st.data(), way=st.sampled_from(WAYS), prompts=st.integers(1, 4), per_prompt=st.integers(2, 5))
def test_one_client_moves_the_sum_by_at_most_one(data, way, prompts, per_prompt):
    d, n = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    count = prompts * per_prompt
    rows = st.lists(st.lists(finite, min_size=d, max_size=d), min_size=count, max_size=count)
    candidates = np.array(data.draw(rows))
    means = np.array(data.draw(st.lists(st.lists(odd, min_size=d, max_size=d), min_size=n, max_size=n)))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    client = data.draw(st.integers(0, n - 1))
    neighbour = means.copy()
    neighbour[client] = data.draw(st.sampled_from([0.0, math.nan]))
    options = {"per_prompt": per_prompt, **way}
    one, other = (exact_sum(m, candidates, mask, **options) for m in (means, neighbour))
    moved = np.linalg.norm(one - other)
    assert moved <= 1 + 1e-9
    assert mask[client] or moved == 0
    moved32 = np.linalg.norm(as_query(one, slots=n).astype(float) - as_query(other, slots=n).astype(float))
    assert moved32 <= 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("per_prompt", [4, 30])
def test_the_others_vectors_are_the_same_to_the_last_bit(way, per_prompt):
    """Null clients keep their rows, so that no product changes its shape."""
    d, n = 9, 150
    means, candidates = means_of(population(n, d, seed=11), d), embeddings(60, d, seed=1)
    means[70] = unit_rows(np.random.default_rng(0).normal(size=(1, d)))
    neighbour = means.copy()
    neighbour[70] = 0
    space = candidate_space(candidates, per_prompt=per_prompt, **way)
    one, other = client_vectors(space, means), client_vectors(space, neighbour)
    assert one[70].any()
    assert not other[70].any()
    assert np.array_equal(np.delete(one, 70, axis=0), np.delete(other, 70, axis=0))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("per_prompt", [4, 30])
@pytest.mark.parametrize("chunk", [None, 70])
def test_who_is_drawn_changes_no_bit_of_anothers_vector(way, per_prompt, chunk):
    """A client that was never there is not drawn either: its slot is null, and the others' products stay."""
    d, n = 384 if per_prompt == 4 else 9, 71
    rng = np.random.default_rng(3)
    candidates = embeddings(60, d, seed=1)
    for slot in range(0, n, 10):
        means = np.zeros((n, d))
        means[slot] = rng.normal(size=d)
        alone = np.arange(n) == slot
        options = {"per_prompt": per_prompt, "chunk": chunk, **way}
        one, all_drawn = (exact_sum(means, candidates, mask, **options) for mask in (alone, np.ones(n, bool)))
        assert one.any()
        assert np.array_equal(one, all_drawn)


@pytest.mark.parametrize("over", ["within", "prompt"])
def test_at_the_border_of_variance_another_client_decides_nothing(over):
    """A client whose norm is a last bit above or below the floor: with a neighbour beside it, and without."""
    d, per_prompt = 384, 10
    candidates = embeddings(per_prompt if over == "within" else 20, d, seed=2)
    options = {"normalise": "standardise", "over": over, "per_prompt": per_prompt}
    rows = candidate_space(candidates, **options).parts[0].rows[:per_prompt]
    away, towards = np.linalg.svd(rows)[2][-1], rows[0] / np.linalg.norm(rows[0])

    def alive(share, drawn):
        means = np.vstack([away + share * towards, np.zeros(d)])
        return exact_sum(means, candidates, np.array([True, drawn]), **options)[:per_prompt].any()

    def border(drawn):
        low, high = 0.0, 1e-3
        while (middle := (low + high) / 2) not in (low, high):
            low, high = (low, middle) if alive(middle, drawn) else (middle, high)
        return high

    assert 0 < border(False) < 1e-3
    assert border(False) == border(True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("per_prompt", [4, 30])
@pytest.mark.parametrize("chunk", [None, 70])
def test_a_client_has_one_vector_in_whichever_slot_it_stands(way, per_prompt, chunk):
    """Where one leaves, those behind it move up: from the last block, which has few slots, into a full one."""
    d, n = 384 if per_prompt == 4 else 9, 71
    candidates, mean = embeddings(60, d, seed=1), np.random.default_rng(3).normal(size=d)

    def alone(slot):
        means = np.zeros((n, d))
        means[slot] = mean
        return exact_sum(means, candidates, np.ones(n, bool), per_prompt=per_prompt, chunk=chunk, **way)

    first = alone(0)
    assert first.any()
    for slot in (1, 63, 64, 69, 70):
        assert np.array_equal(alone(slot), first)


@pytest.mark.parametrize("way", WAYS)
def test_scores_are_exact_so_that_nobody_else_decides_how_they_are_rounded(way):
    """Some processors round the last rows of a product otherwise, and who is last hangs on who else is there."""
    d, samples = 384, [embeddings(count, 384, seed=count) for count in (1, 2, 5)]
    space = candidate_space(embeddings(12, d, seed=9), per_prompt=4, **way)
    (means,), (part,) = mean_rows(space, means_of(samples, d)), space.parts
    (products,) = products_of(space, [means])
    exact = [[sum(Fraction(a) * Fraction(b) for a, b in zip(m, row, strict=True)) for row in part.rows] for m in means]
    assert [[Fraction(score) for score in scores] for scores in products.reshape(3, -1)] == exact


@pytest.mark.parametrize(("clients", "count", "per_prompt", "over"), [(63, 10, 10, "prompt"), (31, 30, 6, "within")])
def test_a_client_has_one_vector_in_every_slot_of_a_block_of_any_size(clients, count, per_prompt, over):
    """A product of matrices rounds its last few rows otherwise than those before."""
    d = 384
    candidates, mean = embeddings(count, d, seed=2), np.random.default_rng(0).normal(size=d)
    options = {"normalise": "standardise", "over": over, "per_prompt": per_prompt}

    def alone(slot):
        means = np.zeros((clients, d))
        means[slot] = mean
        sent = client_vectors(candidate_space(candidates, **options), means)
        return exact_sum(means, candidates, np.ones(clients, bool), **options), sent[slot]

    first = alone(0)
    assert all(part.any() for part in first)
    for slot in range(1, clients):
        assert all(np.array_equal(*parts) for parts in zip(alone(slot), first, strict=True)), slot


def test_clients_who_move_up_at_the_border_of_variance_stay_as_they_are():
    """One leaves, and a client behind it, whose norm is a last bit above the floor, has another place."""
    n, d, per_prompt = 31, 384, 6
    candidates = embeddings(30, d, seed=2).astype(np.float64)
    options = {"normalise": "standardise", "over": "within", "per_prompt": per_prompt}
    away = np.linalg.svd(candidate_space(candidates, **options).parts[0].rows)[2][-1]
    towards = unit_rows(np.random.default_rng(5).normal(size=(1, d)))[0]

    def total(means):
        return exact_sum(means, candidates, np.ones(n, bool), **options)

    def alive(share, slot):
        means = np.zeros((n, d))
        means[slot] = away + share * towards
        return total(means).any()

    def border(slot):
        low, high = 0.0, 1e-2
        while (middle := (low + high) / 2) not in (low, high):
            low, high = (low, middle) if alive(middle, slot) else (middle, high)
        return high

    borders = [border(slot) for slot in range(n)]
    assert 0 < min(borders) <= max(borders) < 1e-2
    means = np.array([away + share * towards for share in borders])
    gone = np.concatenate([means[1:], np.zeros((1, d))])
    assert np.linalg.norm(total(means) - total(gone)) <= 1 + 1e-9


@pytest.mark.parametrize(("over", "d", "chunk"), [("within", 16, None), ("prompt", 384, 64)])
def test_at_the_border_of_variance_the_slot_decides_nothing(over, d, chunk):
    """A client whose norm is a last bit above or below the floor: in a full block, and in the last one."""
    n, per_prompt = 65, 10
    candidates = embeddings(40 if over == "within" else 20, d, seed=2).astype(np.float64)
    candidates[:, -1] = candidates[0, -1]
    options = {"normalise": "standardise", "over": over, "per_prompt": per_prompt}
    rows = candidate_space(candidates, **options).parts[0].rows[:per_prompt]
    away = np.linalg.svd(candidate_space(candidates, **options).parts[0].rows)[2][-1]
    towards = rows[0] / np.linalg.norm(rows[0])

    def alive(share, slot):
        means = np.zeros((n, d))
        means[slot] = away + share * towards
        return exact_sum(means, candidates, np.ones(n, bool), chunk=chunk, **options)[:per_prompt].any()

    def border(slot):
        low, high = 0.0, 1e-2
        while (middle := (low + high) / 2) not in (low, high):
            low, high = (low, middle) if alive(middle, slot) else (middle, high)
        return high

    assert 0 < border(0) < 1e-2
    assert border(0) == border(63) == border(64)


def on_the_grid(query):
    """What the mechanism makes of a query of sensitivity 1, back in float64."""
    grid = grid_of(1.0)
    return to_steps(torch.from_numpy(query), grid=grid).numpy() * grid


def neighbours(n):
    """Two sums on the worst ray, where all clients are alike: one client moves them by 1."""
    generator = np.random.default_rng(n)
    vector = unit_rows(generator.normal(size=(1, 500)))[0]
    for scale in generator.uniform(0.9, 1, size=20):
        yield n * scale * vector, (n * scale - 1) * vector


@pytest.mark.parametrize("n", [1, 1000, 100_000])
def test_query_has_sensitivity_one_even_where_all_clients_agree(n):
    for sums in neighbours(n):
        one, other = (as_query(total, slots=n) for total in sums)
        assert one.dtype == np.float64
        assert 0.999 < np.linalg.norm(one - other) <= 1
        assert np.linalg.norm(on_the_grid(one) - on_the_grid(other)) <= charged_sensitivity(1.0)


@pytest.mark.parametrize("n", [1, 10**6])
def test_query_is_shrunk_by_more_than_float64_may_have_rounded(n):
    """By what docs and docstring say: a share for each slot, and one for the vectors of most candidates."""
    shrunk = float(as_query(np.ones(1), slots=n)[0])
    assert 1 / shrunk == pytest.approx(1 + n * 2.0**-30 + 2.0**-18, rel=2.0**-40)


@pytest.mark.parametrize("way", [*WAYS, "histogram"])
@pytest.mark.parametrize("per_label", [6, 60])
def test_a_text_moves_the_columns_of_its_own_label_alone(way, per_label):
    """So the rounding of one label's candidates is all that a query must make up for, however many labels there are."""
    units, d, classes, per_prompt = 70, 8, 3, 3
    texts, labels = embeddings(units, d, 1), np.arange(units) % classes
    candidates = embeddings(classes * per_label, d, 2)
    of = np.repeat(np.arange(classes), per_label)

    def total(kept):
        owner = np.flatnonzero(kept)
        if way == "histogram":
            space = candidate_space(
                candidates, normalise="standardise", over="within", per_prompt=per_prompt, labels=of
            )
            nearest = nearest_candidates(texts[owner], candidates, labels=(labels[owner], of))
            return histogram_sum(space, nearest, owner, np.ones(units, dtype=bool))
        means = client_means(texts[owner], owner, slots=units, labels=labels[owner], classes=classes)
        everyone = np.ones(units, dtype=bool)
        return exact_sum(means, candidates, everyone, **way, per_prompt=per_prompt, labels=of)

    whole = total(np.ones(units, dtype=bool))
    for unit in (0, 1, 35, 69):
        without = total(np.arange(units) != unit)
        other = of != labels[unit]
        assert np.array_equal(whole[other], without[other])
        assert 0 < np.linalg.norm(whole - without) < 1 + 2.0**-18


def test_a_query_in_float32_would_break_the_sensitivity():
    """Why sums stay in float64: float32 moves two neighbouring ones apart by more than what is charged."""
    n = 1_000_000
    moved = [
        np.linalg.norm(as_query(one, slots=n).astype(np.float32).astype(float) - as_query(other, slots=n).astype("f4"))
        for one, other in neighbours(n)
    ]
    assert max(moved) > charged_sensitivity(1.0)


@pytest.mark.parametrize(("over", "per_prompt"), [("within", 10), ("prompt", 10), ("all", 10)])
def test_memory_does_not_grow_with_the_number_of_clients(over, per_prompt):
    candidates, peaks = embeddings(2000, 16, seed=0), []
    for n in (3000, 12_000):
        means, mask = np.random.default_rng(0).normal(size=(n, 16)), np.ones(n, dtype=bool)
        tracemalloc.start()
        exact_sum(means, candidates, mask, normalise="standardise", over=over, per_prompt=per_prompt, chunk=500)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
    assert peaks[1] < 12_000 * 2000 * 8 / 5, "never all clients times all candidates"


def test_one_spread_keeps_a_clients_differences_in_proportion_and_one_per_prompt_does_not():
    candidates, mask = embeddings(40, 12, seed=5), np.ones(30, dtype=bool)
    means = means_of(population(30, 12, seed=6), 12)
    one = unit_rows(means[2:3])
    wanted = unclipped_mean(one, candidates, np.ones(1, dtype=bool)).reshape(-1, 4)
    found = exact_sum(one, candidates, np.ones(1, dtype=bool), normalise="standardise", over="within", per_prompt=4)
    np.testing.assert_allclose(
        found.reshape(-1, 4) / np.linalg.norm(found),
        (wanted - wanted.mean(1, keepdims=True)) / np.linalg.norm(wanted - wanted.mean(1, keepdims=True)),
        atol=ROUNDED,
    )
    spreads = {}
    for over in ("within", "prompt"):
        total = exact_sum(means, candidates, mask, normalise="standardise", over=over, per_prompt=4)
        spreads[over] = np.linalg.norm(total.reshape(-1, 4), axis=1)
        np.testing.assert_allclose(total.reshape(-1, 4).mean(1), 0, atol=ROUNDED * len(mask))
    assert spreads["within"].std() > spreads["prompt"].std()


def test_unclipped_mean_is_the_mean_cosine():
    samples, candidates = population(9, 6, seed=3), embeddings(12, 6, seed=4)
    mask = np.arange(9) != 2
    expected = np.zeros(12)
    for client, own in enumerate(samples):
        if mask[client] and len(own):
            expected += np.array([np.mean([float(t @ c) for t in own.astype(float)]) for c in candidates.astype(float)])
    np.testing.assert_allclose(unclipped_mean(means_of(samples, 6), candidates, mask), expected / 8, atol=1e-7)


def test_bad_shapes_are_refused():
    candidates, means, mask = embeddings(6, 4, seed=0), np.zeros((3, 4)), np.ones(3, bool)
    way = {"normalise": "standardise", "over": "prompt"}
    with pytest.raises(ValueError, match=r"K \* 4"):
        exact_sum(means, candidates, mask, per_prompt=4, **way)
    with pytest.raises(ValueError, match="finite"):
        exact_sum(means, np.full((6, 4), np.nan), mask, per_prompt=3, **way)
    with pytest.raises(ValueError, match="one label"):
        exact_sum(means, candidates, mask, per_prompt=3, labels=np.array([0, 0, 1, 1, 1, 1]), **way)
    with pytest.raises(ValueError, match="4 numbers per label"):
        exact_sum(means, candidates, mask, per_prompt=3, labels=np.array([0, 0, 0, 1, 1, 1]), **way)
    with pytest.raises(ValueError, match="bool mask"):
        exact_sum(means, candidates, np.ones(3), per_prompt=3, **way)


def histogram_by_loop(samples, candidates, mask, *, normalise, over, per_prompt):
    wide, total = unit_rows(candidates), np.zeros(len(candidates))
    for client, texts in enumerate(samples):
        if not mask[client] or len(texts) == 0:
            continue
        shares = np.zeros(len(wide))
        for text in texts.astype(np.float64):
            cosines = [round(float(text @ c) / float(np.linalg.norm(text)), 5) for c in wide]
            shares[cosines.index(max(cosines))] += 1 / len(texts)
        groups = groups_of(len(wide), over=over, per_prompt=per_prompt)
        noise = [1e-6 * np.linalg.norm(shares[g]) for g in groups]
        prompts = prompts_of(len(wide), over=over, per_prompt=per_prompt)
        total += transform(shares, normalise=normalise, groups=groups, sizes_of_noise=noise, prompts=prompts)
    return total


@pytest.mark.parametrize("way", WAYS)
def test_histogram_equals_a_loop(way):
    d, samples = 5, population(41, 5, seed=20)
    candidates = embeddings(12, d, seed=21)
    candidates[7] = candidates[2]  # votes go to the first of equal texts
    mask = np.arange(41) % 4 != 1
    assert sum(len(own) > 1 for own, takes_part in zip(samples, mask, strict=True) if not takes_part) > 2
    owner = np.repeat(np.arange(41), [len(s) for s in samples])
    expected = histogram_by_loop(samples, candidates, mask, per_prompt=4, **way)
    space = candidate_space(candidates, per_prompt=4, **way)
    for chunk in (None, 1, 3):
        nearest = nearest_candidates(np.concatenate(samples), candidates, chunk=chunk)
        found = histogram_sum(space, nearest, owner, mask, chunk=chunk)
        np.testing.assert_allclose(found, expected, atol=1e-10)
    assert 7 not in nearest
    if way["normalise"] == "none":
        assert expected.max() > 0.9
        one_sample = [client for client, own in enumerate(samples) if len(own) == 1]
        votes = histogram_vectors(space, nearest, owner, np.array(one_sample))
        assert (votes.max(axis=1) == 1).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("chunk", [None, 8])
def test_a_clients_histogram_is_the_same_whoever_else_is_drawn(way, chunk):
    """One drawn client alone too, in whichever slot it stands."""
    n, per_prompt = 17, 10
    candidates = embeddings(40, 5, seed=21)
    space = candidate_space(candidates, per_prompt=per_prompt, **way)
    votes = np.random.default_rng(0).integers(0, len(candidates), size=23)

    def alone(slot, drawn):
        owner = np.full(len(votes), slot)
        return histogram_sum(space, votes, owner, np.isin(np.arange(n), drawn), chunk=chunk)

    first = alone(0, range(n))
    assert first.any()
    for slot in (0, 7, 8, 16):
        for drawn in ([slot], [slot, 3], range(n)):
            assert np.array_equal(alone(slot, list(drawn)), first)


def test_votes_do_not_depend_on_the_batch_they_are_computed_in():
    """Ties too: exact products, however many rows are multiplied at once."""
    generator = np.random.default_rng(0)
    samples, candidates = generator.normal(size=(1001, 37)), generator.normal(size=(67, 37)).astype(np.float32)
    candidates[35:] = candidates[:32]
    together = nearest_candidates(samples, candidates)
    assert together.max() < 35
    for chunk in (1, 2, 7):
        assert np.array_equal(nearest_candidates(samples, candidates, chunk=chunk), together)


def test_samples_without_direction_cast_no_vote():
    candidates = embeddings(4, 3, seed=0)
    samples = np.array([candidates[2], [0, 0, 0], [np.nan, 0, 1], [0, np.inf, 0], candidates[1]])
    nearest = nearest_candidates(samples, candidates)
    assert nearest.tolist() == [2, -1, -1, -1, 1]
    space = candidate_space(candidates, normalise="none", over="all", per_prompt=2)
    found = histogram_sum(space, nearest, np.array([0, 0, 0, 1, 1]), np.ones(3, bool))
    np.testing.assert_allclose(found, [0, 1 / 2, 1 / 3, 0])


def test_with_labels_a_sample_votes_among_its_labels_candidates():
    candidates = np.eye(4)
    labels, kinds = np.array([0, 0, 1, 1]), np.array([1, 0, 2])
    samples = np.array([[0.9, 0.1, 0.2, 0.3], [0, 0.1, 0.2, 0.9], [1.0, 0, 0, 0]])
    nearest = nearest_candidates(samples, candidates, labels=(kinds, labels))
    assert nearest.tolist() == [3, 1, -1]
    with pytest.raises(ValueError, match="found 4 and 3"):
        nearest_candidates(samples, candidates[:, :3])


@settings(max_examples=100, deadline=None)
@given(data=st.data(), way=st.sampled_from(WAYS))
def test_one_client_moves_the_histogram_sum_by_at_most_one(data, way):
    n = data.draw(st.integers(1, 4))
    owner = np.array(sorted(data.draw(st.lists(st.integers(0, n - 1), max_size=12))), dtype=np.int64)
    nearest = np.array(data.draw(st.lists(st.integers(-1, 5), min_size=len(owner), max_size=len(owner))), np.int64)
    space = candidate_space(np.eye(6), per_prompt=3, **way)
    client, mask = data.draw(st.integers(0, n - 1)), np.ones(n, dtype=bool)
    without = owner != client
    one = histogram_sum(space, nearest, owner, mask)
    other = histogram_sum(space, nearest[without], owner[without], mask)
    assert np.linalg.norm(one - other) <= 1 + 1e-9


def made_space(*squares, floor=0.0, standardised=True):
    """Parts of two rows in two dimensions, whose Gram matrices are diagonal: of these two squares each."""
    parts = tuple(Part(0, np.arange(2), 2, 2, np.diag(np.sqrt(pair)), np.full(1, floor)) for pair in squares)
    return CandidateSpace(parts, 2 * len(parts), standardised)


def doubted(space, *means):
    """Norms of the first part, and who is doubted, by means that all parts share."""
    rows = np.array(means, dtype=np.float64)
    norms, found = scoring_module._gram_norms(space, scoring_module._gram(space), [rows] * len(space.parts))
    return norms[0][:, 0].tolist(), found[:, 0].tolist()


ACROSS = (0.0, 1.0)  # along the smaller of the two squares


@pytest.mark.parametrize(("share", "expected"), [(0.99e-5, True), (1.01e-5, False)])
def test_a_norm_is_doubted_that_float64_may_hold_to_less_than_the_query_is_shrunk_by(share, expected):
    """A Gram matrix of 10^5 candidates is off by 10^5 * 2^-53 of the largest norm's square."""
    assert 1e5 * 2.0**-53 / 1e-5 / 2 < 2.0**-18
    norms, found = doubted(made_space((1.0 - share, share)), ACROSS, (1.0, 0.0), (0.0, 0.5), (0.0, 0.0))
    assert found == [expected, False, expected, False]
    assert norms == pytest.approx([math.sqrt(share), math.sqrt(1 - share), math.sqrt(share) / 2, 0])


@pytest.mark.parametrize(("times", "expected"), [(0.5, True), (1.0, True), (1.99, True), (2.01, False)])
def test_a_norm_at_the_border_of_variance_is_doubted_on_either_side(times, expected):
    """Also where nothing cancels: its last bit decides between no vector and one of norm 1."""
    floor = 0.1
    space = made_space((1.0, times * floor**2), floor=floor)
    for mean in (ACROSS, (0.0, 0.25)):
        assert doubted(space, mean)[1] == [expected]
    assert doubted(space, (1.0, 0.0))[1] == [False]


def test_a_group_that_has_no_variance_for_anybody_is_not_doubted():
    floor = 0.1
    norms, found = doubted(made_space((0.9 * floor**2, 0.0), floor=floor), ACROSS, (1.0, 0.0))
    assert (norms, found) == ([0.0, 0.0], [False, False])
    # Where another group is at the border, the client is: whichever label it is of.
    both = ((0.9 * floor**2, 0.0), (1.0, 1.5 * floor**2))
    for pairs in (both, both[::-1]):
        assert doubted(made_space(*pairs, floor=floor), ACROSS)[1] == [True]


def test_without_normalisation_one_norm_of_all_parts_is_doubted_where_it_may_exceed_the_clip():
    def without(*squares):
        return doubted(made_space(*squares, standardised=False), ACROSS)[1]

    cancels, counts = (1.01, 1e-7), (1.0, 0.01)
    assert without(cancels) == [True]
    assert without((0.99, 1e-7)) == [False], "it is clipped by nothing, whatever is lost"
    assert without(cancels, cancels) == [True]
    assert without((0.6, 1e-7), (0.6, 1e-7)) == [True], "together they may exceed it"
    for parts in ((cancels, counts), (counts, cancels)):
        assert without(*parts) == [False], "what one part lost is little beside the other"
    assert without((1.01, 1.03e-5)) == [False]


@pytest.mark.parametrize("way", WAYS)
def test_a_vector_that_rounding_left_longer_than_one_is_shortened_before_it_is_sent(way, monkeypatch):
    """A masked sum refuses a longer one, which would end a run because of what a client holds."""
    candidates, means = embeddings(40, 8, seed=7), means_of(population(30, 8, seed=2), 8)
    space, plain = candidate_space(candidates, per_prompt=10, **way), client_vectors_module.product_weights

    def longer(*given):
        return [weight * (1 + 1e-6) for weight in plain(*given)]

    expected = client_vectors(space, means)
    monkeypatch.setattr(client_vectors_module, "product_weights", longer)
    found = client_vectors(space, means)
    assert np.linalg.norm(found, axis=1).max() <= 1 + 1e-15
    np.testing.assert_allclose(found, expected, atol=1e-6)
    for vector in found:
        assert squared_norm(encode(vector, bits=12)) <= integer_sensitivity(len(vector), 12) ** 2

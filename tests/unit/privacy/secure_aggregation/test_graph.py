"""The graph of neighbours: regular, symmetric, connected, and the chances that are claimed of it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from understudy.errors import InputError
from understudy.privacy.secure_aggregation.graph import largest_threshold, neighbour_graph, split_chance

KEY = bytes(range(32))


@settings(max_examples=40)
@given(st.integers(2, 80), st.integers(1, 45))
def test_every_client_has_the_same_number_of_neighbours_and_is_theirs(n, half):
    graph = neighbour_graph(n, 2 * half, key=KEY)
    assert len(graph) == n
    assert all(len(set(row)) == len(row) == min(2 * half, n - 1) for row in graph)
    assert all(i in graph[j] and i != j for i, row in enumerate(graph) for j in row)


def test_the_key_gives_the_order():
    assert neighbour_graph(50, 6, key=KEY) == neighbour_graph(50, 6, key=KEY)
    assert neighbour_graph(50, 6, key=KEY) != neighbour_graph(50, 6, key=KEY[::-1])


@pytest.mark.parametrize(("n", "degree"), [(1, 2), (10, 3), (10, 0)])
def test_impossible_graphs_are_refused(n, degree):
    with pytest.raises(InputError, match="even degree"):
        neighbour_graph(n, degree, key=KEY)


def test_the_threshold_recovers_every_client_as_often_as_claimed():
    """Simulated at a failure chance that a simulation can see."""
    n, degree, alive, failure = 120, 20, 72, 0.1
    threshold = largest_threshold(n, degree, smallest_surviving=alive, failure=failure)
    rng = np.random.default_rng(0)
    adjacency = np.zeros((n, n), dtype=int)
    for i, row in enumerate(neighbour_graph(n, degree, key=KEY)):
        adjacency[i, list(row)] = 1
    least = []
    for _ in range(1500):
        up = rng.permutation(n) < alive
        least.append((adjacency @ up).min())
    assert np.mean(np.array(least) < threshold) <= failure
    assert np.mean(np.array(least) < threshold + 2) > failure


def test_a_full_graph_always_recovers():
    assert largest_threshold(20, 19, smallest_surviving=12) == 6
    assert largest_threshold(750, 64, smallest_surviving=450) == 16


def test_the_bound_on_falling_apart_holds_in_simulation():
    n, degree, removed = 30, 4, 12
    rng = np.random.default_rng(1)
    graph = neighbour_graph(n, degree, key=KEY)
    dense = np.zeros((n, n))
    for i, row in enumerate(graph):
        dense[i, list(row)] = 1
    apart = 0
    for _ in range(2000):
        left = rng.permutation(n)[removed:]
        parts, _ = connected_components(csr_array(dense[np.ix_(left, left)]), directed=False)
        apart += parts > 1
    bound = split_chance(n, degree, removed=removed)
    assert 0.01 < apart / 2000 <= bound
    assert bound <= 1


def test_the_bound_at_the_real_size():
    by_hand = math.comb(315, 64) / math.comb(750, 64) * math.comb(750, 2)
    assert split_chance(750, 64, removed=315) == pytest.approx(by_hand, rel=1e-9)
    assert by_hand < 2**-60
    assert split_chance(750, 749, removed=700) == 0.0
    assert split_chance(750, 64, removed=63) == 0.0
    assert split_chance(10, 4, removed=10) == 1.0

"""DP-FTRL: trees against least squares and naive sums, one client in few blocks, the event by Renyi DP."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.baselines.client_updates import LocalConfig, encode_clients, trained_model
from understudy.baselines.dp_fedavg import DpFedAvgConfig
from understudy.baselines.dp_fedavg import plan as plan_fedavg
from understudy.baselines.dp_fedavg import train as train_fedavg
from understudy.baselines.dp_ftrl import DpFtrlConfig, FtrlState, plan, slots_of_round, take_round, train
from understudy.baselines.tree_aggregation import Tree, add_value, own_weight, prefix_sum
from understudy.errors import InputError
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.models.loading import load_model
from understudy.privacy.grid import charged_sensitivity
from understudy.privacy.testing.replay import Recording, Replaying

ESTIMATORS = ["plain", "honaker"]


def grow(values, *, noise=lambda level, end: 0.0, estimator="plain"):
    """Prefix sums after each value, and every release as (level, end, exact sum)."""
    tree, sums, released = Tree(), [], []
    for end, value in enumerate(values, start=1):

        def release(level, exact, end=end):
            released.append((level, end, exact["x"]))
            return {"x": exact["x"] + noise(level, end)}

        tree = add_value(tree, {"x": value}, release=release, estimator=estimator)
        assert tree.count == end
        sums.append(prefix_sum(tree)["x"])
    return sums, released


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-100, 100), min_size=1, max_size=40), st.sampled_from(ESTIMATORS))
def test_without_noise_prefix_sums_are_exact(numbers, estimator):
    values = [torch.tensor([float(x)], dtype=torch.float64) for x in numbers]
    sums, _ = grow(values, estimator=estimator)
    found = [float(value) for value in sums]
    assert found == pytest.approx(np.cumsum(numbers).tolist(), abs=1e-9)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 7, 8, 13, 16])
def test_a_value_is_in_few_blocks_and_every_block_is_released_once(rounds):
    unit = torch.eye(rounds, dtype=torch.float64)
    _, released = grow(list(unit))
    membership = torch.stack([exact for _, _, exact in released])
    assert set(membership.flatten().tolist()) <= {0.0, 1.0}
    assert float(membership.sum(0).max()) == math.floor(math.log2(rounds)) + 1
    assert len({(level, end) for level, end, _ in released}) == len(released)
    for level, end, exact in released:
        expected = [float(end - 2**level <= i < end) for i in range(rounds)]
        assert exact.tolist() == expected


def drawn_noise(seed=0):
    generator = np.random.default_rng(seed)
    kept = {}
    return kept, lambda level, end: kept.setdefault((level, end), float(generator.normal()))


@pytest.mark.parametrize("rounds", [5, 8, 11])
def test_plain_noise_is_that_of_the_blocks_in_the_binary_writing(rounds):
    kept, noise = drawn_noise()
    sums, _ = grow([torch.zeros(1, dtype=torch.float64)] * rounds, noise=noise)
    for count, found in enumerate(sums, start=1):
        end, expected = 0, 0.0
        for level in reversed(range(count.bit_length())):
            if count >> level & 1:
                end += 2**level
                expected += kept[level, end]
        assert float(found) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_the_honaker_estimate_is_least_squares_over_the_whole_block(level):
    size = 2**level
    kept, noise = drawn_noise(level)
    values = np.random.default_rng(9).normal(size=size)
    sums, _ = grow([torch.tensor([v]) for v in values], noise=noise, estimator="honaker")
    blocks = sorted(kept)
    design = np.array([[float(end - 2**h <= i < end) for i in range(size)] for h, end in blocks])
    observed = design @ values + np.array([kept[block] for block in blocks])
    best = np.linalg.lstsq(design, observed, rcond=None)[0].sum()
    variance = np.linalg.inv(design.T @ design).sum()
    assert float(sums[-1]) == pytest.approx(best, abs=1e-9)
    assert own_weight(level) == pytest.approx(variance, abs=1e-12)


def test_an_empty_tree_has_no_sum():
    with pytest.raises(ValueError, match="at least one value"):
        prefix_sum(Tree())


def make_config(base, *, epochs=2, rounds=3, learning_rate=0.5, **changes):
    local = LocalConfig(
        base=base, lora_rank=2, sample_tokens=16, steps=2, batch_size=2, learning_rate=learning_rate, l2_clip_norm=0.05
    )
    return DpFtrlConfig(local=local, epochs=epochs, rounds_per_epoch=rounds, **changes)


def test_every_slot_takes_part_once_per_epoch_in_groups_of_like_size():
    groups = [slots_of_round(23, r, rounds_per_epoch=5, public_seed=3) for r in range(10)]
    for epoch in (groups[:5], groups[5:]):
        assert sorted(slot for group in epoch for slot in group) == list(range(23))
        assert {len(group) for group in epoch} == {4, 5}
    assert groups[:5] != groups[5:]
    assert groups[0] != slots_of_round(23, 0, rounds_per_epoch=5, public_seed=4)


def test_a_round_releases_the_blocks_it_completes(base, make_gateway):
    config = make_config(base, rounds=4, estimator="plain", momentum=0.5)
    planned = plan(config, n=8, epsilon=2.0, delta=1e-3)
    recording = Recording()
    state = FtrlState(0, Tree(), {}, {"w": torch.zeros(4000)})
    gateway, prefixes = make_gateway(planned, recording), []
    for round in range(4):
        exact = {"w": torch.full((4000,), float(round + 1), dtype=torch.float64)}
        state = take_round(state, exact, config=config, plan=planned, gateway=gateway)
        prefixes.append(prefix_sum(state.tree)["w"])
    found = [(call.mechanism.step, call.mechanism.purpose) for call in recording.calls]
    assert found == [
        (step, f"dp-ftrl/level-0{level}") for step, level in [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0), (3, 1), (3, 2)]
    ]
    scale = planned.noise_multiplier * charged_sensitivity(0.05)
    for call in recording.calls:
        assert (call.mechanism.sensitivity, call.mechanism.scale) == (charged_sensitivity(0.05), scale)
        assert float((call.output["w"] - call.query["w"]).std()) == pytest.approx(scale, rel=0.05)
    assert [float(call.query["w"][0]) for call in recording.calls] == [1, 2, 3, 3, 4, 7, 10]
    # 3 = 2 + 1 in binary: two noises; 4: one.
    assert float((prefixes[2] - 6).std()) == pytest.approx(scale * math.sqrt(2), rel=0.05)
    assert float((prefixes[3] - 10).std()) == pytest.approx(scale, rel=0.05)
    expected = prefixes[3] + 0.5 * (prefixes[2] + 0.5 * (prefixes[1] + 0.5 * prefixes[0]))
    torch.testing.assert_close(state.momentum["w"], expected)


def tensors_of(loaded):
    return [parameter.detach().clone() for parameter in loaded.model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(tensors_of(a), tensors_of(b), strict=True))


def test_with_one_round_per_epoch_it_is_dp_fedavg_of_all_clients(base, clients, make_gateway):
    config = make_config(base, epochs=3, rounds=1)
    none = {"n": 7, "epsilon": math.inf, "delta": 1e-2}
    planned = plan(config, **none)
    found = train(clients, config=config, plan=planned, gateway=make_gateway(planned))
    other = DpFedAvgConfig(local=config.local, rounds=3, sampling_probability=1.0)
    averaging = plan_fedavg(other, **none)
    expected = train_fedavg(clients, config=other, plan=averaging, gateway=make_gateway(averaging))
    for one, two in zip(tensors_of(found), tensors_of(expected), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)
    start = load_model(base)
    assert not same(found, start)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_without_noise_the_weights_are_the_origin_plus_all_updates(base, clients, make_gateway, estimator):
    config = make_config(base, epochs=2, rounds=3, server_learning_rate=0.7, estimator=estimator)
    planned = plan(config, n=7, epsilon=math.inf, delta=1e-2)
    recording = Recording()
    tuned = train(clients, config=config, plan=planned, gateway=make_gateway(planned, recording))
    loaded = load_model(base)
    model, weights = trained_model(loaded, config.local, public_seed=0)
    leaves = [call.query for call in recording.calls if call.mechanism.purpose.endswith("level-00")]
    assert len(leaves) == 6
    with torch.no_grad():
        for name, parameter in weights.items():
            parameter.add_(sum(leaf[name] for leaf in leaves), alpha=0.7 * 3 / 7)
    expected = model.merge_and_unload()
    for one, two in zip(tensors_of(tuned), expected.parameters(), strict=True):
        torch.testing.assert_close(one, two.detach(), rtol=1e-4, atol=1e-6)


def test_a_replayed_neighbour_moves_few_queries_each_by_at_most_c(base, clients, make_gateway):
    config = make_config(base, epochs=2, rounds=4, learning_rate=50.0)
    planned = plan(config, n=7, epsilon=5.0, delta=1e-2)
    recording = Recording()
    first = train(clients, config=config, plan=planned, gateway=make_gateway(planned, recording))
    replaying = Replaying(recording.calls)
    neighbour = [None if slot == 4 else samples for slot, samples in enumerate(clients)]
    second = train(neighbour, config=config, plan=planned, gateway=make_gateway(planned, replaying))
    assert same(first, second)
    distances = []
    for call, query in zip(recording.calls, replaying.queries, strict=True):
        assert call.mechanism.kind == "gaussian_sum"
        squares = sum(float((call.query[name].double() - query[name].double()).square().sum()) for name in query)
        distances.append(math.sqrt(squares))
    moved = [distance for distance in distances if distance > 1e-6]
    assert all(distance <= 0.05 * 1.0001 for distance in distances)
    # Per epoch its leaf, the pair and the whole tree of 4 rounds: floor(log2 4) + 1 blocks.
    assert len(moved) == 2 * 3
    assert min(moved) > 0.05 * 0.999


@pytest.mark.parametrize("stop_after", [2, 3, 4])
def test_a_resumed_run_ends_in_the_same_bytes(base, clients, make_gateway, tmp_path, stop_after):
    config = make_config(base, epochs=2, rounds=3, momentum=0.9)
    planned = plan(config, n=7, epsilon=5.0, delta=1e-2)
    options = {"config": config, "plan": planned}
    whole = train(clients, gateway=make_gateway(planned), **options)

    def stop(done, rounds):
        if done == stop_after:
            raise KeyboardInterrupt

    checkpoint, done = TrainingCheckpoint(tmp_path, every=1), []
    with pytest.raises(KeyboardInterrupt):
        train(clients, gateway=make_gateway(planned), checkpoint=checkpoint, progress=stop, **options)
    resumed = train(
        clients, gateway=make_gateway(planned), checkpoint=checkpoint, progress=lambda *s: done.append(s[0]), **options
    )
    assert done == list(range(stop_after + 1, 7))
    assert same(whole, resumed)
    assert same(whole, train(clients, gateway=make_gateway(planned), **options))


def test_what_does_not_fit_is_refused_before_the_gateway(base, clients, make_gateway):
    config = make_config(base)
    recording = Recording()
    planned = plan(config, n=7, epsilon=math.inf, delta=1e-2)
    options = {"plan": planned, "gateway": make_gateway(planned, recording)}
    with pytest.raises(InputError, match="plan again"):
        train(clients, config=make_config(base, epochs=3), **options)
    with pytest.raises(InputError, match="expected as many slots, found 6"):
        train(clients[:-1], config=config, **options)
    with pytest.raises(InputError, match="at most one round per client, found 2"):
        plan(config, n=2, epsilon=1.0, delta=1e-2)
    assert not recording.calls


def test_the_paper_s_profile_and_the_tokens_of_null_clients(base, clients):
    paper = DpFtrlConfig(profile="paper")
    assert (paper.epochs, paper.rounds_per_epoch, paper.local.lora_rank) == (20, 1, 0)
    tokens = encode_clients(load_model(base).tokenizer, clients, length=8)
    assert tokens.n == 7
    assert [b - a for a, b in zip(tokens.starts, tokens.starts[1:], strict=False)] == [
        len(samples or ()) for samples in clients
    ]
    assert tokens.ids.shape == tokens.mask.shape == (tokens.starts[-1], 8)

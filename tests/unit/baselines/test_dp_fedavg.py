"""DP-FedAvg: updates equal to naive SGD, one client moves the sum by at most C, and the run is what was charged."""

import copy
import math

import dp_accounting as dp
import pytest
import torch
from dp_accounting import pld
from torch.nn import functional

from understudy.baselines import dp_fedavg
from understudy.baselines.client_updates import (
    LocalConfig,
    clipped_update_sum,
    encode_clients,
    plain_model,
    trained_model,
)
from understudy.baselines.dp_fedavg import DpFedAvgConfig, apply_update, plan, release_round, train
from understudy.errors import InputError
from understudy.evaluation.next_token import score_clients
from understudy.generation.prompts import row_seeds
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.models.loading import load_model
from understudy.privacy.accounting import epsilon_pld
from understudy.privacy.grid import charged_sensitivity, grid_of
from understudy.privacy.testing.replay import Recording, Replaying

RANKS = [0, 2]
NULLS = (0, 2, 5)


def make_local(base, rank=2, **changes):
    values = {"sample_tokens": 16, "steps": 3, "batch_size": 2, "learning_rate": 0.5, "l2_clip_norm": 0.05}
    return LocalConfig(base=base, lora_rank=rank, **{**values, **changes})


def planned_with(config, n, z):
    """A plan of a given noise, without a calibration."""
    planned = plan(config, n=n, epsilon=math.inf, delta=1e-2)
    stream = planned.streams[0].model_copy(update={"noise_multiplier": z})
    return planned.model_copy(update={"streams": (stream,)})


def prepare(clients, config):
    loaded = load_model(config.base)
    tokens = encode_clients(loaded.tokenizer, clients, length=config.sample_tokens)
    return (*trained_model(loaded, config, public_seed=0), tokens)


def summed(clients, config, slots=None, round=4):
    model, weights, tokens = prepare(clients, config)
    slots = range(tokens.n) if slots is None else slots
    return clipped_update_sum(model, weights, tokens, list(slots), config=config, public_seed=9, round=round)


def norm(values):
    return math.sqrt(sum(float(value.double().square().sum()) for value in values.values()))


def naive_update(model, names, samples, tokenizer, config, slot):
    """One client's unclipped update by torch's SGD, sample by sample, unpadded."""
    model = copy.deepcopy(model)
    parameters = {name: p for name, p in model.named_parameters() if name in names}
    before = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=config.learning_rate)
    seed = row_seeds(9, [slot], purpose="federated/order/4")[0]
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed)).tolist()
    position = 0
    for _ in range(config.steps):
        losses = []
        for _ in range(config.batch_size):
            text = samples[order[position % len(samples)]]
            position += 1
            ids = [0, *tokenizer.encode(text, add_special_tokens=False)][: config.sample_tokens]
            logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
            losses.append(functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none"))
        optimizer.zero_grad()
        torch.cat(losses).mean().backward()
        optimizer.step()
    return {name: (p.detach() - before[name]).double() for name, p in parameters.items()}


@pytest.mark.parametrize("rank", RANKS)
def test_the_sum_is_that_of_naive_clipped_updates(base, clients, rank):
    config = make_local(base, rank)
    model, weights, tokens = prepare(clients, config)
    tokenizer = load_model(base).tokenizer
    start = {name: p.detach().clone() for name, p in weights.items()}
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in weights.items()}
    norms = []
    for slot, samples in enumerate(clients):
        if samples:
            update = naive_update(model, set(weights), samples, tokenizer, config, slot)
            norms.append(norm(update))
            for name, value in update.items():
                total[name] += value * min(1.0, config.l2_clip_norm / norms[-1])
    found = clipped_update_sum(model, weights, tokens, range(7), config=config, public_seed=9, round=4)
    assert all(value.dtype == torch.float64 for value in found.values())
    for name in weights:
        torch.testing.assert_close(found[name], total[name], rtol=2e-3, atol=2e-6)
        assert torch.equal(weights[name].detach(), start[name]), "the weights are put back"
    assert norm(found) > 0
    assert any(n > config.l2_clip_norm for n in norms), "something is clipped"


@pytest.mark.parametrize("rank", RANKS)
def test_a_huge_update_is_clipped_to_c(base, clients, rank):
    wild = make_local(base, rank, learning_rate=50.0, l2_clip_norm=0.3)
    for slot in (1, 4):
        assert norm(summed(clients, wild, [slot])) == pytest.approx(0.3, rel=1e-9)
    tame = make_local(base, rank, learning_rate=1e-3, l2_clip_norm=0.3)
    assert 0 < norm(summed(clients, tame, [4])) < 0.03


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("learning_rate", [0.5, 50.0])
def test_a_client_made_null_moves_the_sum_by_at_most_c(base, clients, rank, learning_rate):
    config = make_local(base, rank, learning_rate=learning_rate, l2_clip_norm=0.2)
    before = summed(clients, config)
    for slot in range(7):
        neighbour = [None if i == slot else samples for i, samples in enumerate(clients)]
        after = summed(neighbour, config)
        moved = norm({name: before[name] - after[name] for name in before})
        assert moved <= 0.2 * (1 + 1e-9)
        if slot in NULLS:
            assert moved == 0
        elif learning_rate > 1:
            assert moved == pytest.approx(0.2, rel=1e-6)


def test_an_update_that_is_not_finite_adds_nothing(base, clients):
    broken = make_local(base, 0, learning_rate=1e3, steps=6, l2_clip_norm=1.0)
    model, weights, tokens = prepare(clients, broken)
    head = next(p for name, p in weights.items() if "wte" in name)
    token = int(tokens.ids[tokens.starts[1], 1])
    with torch.no_grad():
        head[token] = math.inf
    alone = clipped_update_sum(model, weights, tokens, [1], config=broken, public_seed=0, round=0)
    assert norm(alone) == 0
    assert bool(head[token].isinf().all()), "the weights are put back"


def test_a_round_is_one_mask_and_one_query(base, clients, make_gateway):
    config = DpFedAvgConfig(local=make_local(base), rounds=5, sampling_probability=0.5)
    planned = planned_with(config, 7, 1.3)
    model, weights, tokens = prepare(clients, config.local)
    recording = Recording()
    options = {"config": config, "plan": planned, "gateway": make_gateway(planned, recording)}
    released = release_round(model, weights, tokens, round=3, **options)
    mask, query = recording.calls
    assert (mask.mechanism.kind, mask.mechanism.scale, mask.mechanism.step) == ("poisson", 0.5, 3)
    assert (query.mechanism.kind, query.mechanism.step) == ("gaussian_sum", 3)
    assert query.mechanism.sensitivity == charged_sensitivity(0.05)
    assert query.mechanism.scale == planned.streams[0].noise_multiplier * charged_sensitivity(0.05)
    slots = mask.output["mask"].nonzero().flatten().tolist()
    exact = clipped_update_sum(model, weights, tokens, slots, config=config.local, public_seed=0, round=3)
    residual = torch.cat([(released[name] - exact[name]).flatten() for name in sorted(exact)])
    assert float(residual.std()) == pytest.approx(query.mechanism.scale, rel=0.05)
    errors = [(query.query[name] - exact[name]).abs().max() for name in exact]
    assert max(errors) <= query.mechanism.grid / 2 == grid_of(0.05) / 2


def test_the_server_divides_by_the_expected_number_and_keeps_momentum():
    config = DpFedAvgConfig(server_learning_rate=2.0, momentum=0.5)
    weights = {"w": torch.nn.Parameter(torch.tensor([1.0, -1.0]))}
    momentum = {"w": torch.zeros(2)}
    for released in ([4.0, 8.0], [0.0, 4.0]):
        apply_update(weights, momentum, {"w": torch.tensor(released)}, config=config, expected_clients=4.0)
    # v1 = (1, 2), w1 = (3, 3); v2 = (0.5, 1) + (0, 1), w2 = (4, 7)
    assert momentum["w"].tolist() == [0.5, 2.0]
    assert weights["w"].tolist() == [4.0, 7.0]


def test_the_event_costs_what_dp_accounting_says(base):
    config = DpFedAvgConfig(local=make_local(base), rounds=3, sampling_probability=0.25)
    planned = planned_with(config, 400, 1.5)
    direct = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.25, dp.GaussianDpEvent(1.5)), 3)
    theirs = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL).compose(direct).get_epsilon(1e-4)
    assert epsilon_pld(planned.event, 1e-4) == theirs
    assert planned.expected_batch == 100


def test_a_plan_meets_its_target(base):
    config = DpFedAvgConfig(local=make_local(base), rounds=8, sampling_probability=1.0)
    planned = plan(config, n=400, epsilon=2.0, delta=1e-4)
    assert 2.0 * 0.999 <= epsilon_pld(planned.event, 1e-4) <= 2.0
    assert (planned.n, planned.steps, planned.streams[0].l2_clip_norm) == (400, 8, 0.05)
    assert plan(config, n=400, epsilon=math.inf, delta=1e-4).streams[0].noise_multiplier == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rank", RANKS)
def test_without_noise_the_clients_text_is_learnt(base, make_gateway, rank, seed):
    text = "fog until noon , then a heron by the river"
    clients = [[text] * 3 for _ in range(4)] + [None]
    local = make_local(base, rank, learning_rate=0.3, l2_clip_norm=1.0, steps=4)
    config = DpFedAvgConfig(local=local, rounds=12, sampling_probability=1.0, public_seed=seed)
    planned = plan(config, n=5, epsilon=math.inf, delta=1e-2)
    seen = []
    tuned = train(
        clients, config=config, plan=planned, gateway=make_gateway(planned), progress=lambda *step: seen.append(step)
    )
    before, after = (score_clients(loaded, [[text]]).loss_per_token for loaded in (load_model(base), tuned))
    assert seen == [(round, 12) for round in range(1, 13)]
    # Adapters below a random, frozen head can learn little: 0.18 to 0.24 of 8.3 nats, all weights 7.5.
    assert after < before - (0.05 if rank else 3)
    assert not any(p.requires_grad for p in tuned.model.parameters())
    assert [n for n, _ in tuned.model.named_parameters()] == [n for n, _ in load_model(base).model.named_parameters()]


def test_null_clients_alone_leave_the_model_as_it_was(base, make_gateway):
    config = DpFedAvgConfig(local=make_local(base), rounds=2, sampling_probability=1.0)
    planned = plan(config, n=3, epsilon=math.inf, delta=1e-2)
    tuned = train([None, [], [""]], config=config, plan=planned, gateway=make_gateway(planned))
    for one, other in zip(tuned.model.parameters(), load_model(base).model.parameters(), strict=True):
        assert torch.equal(one, other)


def tensors_of(loaded):
    return [parameter.detach().clone() for parameter in loaded.model.parameters()]


def test_a_run_repeats_and_a_resumed_one_ends_in_the_same_bytes(base, clients, make_gateway, tmp_path):
    config = DpFedAvgConfig(local=make_local(base), rounds=4, sampling_probability=0.6, momentum=0.9)
    planned = planned_with(config, 7, 1.3)
    options = {"config": config, "plan": planned}
    whole = tensors_of(train(clients, gateway=make_gateway(planned), **options))

    def stop(done, rounds):
        if done == 2:
            raise KeyboardInterrupt

    checkpoint = TrainingCheckpoint(tmp_path, every=1)
    with pytest.raises(KeyboardInterrupt):
        train(clients, gateway=make_gateway(planned), checkpoint=checkpoint, progress=stop, **options)
    done = []
    resumed = train(
        clients, gateway=make_gateway(planned), checkpoint=checkpoint, progress=lambda *s: done.append(s[0]), **options
    )
    assert done == [3, 4]
    assert all(torch.equal(a, b) for a, b in zip(whole, tensors_of(resumed), strict=True))
    other = tensors_of(train(clients, gateway=make_gateway(planned, charge="another"), **options))
    assert not all(torch.equal(a, b) for a, b in zip(whole, other, strict=True))


def test_a_replayed_neighbour_gives_the_same_model_and_queries_within_c(base, clients, make_gateway):
    local = make_local(base, learning_rate=50.0)
    config = DpFedAvgConfig(local=local, rounds=3, sampling_probability=0.5)
    planned = planned_with(config, 7, 1.3)
    recording = Recording(forced=[4])
    first = train(clients, config=config, plan=planned, gateway=make_gateway(planned, recording))
    replaying = Replaying(recording.calls)
    neighbour = [None if slot == 4 else samples for slot, samples in enumerate(clients)]
    second = train(neighbour, config=config, plan=planned, gateway=make_gateway(planned, replaying))
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(first), tensors_of(second), strict=True))
    distances = [
        norm({name: call.query[name] - query[name] for name in query})
        for call, query in zip(recording.calls, replaying.queries, strict=True)
        if call.mechanism.kind == "gaussian_sum"
    ]
    assert len(distances) == 3
    assert all(0.9999 * local.l2_clip_norm <= d <= 1.0001 * local.l2_clip_norm for d in distances)


def test_what_does_not_fit_is_refused_before_the_gateway(base, clients, make_gateway):
    config = DpFedAvgConfig(local=make_local(base), rounds=2)
    planned = plan(config, n=7, epsilon=math.inf, delta=1e-2)
    recording = Recording()
    options = {"plan": planned, "gateway": make_gateway(planned, recording)}
    for changes in ({"rounds": 3}, {"sampling_probability": 0.2}, {"local": make_local(base, l2_clip_norm=0.06)}):
        with pytest.raises(InputError, match="plan again"):
            train(clients, config=config.model_copy(update=changes), **options)
    with pytest.raises(InputError, match="expected as many slots, found 6"):
        train(clients[:-1], config=config, **options)
    long = config.model_copy(update={"local": make_local(base, sample_tokens=65)})
    with pytest.raises(InputError, match="sample_tokens=65: expected at most"):
        train(clients, config=long, **options)
    assert not recording.calls


def test_profiles_fill_what_is_not_given():
    paper = DpFedAvgConfig(profile="paper", local={"l2_clip_norm": 1.0})
    assert (paper.rounds, paper.sampling_probability, paper.local.lora_rank) == (20, 1.0, 0)
    assert (paper.local.base, paper.local.l2_clip_norm) == ("distilbert/distilgpt2", 1.0)
    assert dp_fedavg.NAME == "dp-fedavg"


@pytest.mark.parametrize("rank", RANKS)
def test_the_plain_model_computes_what_the_trained_one_does(base, clients, rank):
    config = make_local(base, rank)
    model, weights, tokens = prepare(clients, config)
    with torch.no_grad():
        for parameter in weights.values():
            parameter.add_(0.05)
        expected = model(input_ids=tokens.ids[:2]).logits
        torch.testing.assert_close(plain_model(model)(input_ids=tokens.ids[:2]).logits, expected, rtol=1e-3, atol=1e-4)

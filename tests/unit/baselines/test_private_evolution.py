"""Private Evolution: votes equal to naive loops, one client moves them by at most 1, texts move towards the clients."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.baselines.private_evolution import (
    EvolutionConfig,
    Generation,
    evolve,
    list_prompt,
    next_prompts,
    plan,
    threshold,
)
from understudy.baselines.votes import MOST_CLIENTS, Samples, nearest, release_votes, survival, vote_sum
from understudy.errors import InputError
from understudy.privacy.accounting import epsilon_pld
from understudy.privacy.grid import charged_sensitivity
from understudy.privacy.testing.replay import Recording, Replaying

NO_NOISE = {"epsilon": math.inf, "delta": 1e-5}
chosen = st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=6)  # per client, a candidate per sample


def planned_with(config, n, z):
    """A plan of a given noise, without a calibration."""
    planned = plan(config, n=n, **NO_NOISE)
    stream = planned.streams[0].model_copy(update={"noise_multiplier": z})
    return planned.model_copy(update={"streams": (stream,)})


def flat(by_client):
    """Choices and owners as arrays."""
    owners = np.repeat(np.arange(len(by_client)), [len(c) for c in by_client])
    return np.array([x for c in by_client for x in c], dtype=np.int64), owners


def by_loops(by_client, taking_part, candidates):
    total = np.zeros(candidates)
    for client, choices in enumerate(by_client):
        if taking_part[client] and choices:
            vector = np.zeros(candidates)
            for choice in choices:
                vector[choice] += 1 / len(choices)
            total += vector / max(1.0, np.linalg.norm(vector))
    return total


@settings(deadline=None, max_examples=60)
@given(chosen, st.data())
def test_votes_are_those_of_naive_loops(by_client, data):
    taking_part = np.array([data.draw(st.booleans()) for _ in by_client])
    choices, owners = flat(by_client)
    found = vote_sum(choices, owners, taking_part, candidates=5)
    assert found.dtype == np.float64
    assert found == pytest.approx(by_loops(by_client, taking_part, 5), abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(chosen, st.data())
def test_a_client_made_null_moves_the_votes_by_at_most_1(by_client, data):
    removed = data.draw(st.integers(0, len(by_client) - 1))
    everyone = np.ones(len(by_client), dtype=bool)
    before = vote_sum(*flat(by_client), everyone, candidates=5)
    null = [[] if client == removed else choices for client, choices in enumerate(by_client)]
    after = vote_sum(*flat(null), everyone, candidates=5)
    moved = np.linalg.norm(before - after)
    assert moved <= 1 + 1e-12
    if len(set(by_client[removed])) == 1:
        assert moved == pytest.approx(1), "the bound is reached by a client of one mind"


def test_a_client_of_a_million_samples_counts_no_more_than_one_of_a_single_sample():
    owners = np.r_[np.zeros(1_000_000, dtype=np.int64), 1]
    choices = np.r_[np.zeros(1_000_000, dtype=np.int64), 3]
    assert vote_sum(choices, owners, np.ones(2, dtype=bool), candidates=4).tolist() == [1.0, 0.0, 0.0, 1.0]


def test_more_clients_than_the_rounding_is_covered_for_are_refused_before_anything_is_drawn(make_mechanisms):
    most = plan(EvolutionConfig(), n=MOST_CLIENTS, **NO_NOISE)
    with pytest.raises(InputError, match=f"n={MOST_CLIENTS + 1}: expected at most 1,048,576 clients"):
        plan(EvolutionConfig(), n=MOST_CLIENTS + 1, **NO_NOISE)
    recording, more = Recording(), most.model_copy(update={"n": MOST_CLIENTS + 1})
    samples = Samples(np.eye(1, 2), np.zeros(1, dtype=np.int64), more.n)
    with pytest.raises(InputError, match="float64 rounding"):
        release_votes(samples, np.eye(2), plan=more, mechanisms=make_mechanisms(more, recording), round=0)
    assert not recording.calls


def test_the_sum_of_the_most_clients_votes_is_off_by_less_than_is_set_aside():
    """The bound, and what it comes to: twice the worst case fits 2^-11, and a sum of thirds is far below."""
    assert 2 * MOST_CLIENTS**2 * 2.0**-53 + 8 * MOST_CLIENTS * 2.0**-53 < 2.0**-11
    owners = np.repeat(np.arange(MOST_CLIENTS), 3)
    choices = np.tile(np.array([0, 1, 2]), MOST_CLIENTS)
    found = vote_sum(choices, owners, np.ones(MOST_CLIENTS, dtype=bool), candidates=3)
    assert np.linalg.norm(found - MOST_CLIENTS / 3) < 2.0**-13


def test_nearest_is_the_largest_cosine_and_ties_go_to_the_lower_index(monkeypatch):
    monkeypatch.setattr("understudy.baselines.votes._CHUNK", 7)
    generator = np.random.default_rng(0)
    samples, candidates = generator.normal(size=(50, 6)), generator.normal(size=(9, 6)) * 100
    candidates[5] = candidates[2]
    cosines = [[s @ c / np.linalg.norm(s) / np.linalg.norm(c) for c in candidates] for s in samples]
    found = nearest(samples, candidates)
    assert found.tolist() == [int(np.argmax(np.round(row, 6))) for row in cosines]
    assert 5 not in found
    assert nearest(samples[:0], candidates).tolist() == []


@pytest.mark.parametrize("seed", range(40))
def test_a_client_that_is_absent_moves_no_vote_of_another(seed):
    """Generators repeat themselves, and of two equal texts a product of floats prefers one, then the other."""
    generator = np.random.default_rng(seed)
    count, clients = generator.integers(3, 40), generator.integers(2, 40)
    texts = generator.normal(size=(count, 384)).astype(np.float32)
    candidates = texts[generator.integers(count, size=count)]
    samples, everyone = generator.normal(size=(clients, 384)).astype(np.float32), np.ones(clients, dtype=bool)
    before = nearest(samples, candidates)
    for absent in (0, int(clients) - 1):
        stay = np.flatnonzero(np.arange(clients) != absent)
        after = nearest(samples[stay], candidates)
        assert after.tolist() == before[stay].tolist()
        moved = vote_sum(before, np.arange(clients), everyone, candidates=int(count)) - vote_sum(
            after, stay, everyone, candidates=int(count)
        )
        assert np.linalg.norm(moved) <= 1


def test_a_sample_without_a_direction_votes_as_if_all_candidates_were_as_near():
    samples = np.array([[0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0], [0.0, 1e-30]], dtype=np.float32)
    assert nearest(samples, np.eye(2, dtype=np.float32)).tolist() == [0, 0, 0, 1]


def make_samples(by_client, directions):
    choices, owners = flat(by_client)
    return Samples(directions[choices], owners, n=len(by_client))


def test_one_round_is_a_mask_and_one_query_of_sensitivity_1(make_mechanisms):
    config = EvolutionConfig(rounds=4, sampling_probability=0.5)
    planned = planned_with(config, 4, 1.7)
    recording = Recording()
    directions = np.eye(5)
    samples = make_samples([[0, 0, 1], [], [4], [2, 2]], directions)
    released = release_votes(samples, directions, plan=planned, mechanisms=make_mechanisms(planned, recording), round=2)
    mask, votes = recording.calls
    assert (mask.mechanism.kind, mask.mechanism.scale, mask.mechanism.step) == ("poisson", 0.5, 2)
    assert (votes.mechanism.kind, votes.mechanism.step) == ("gaussian_sum", 2)
    assert votes.mechanism.sensitivity == charged_sensitivity(1.0)
    assert votes.mechanism.scale == planned.streams[0].noise_multiplier * charged_sensitivity(1.0)
    taking_part = mask.output["mask"].numpy()
    expected = by_loops([[0, 0, 1], [], [4], [2, 2]], taking_part, 5)
    assert votes.query["votes"].numpy() == pytest.approx(expected, rel=0, abs=votes.mechanism.grid / 2)
    assert released.tolist() == votes.output["votes"].tolist()


def test_the_noise_has_the_planned_scale(make_mechanisms):
    config = EvolutionConfig(rounds=1)
    planned = planned_with(config, 3, 6.5)
    directions = np.random.default_rng(0).normal(size=(20_000, 3))
    samples = Samples(directions[:3], np.arange(3), n=3)
    released = release_votes(samples, directions, plan=planned, mechanisms=make_mechanisms(planned), round=0)
    assert float(released.std()) == pytest.approx(planned.streams[0].noise_multiplier, rel=0.02)


def test_the_event_costs_what_dp_accounting_says():
    config = EvolutionConfig(rounds=6)
    planned = plan(config, n=100, epsilon=1.5, delta=1e-4)
    z = planned.streams[0].noise_multiplier
    direct = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(1.0, dp.GaussianDpEvent(z)), 6)
    accountant = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL).compose(direct)
    found = accountant.get_epsilon(1e-4)
    assert 1.5 * 0.999 <= found <= 1.5
    assert epsilon_pld(planned.event, 1e-4) == pytest.approx(found, rel=1e-8)
    assert plan(config, n=100, **NO_NOISE).streams[0].noise_multiplier == 0


def test_survival_is_in_proportion_to_what_is_above_the_threshold():
    votes = np.array([3.0, -2.0, 1.0, 2.0], dtype=np.float32)
    assert survival(votes, threshold=1.0).tolist() == pytest.approx([2 / 3, 0, 0, 1 / 3])
    assert survival(votes, threshold=9.0).tolist() == [0.25] * 4
    generation = Generation(("a", "b", "c", "d"), survival(votes, threshold=0.5))
    assert generation.survivors == ["a", "d", "c"]


def test_the_threshold_is_public():
    config = EvolutionConfig(rounds=2, threshold_votes=0.5, threshold_noise=2.0)
    planned = planned_with(config, 10, 2.5)
    assert threshold(config, planned) == 0.5 + 2.0 * planned.streams[0].noise_multiplier
    paper = EvolutionConfig(profile="paper")
    assert threshold(paper, planned_with(paper, 10, 2.5)) == 0.1626
    assert paper.prompts * paper.per_prompt == 1024


def test_prompts_show_survivors_in_proportion():
    config = EvolutionConfig(examples_per_prompt=1)
    parents = Generation(("one", "two", "three"), np.array([0.75, 0.0, 0.25]))
    prompts = next_prompts(parents, 2000, config=config, round=1, to_prompt="|".join)
    assert set(prompts) == {"one", "three"}
    assert prompts.count("one") == pytest.approx(1500, abs=80)
    assert prompts == next_prompts(parents, 2000, config=config, round=1, to_prompt="|".join)
    assert prompts != next_prompts(parents, 2000, config=config, round=2, to_prompt="|".join)
    more = next_prompts(parents, 5, config=EvolutionConfig(examples_per_prompt=3), round=1, to_prompt="|".join)
    assert {tuple(sorted(p.split("|"))) for p in more} == {("one", "three")}


def test_the_list_prompt_ends_where_the_next_text_begins():
    assert list_prompt(["a  b", "c\nd"]) == (
        "List of 5 diverse original text samples:\n\nOriginal Text Sample 1\na b\n\n"
        "Original Text Sample 2\nc d\n\nOriginal Text Sample 3\n"
    )


# A toy: a text is an angle, its embedding a point of the circle, a variation a nearby angle.
def embed_angles(texts):
    angles = np.array([float(text) for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def vary(prompts, per_prompt, round):
    generator = np.random.default_rng(round)
    return [
        str(float(generator.choice(prompt.split("|"))) + generator.normal() * 0.25)
        for prompt in prompts
        for _ in range(per_prompt)
    ]


def run_toy(make_mechanisms, recorder=None, *, rounds=8, z=0.0, at=2.5, without=None):
    generator = np.random.default_rng(1)
    angles = at + 0.1 * generator.normal(size=60)
    owners = np.arange(60) % 20
    kept = owners != (-1 if without is None else without)
    samples = Samples(embed_angles([str(a) for a in angles[kept]]), owners[kept], n=20)
    config = EvolutionConfig(rounds=rounds, prompts=8, per_prompt=4, threshold_noise=0.0)
    planned = planned_with(config, 20, z)
    seeds = [str(a) for a in (-0.4, -0.2, 0.0, 0.2, 0.4)]
    options = {"config": config, "plan": planned, "mechanisms": make_mechanisms(planned, recorder)}
    return evolve(samples, seeds, generate=vary, embed=embed_angles, to_prompt="|".join, **options)


def test_without_noise_texts_move_towards_the_clients(make_mechanisms):
    history = run_toy(make_mechanisms)
    distances = [np.mean([abs(float(text) - 2.5) for text in generation.texts]) for generation in history]
    assert len(history) == 8
    assert distances[0] > 2.0
    assert distances[-1] < 0.35
    assert all(0.9 < generation.probabilities.sum() < 1.1 for generation in history)


def test_a_run_repeats_and_drowns_in_noise(make_mechanisms):
    first, second = run_toy(make_mechanisms, rounds=3, z=1.0), run_toy(make_mechanisms, rounds=3, z=1.0)
    assert [g.texts for g in first] == [g.texts for g in second]
    lost = run_toy(make_mechanisms, z=500.0)
    assert np.mean([abs(float(text) - 2.5) for text in lost[-1].texts]) > 1.0


def test_only_masks_and_votes_pass_the_gateway(make_mechanisms):
    recording = Recording()
    run_toy(make_mechanisms, recording, rounds=3, z=1.0)
    kinds = [(call.mechanism.kind, call.mechanism.step) for call in recording.calls]
    assert kinds == [(kind, step) for step in range(3) for kind in ("poisson", "gaussian_sum")]


def test_a_replayed_neighbour_gives_the_same_texts_and_queries_within_1(make_mechanisms):
    recording = Recording()
    first = run_toy(make_mechanisms, recording, rounds=3, z=1.0)
    replaying = Replaying(recording.calls)
    second = run_toy(make_mechanisms, replaying, rounds=3, z=1.0, without=7)
    assert [g.texts for g in first] == [g.texts for g in second]
    moved = [
        float((call.query["votes"] - query["votes"]).norm())
        for call, query in zip(recording.calls, replaying.queries, strict=True)
        if call.mechanism.kind == "gaussian_sum"
    ]
    assert all(0.5 < distance <= 1 + 1e-5 for distance in moved)


def test_what_does_not_fit_is_refused_before_the_gateway(make_mechanisms):
    config = EvolutionConfig(rounds=2, prompts=2, per_prompt=2)
    planned = plan(config, n=3, **NO_NOISE)
    samples = Samples(np.eye(3), np.arange(3), n=3)
    recording = Recording()

    def run(*, of=samples, seeds=("0",), **changes):
        options = {"config": config, "plan": planned, "mechanisms": make_mechanisms(planned, recording), **changes}
        evolve(of, list(seeds), generate=lambda *_: ["0"] * 3, embed=embed_angles, **options)

    with pytest.raises(InputError, match="plan again"):
        run(config=EvolutionConfig(rounds=3))
    with pytest.raises(InputError, match="null clients keep theirs"):
        run(of=Samples(np.eye(3), np.arange(3), n=4))
    with pytest.raises(InputError, match="seed texts"):
        run(seeds=())
    with pytest.raises(InputError, match=r"round 0: .*4 texts.*found 3"):
        run()
    assert not recording.calls

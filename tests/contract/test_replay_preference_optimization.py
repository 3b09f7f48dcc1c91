"""Record and replay of preference optimisation: from stored texts to the export, only noised sums meet a client."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from contract.method_under_replay import MethodRun
from contract.preference_rows import (
    SLOT,
    base_rows,
    hashed_words,
    neighbours,
    small_preferences,
    stand_in_encoder,
    unrelated,
    without_unit,
)
from contract.stated_calls import pooled

from understudy.models.loading import load_model
from understudy.preference_optimization.clients import build_clients, without_client
from understudy.preference_optimization.config import PreferenceOptimizationConfig
from understudy.preference_optimization.plan import Plan
from understudy.preference_optimization.planning import charged_settings
from understudy.preference_optimization.pool import ClientPool
from understudy.preference_optimization.release import release_scores, secure_settings
from understudy.preference_optimization.rounds import propose
from understudy.preference_optimization.seeds import read_seeds
from understudy.privacy.ledger_records import KeyMaterial
from understudy.privacy.mechanisms import Gateway
from understudy.privacy.replay import Recording, Replaying, replay_check
from understudy.privacy.replay_statistics import noise_faults

SAMPLED, MASKED = {"clients": {"sampling_probability": 0.5}}, {"scoring": {"aggregation": "masked"}}
VARIANTS = {
    "federated": {},
    "federated, sampled": SAMPLED,
    "federated, masked": MASKED,
    "federated, masked, sampled": SAMPLED | MASKED,
    "federated, by norms": {"scoring": {"over": "all"}, "candidates": {"prompts": 5}},
    "federated, as in the paper": {"scoring": {"normalise": "none"}},
    "federated, histogram": {"scoring": {"scorer": "histogram"}},
    "central": {"variant": "central"},
    "central, histogram": {"variant": "central", "scoring": {"scorer": "histogram"}},
    "central_conditional": {"variant": "central_conditional"},
    "central_conditional, masked": {"variant": "central_conditional", **MASKED},
}


def pair_of(variant, kind, slot, config):
    copied = ""
    if kind == "copy":
        # The candidates of the first round are public: anyone's text may be one of them.
        base, names = load_model(config.model), ("negative",) if config.variant == "central_conditional" else ()
        seeds = read_seeds(config.seeds)
        first = propose(base, seeds, config=config, label_names=names, round=0, encode=hashed_words)
        copied = next(text for text in first.table["text"].to_pylist() if text)
    return next(pair for pair in neighbours(variant, slot, copied=copied) if pair[0] == kind)


def check(name, kind, slot, model, folder, calibrations, monkeypatch, **options):
    config = small_preferences(model, **VARIANTS[name])
    _, _, data, neighbour = pair_of(config.variant, kind, slot, config)
    run = MethodRun(config, folder, calibrations, monkeypatch)
    # Without sampling there is no mask that a slot could be forced into.
    forced = slot if config.clients.sampling_probability < 1 else None
    report = replay_check(run, data=data, neighbour=neighbour, slot=forced, **options)
    assert (*report.faults, *run.unstated) == (), f"{name}, {kind} unit in slot {slot}"
    largest = report.distance_real if forced is None else report.distance_forced
    # A standardised vector has norm 1 whatever it is of: the query moves by all of its sensitivity, and no further.
    assert (0.1 if name == "federated, as in the paper" else 0.99) < largest <= 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("federated", "plain"),
        ("federated, sampled", "extreme"),
        ("federated, masked", "repeated"),
        ("central, histogram", "copy"),
        ("central_conditional", "rare class"),
    ],
)
def test_a_neighbour_of_each_kind(name, kind, random_model_folder, tmp_path, calibrations, monkeypatch):
    far = {"unrelated": unrelated("federated")} if name == "federated" else {}
    check(name, kind, SLOT, random_model_folder, tmp_path, calibrations, monkeypatch, **far)


def fifty():
    for number in range(50):
        name = list(VARIANTS)[number % len(VARIANTS)]
        kinds = [pair[0] for pair in neighbours(VARIANTS[name].get("variant", "federated"), 0)]
        yield name, kinds[number // len(VARIANTS) % len(kinds)], number * 5 % 12


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "slot"), list(fifty()))
def test_fifty_neighbours(name, kind, slot, random_model_folder, tmp_path, calibrations, monkeypatch):
    check(name, kind, slot, random_model_folder, tmp_path, calibrations, monkeypatch)


def test_the_null_client_of_these_tests_is_that_of_the_guarantee(random_model_folder):
    """Its documents are empty, which no admitted table holds, so that a client that is not there keeps its slot."""
    import pyarrow as pa

    tokenizer = load_model(random_model_folder).tokenizer
    whole, without = (
        build_clients(pa.table(rows), tokenizer, 16) for rows in (base_rows("federated"), without_unit("federated", 3))
    )
    expected = without_client(whole, 3)
    assert (without.slots, without.samples) == (expected.slots, expected.samples)
    assert without.owner.tolist() == expected.owner.tolist()
    assert whole.counts[3] > without.counts[3] == 0


def test_what_is_compared_is_everything_and_follows_the_noisy_scores(
    random_model_folder, tmp_path, calibrations, monkeypatch
):
    config = small_preferences(random_model_folder)
    run = MethodRun(config, tmp_path, calibrations, monkeypatch)
    recording = Recording()
    seen = run(base_rows("federated"), lambda material: Gateway(material, recorder=recording))
    other = run(base_rows("federated"), lambda material: Gateway(KeyMaterial(b"o" * 32, "other", material.salt)))
    stored = [json.loads(text) for name, text in seen.visible.items() if name.endswith("manifest.json")]
    kinds = sorted(one["kind"] for one in stored)
    assert kinds == ["adapter", "adapter", "candidates", "candidates", "model", "scores", "scores", "synthetic"]
    files = {name.rpartition("/")[2] for name in seen.visible}
    assert {"scores.safetensors", "adapter.safetensors", "embeddings.safetensors", "table.parquet"} <= files
    assert {"model.safetensors", "synthetic.parquet", "value.json", "statement.json", "statement.md"} <= files
    progress = seen.visible["progress"].decode().splitlines()
    assert progress == ["propose 16 of 16", "prefer 1 of 1"] * 2 + ["write-texts 4 of 4"]
    assert charged_settings(config) != config
    calls = [(call.mechanism.kind, call.mechanism.step, call.mechanism.purpose) for call in recording.calls]
    assert calls == [("gaussian_sum", 0, "scores"), ("gaussian_sum", 1, "scores")]
    # What does not depend on the scores could not show what the scores let through.
    for name in ("out/export/model/model.safetensors", "out/export/synthetic.parquet"):
        assert seen.visible[name] != other.visible[name]


class OtherMasks(Replaying):
    """Gives back the recorded sums, and of each mask the contrary."""

    def observe(self, mechanism, query, draw):
        found = super().observe(mechanism, query, draw)
        return {"mask": ~found["mask"]} if mechanism.kind == "poisson" else found


def sampled_with_other_masks(model, folder, calibrations, monkeypatch):
    """What differs between two runs on one data set with the same sums and other participants."""
    run = MethodRun(small_preferences(model, rounds=1, **SAMPLED), folder, calibrations, monkeypatch)
    recording = Recording()
    first = run(base_rows("federated"), lambda material: Gateway(material, recorder=recording))
    again = run(base_rows("federated"), lambda material: Gateway(material, recorder=OtherMasks(recording.calls)))
    assert 0 < int(recording.calls[0].output["mask"].sum()) < 12
    return {name for name in first.visible | again.visible if first.visible.get(name) != again.visible.get(name)}


def test_who_takes_part_is_not_visible(random_model_folder, tmp_path, calibrations, monkeypatch):
    """Replay hands the same mask to D and D', so it cannot tell whether one leaks; amplification needs it not to."""
    assert sampled_with_other_masks(random_model_folder, tmp_path, calibrations, monkeypatch) == set()


def test_a_count_of_participants_would_be_visible(random_model_folder, tmp_path, calibrations, monkeypatch):
    from understudy.preference_optimization import release

    exact = release.scores_without_noise

    def scaled(pool, candidates, mask, **options):
        scale.append(12 / max(1, mask.sum()))
        return exact(pool, candidates, mask, **options)

    scale, whole = [], release.release_scores
    monkeypatch.setattr(release, "scores_without_noise", scaled)
    monkeypatch.setattr(release, "release_scores", lambda *args, **options: whole(*args, **options) * scale[-1])
    # With six of twelve the contrary mask has the same count.
    monkeypatch.setattr(OtherMasks, "observe", lambda self, *args: _nobody(Replaying.observe(self, *args)))
    differing = sampled_with_other_masks(random_model_folder, tmp_path, calibrations, monkeypatch)
    assert any(name.endswith("scores.safetensors") for name in differing)


def _nobody(found):
    return {name: torch.zeros_like(value) if name == "mask" else value for name, value in found.items()}


def release_often(config, *, charges, candidates=24, n=12):
    """The calls of many charges of a plan with noise multiplier 0.7."""
    random = np.random.default_rng(0)
    shown, samples = (random.standard_normal((rows, 16)).astype(np.float32) for rows in (candidates, 3 * n))
    owner = np.repeat(np.arange(n), 3)
    samples /= np.linalg.norm(samples, axis=1, keepdims=True)
    pool = ClientPool(samples.reshape(n, 3, 16).mean(1).astype(np.float64), samples, owner, None)
    probability = config.clients.sampling_probability
    planned = Plan(epsilon=8, delta=1e-3, n=n, rounds=2, sampling_probability=probability, noise_multiplier=0.7)
    calls = []
    for number in range(charges):
        recording = Recording()
        gateway = Gateway(KeyMaterial(b"s" * 32, f"charge-{number}", b"t" * 32), recorder=recording)
        for step in range(2):
            released = release_scores(
                pool, shown, labels=None, config=config, plan=planned, gateway=gateway, round=step
            )
            assert torch.equal(released, next(iter(recording.calls[-1].output.values())))
        calls += recording.calls
    return planned, calls


@pytest.mark.parametrize("name", ["federated", "federated, sampled", "federated, masked", "federated, histogram"])
def test_the_scores_get_noise_of_the_stated_scale_and_no_other_would_pass(name):
    config = PreferenceOptimizationConfig.model_validate(VARIANTS[name])
    planned, calls = release_often(config, charges=10)
    sums = [call for call in calls if call.mechanism.kind != "poisson"]
    stated = planned.noise_multiplier
    if config.scoring.aggregation == "masked":
        # Noise is sized for the fewest that may answer, and everyone does.
        stated *= (12 / secure_settings(config, planned).smallest_surviving) ** 0.5
        assert sums[0].mechanism.scale > planned.noise_multiplier
    assert all(call.mechanism.scale == pytest.approx(stated, rel=1e-3) for call in sums)
    assert all(call.mechanism.sensitivity == 1 for call in sums)
    assert noise_faults(sums, significance=1e-6, noiseless=False) == []
    assert noise_faults([pooled(sums, 1.0)], significance=1e-6, noiseless=False) == []
    for factor in (2 / 3, 3 / 2):
        faults = noise_faults([pooled(sums, factor)], significance=1e-6, noiseless=False)
        assert any("times what was declared" in fault for fault in faults), factor
    again = dataclasses.replace(sums[1], output={n: sums[1].query[n] + _noise(sums[0]) for n in sums[1].query})
    assert any("dependent" in fault for fault in noise_faults([sums[0], again], significance=1e-3, noiseless=False))


def _noise(call):
    (name,) = call.query
    return call.output[name] - call.query[name]


def test_the_stand_in_encoder_reads_each_text_alone():
    texts = [text for text in base_rows("federated")["text"]]
    alone = np.concatenate([stand_in_encoder().encode([text]) for text in texts])
    assert np.array_equal(stand_in_encoder().encode(texts), alone)
    assert np.linalg.matrix_rank(alone) > 5

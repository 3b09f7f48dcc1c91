"""What a method releases has noise of the stated scale, and no other would pass: judged over many charges at once."""

import dataclasses

import numpy as np
import pytest
import torch
from contract.private_files import NAMES

from understudy.data.private_rows import PrivateRows
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.method import charged_settings
from understudy.methods.gradient_matching.queries import Asked, queries_of, schedule_of
from understudy.methods.gradient_matching.release import release_target
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.pool import ClientPool
from understudy.methods.preference_optimization.queries import QuerySchedule
from understudy.methods.preference_optimization.release import release_scores, secure_settings
from understudy.models.loading import load_model
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.testing.replay import Recording
from understudy.privacy.testing.statistics import Call, noise_faults

TEXTS, LABELS = ("a dull film", "a bright song", "a dull song", "a bright film"), (0, 1, 0, 1)


def pooled(calls, factor):
    """The calls of one mechanism as one, with noise of `factor` times its size."""
    query, output = (
        torch.cat([values[name].flatten().double() for values in parts for name in sorted(values)])
        for parts in ([call.query for call in calls], [call.output for call in calls])
    )
    return Call(calls[0].mechanism, {"all": query}, {"all": query + factor * (output - query)})


def check_scale(calls):
    assert noise_faults([pooled(calls, 1.0)], significance=1e-6, noiseless=False) == []
    for factor in (2 / 3, 3 / 2):
        faults = noise_faults([pooled(calls, factor)], significance=1e-6, noiseless=False)
        assert any("times what was declared" in fault for fault in faults), factor


def opened(number, queries):
    recording = Recording()
    return recording, Mechanisms(KeyMaterial(b"s" * 32, f"charge-{number}", b"t" * 32, queries), recorder=recording)


def test_target_and_length(random_model_folder):
    """The length is two numbers, so its noise is judged over many charges."""
    words = {"negative": "bad", "positive": "good", "rare": "odd"}
    target = {"kind": "sketch", "sketch_dimension": 64, "l2_clip_norm": 0.1}
    settings = {"model": str(random_model_folder), "max_length": 16, "verbalizer": {"words": words}, "target": target}
    config = GradientMatchingConfig.model_validate(settings | {"length": "as_in_data", "length_share": 0.2})
    base, config = load_model(random_model_folder), charged_settings(config)
    planned = schedule_of(queries_of(config, n=4, epsilon=8.0, delta=1e-3))
    names, calls = tuple(NAMES.values()), []
    for number in range(120):
        recording, mechanisms = opened(number, planned.queries)
        release_target(PrivateRows(TEXTS, LABELS, names), Asked(config, planned, mechanisms), base=base)
        calls += recording.calls
    stated = {"target": planned.noise_multiplier * 0.1, "length": planned.length_noise_multiplier * 2**0.5}
    for purpose, scale in stated.items():
        own = [call for call in calls if call.mechanism.purpose == purpose]
        assert own[0].mechanism.scale == pytest.approx(scale, rel=2e-3)
        check_scale(own)


def release_often(config, *, charges, candidates=24, n=12):
    """The calls of many charges of a plan with noise multiplier 0.7."""
    random = np.random.default_rng(0)
    shown, samples = (random.standard_normal((rows, 16)).astype(np.float32) for rows in (candidates, 3 * n))
    owner = np.repeat(np.arange(n), 3)
    samples /= np.linalg.norm(samples, axis=1, keepdims=True)
    pool = ClientPool(samples.reshape(n, 3, 16).mean(1).astype(np.float64), samples, owner, None)
    planned = QuerySchedule(
        n=n,
        rounds=2,
        sampling_probability=config.clients.sampling_probability,
        noise_multiplier=0.7,
        masked=config.scoring.aggregation == "masked",
    )
    calls = []
    for number in range(charges):
        recording, mechanisms = opened(number, planned.queries)
        for step in range(2):
            options = {"labels": None, "config": config, "schedule": planned, "mechanisms": mechanisms, "round": step}
            released = release_scores(pool, shown, **options)
            assert torch.equal(released, next(iter(recording.calls[-1].output.values())))
        calls += recording.calls
    return planned, calls


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clients": {"sampling_probability": 0.5}},
        {"scoring": {"aggregation": "masked"}},
        {"scoring": {"scorer": "histogram"}},
    ],
    ids=["all", "sampled", "masked", "histogram"],
)
def test_scores(settings):
    config = PreferenceOptimizationConfig.model_validate(settings)
    planned, calls = release_often(config, charges=10)
    sums = [call for call in calls if call.mechanism.kind != "poisson"]
    stated = planned.noise_multiplier
    if config.scoring.aggregation == "masked":
        # Noise is sized for the fewest that may answer, and everyone does.
        stated *= (12 / secure_settings(config, planned).smallest_surviving) ** 0.5
        assert sums[0].mechanism.scale > planned.noise_multiplier
    assert all(call.mechanism.scale == pytest.approx(stated, rel=2e-3) for call in sums)
    assert all(call.mechanism.sensitivity == pytest.approx(1, rel=2e-3) for call in sums)
    assert noise_faults(sums, significance=1e-6, noiseless=False) == []
    check_scale(sums)
    noise = next(sums[0].output[name] - sums[0].query[name] for name in sums[0].query)
    again = dataclasses.replace(sums[1], output={n: query + noise for n, query in sums[1].query.items()})
    assert any("dependent" in fault for fault in noise_faults([sums[0], again], significance=1e-3, noiseless=False))

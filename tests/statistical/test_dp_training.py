"""DP training as a whole: noise of the accounted scale and no other, real signal, honest sampling.

Every test runs on fixed keys, so it gives the same verdict each time; each also rejects noise, or a rate, that is off
by a factor of 2/3 or 3/2.
"""

import math

import pytest
import torch
from scipy import stats
from tests_support import scale_noise
from torch.nn import functional

from understudy.models import lora
from understudy.models.loading import load_model
from understudy.privacy import mechanisms as mechanisms_module
from understudy.privacy.dpsgd.per_example import clipped_gradient_sum
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream
from understudy.privacy.dpsgd.training import Objective, train
from understudy.privacy.grid import charged_sensitivity
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Query
from understudy.privacy.testing.replay import Recording
from understudy.privacy.testing.statistics import Call, mask_faults, noise_faults

TEXTS = (
    "The film is a quiet triumph, and its actors never miss a beat.",
    "A long evening of noise with nothing to say.",
    "Shares rose sharply after the company reported its results.",
    "The patient should rest and drink plenty of water.",
    "Write a short note to thank your neighbour.",
    "It was the best of plays, it was the worst of plays.",
    "Rain is expected in the north by the end of the week.",
    "He scored twice before half-time and once after.",
)
LENGTH = 20


def mechanisms(queries, number=0, recorder=None):
    """Opened with the queries that a charge paid for."""
    return Mechanisms(KeyMaterial(b"statistical test", f"charge-{number}", b"fixed", queries), recorder=recorder)


def one_sum(name, **changes):
    return Query(**({"kind": "gaussian_sum", "name": name, "units": 1000, "sensitivity": 1.0} | changes))


def encoded(tokenizer):
    rows = [tokenizer.encode(text)[: LENGTH - 1] for text in TEXTS]
    ids = torch.tensor([[0, *row] + [1] * (LENGTH - 1 - len(row)) for row in rows])
    mask = torch.tensor([[1] * (1 + len(row)) + [0] * (LENGTH - 1 - len(row)) for row in rows])
    positions = torch.arange(LENGTH)[None].repeat(len(rows), 1)
    valid = torch.ones(len(rows), dtype=torch.bool)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "valid": valid}


def lm_loss(model, batch):
    ids, mask = batch["input_ids"], batch["attention_mask"]
    logits = model(input_ids=ids, attention_mask=mask, position_ids=batch["position_ids"], use_cache=False).logits[
        :, :-1
    ]
    losses = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * mask[:, 1:]).sum(1) / mask[:, 1:].sum(1)


def build(name, rank):
    loaded = load_model(name)
    data = encoded(loaded.tokenizer)
    if rank == 0:
        return loaded.model, data
    generator = torch.Generator().manual_seed(0)
    return lora.attach(loaded.model, rank=rank, alpha=2 * rank, generator=generator), data


def fit(model, data, *, steps=4, noise=0.0, learning_rate=1e-3, probability=1.0, recorder=None, clip=0.5):
    stream = Stream(name="lm", l2_clip_norm=clip, noise_multiplier=noise)
    plan = DpSgdPlan(n=len(TEXTS), sampling_probability=probability, steps=steps, streams=(stream,))
    train(
        model,
        plan=plan,
        objectives={"lm": Objective(lm_loss, lora.trainable_parameters(model), learning_rate)},
        data=data,
        mechanisms=mechanisms(plan.queries, recorder=recorder),
        micro_batch=4,
    )


@pytest.mark.parametrize(("name", "rank"), [("tiny-llama", 4), ("tiny-gpt2", 4), ("tiny-gpt2", 0)])
def test_clipped_signal_moves_every_trainable_tensor_and_lowers_the_loss(name, rank):
    """Zero noise, public data: weights also move under pure noise, so only this shows that there is a signal."""
    model, data = build(name, rank)
    parameters = lora.trainable_parameters(model)
    start = {key: value.detach().clone() for key, value in parameters.items()}
    with torch.no_grad():
        before = lm_loss(model, data).mean()
    signal = clipped_gradient_sum(model, parameters, lm_loss, data, l2_clip_norm=0.5, valid=data["valid"])
    norm = torch.cat([value.flatten() for value in signal.values()]).norm()
    assert 0.5 < norm < 0.5 * len(TEXTS)
    fit(model, data)
    assert all(not torch.equal(parameters[key], start[key]) for key in start)
    with torch.no_grad():
        after = lm_loss(model, data).mean()
    assert after < before - 0.1


@pytest.mark.parametrize("factor", [2 / 3, 1.0, 3 / 2])
def test_noise_of_the_gateway_has_the_declared_scale(monkeypatch, factor):
    scale_noise(monkeypatch, factor)
    streams = {"lm": 0.1, "discriminator": 2.0}
    queries = [one_sum(name, steps=20, sensitivity=c, noise_multiplier=0.7) for name, c in streams.items()]
    recording = Recording()
    door = mechanisms(tuple(queries), recorder=recording)
    for step in range(20):
        query = {"a": torch.full((50,), float(step)), "b": torch.zeros(10, 10)}
        for stream, sensitivity in streams.items():
            door.gaussian_sum(query, sensitivity=sensitivity, noise_multiplier=0.7, step=step, purpose=stream)
    assert bool(noise_faults(recording.calls, significance=1e-6, noiseless=False)) == (factor != 1.0)


@pytest.mark.parametrize("factor", [2 / 3, 1.0, 3 / 2])
def test_neighbours_are_as_hard_to_tell_apart_as_the_accounting_says(monkeypatch, factor):
    """The best test between two queries one sensitivity apart has AUC Phi(1 / (z sqrt 2)), whatever the rest."""
    scale_noise(monkeypatch, factor)
    noise, runs = 0.8, 400
    asked = one_sum("lm", sensitivity=0.4, noise_multiplier=noise)
    direction = torch.randn(12, generator=torch.Generator().manual_seed(3))
    direction /= direction.norm()

    def scores(query, first):
        for number in range(first, first + runs):
            output = mechanisms((asked,), number).gaussian_sum(
                {"q": query}, sensitivity=0.4, noise_multiplier=noise, step=0, purpose="lm"
            )
            yield float(output["q"] @ direction)

    base = torch.ones(12)
    without = list(scores(base, 0))
    with_record = list(scores(base + 0.4 * direction, 10**6))
    wins = stats.mannwhitneyu(with_record, without).statistic / runs**2
    expected = stats.norm.cdf(1 / (noise * math.sqrt(2)))
    deviation = math.sqrt(1 / (6 * runs))  # of the AUC of two equal samples, an upper bound here
    assert (abs(wins - expected) < 3 * deviation) == (factor == 1.0)


@pytest.mark.parametrize("factor", [2 / 3, 1.0, 3 / 2])
def test_batches_are_drawn_at_the_accounted_rate(factor):
    recording, accounted = Recording(), 0.1
    sampled = {"batch": "train", "sampling_probability": accounted * factor}
    asked = one_sum("lm", units=400, steps=60, noise_multiplier=1.0, **sampled)
    door = mechanisms((asked,), recorder=recording)
    for step in range(60):
        door.poisson(step=step, n=400, probability=accounted * factor, purpose="train")
    calls = [
        Call(mechanisms_module.Mechanism("poisson", step, "train", accounted, 0.0), call.query, call.output)
        for step, call in enumerate(recording.calls)
    ]
    assert bool(mask_faults(calls, significance=1e-6)) == (factor != 1.0)


def test_a_noised_training_passes_all_checks_of_its_calls():
    """Noise, masks and their independence as the trainer asks for them, on a real model."""
    model, data = build("tiny-gpt2", 2)
    recording = Recording()
    fit(model, data, steps=12, noise=0.9, probability=0.5, recorder=recording)
    kinds = [call.mechanism.kind for call in recording.calls]
    assert kinds == ["poisson", "gaussian_sum"] * 12
    assert noise_faults(recording.calls, significance=1e-6, noiseless=False) == []
    assert mask_faults(recording.calls, significance=1e-6) == []
    sums = [call for call in recording.calls if call.mechanism.kind == "gaussian_sum"]
    drawn = [int(call.output["mask"].sum()) for call in recording.calls if call.mechanism.kind == "poisson"]
    for call, count in zip(sums, drawn, strict=True):
        norm = torch.cat([value.flatten() for value in call.query.values()]).norm()
        assert norm <= charged_sensitivity(0.5) * count, "each drawn record adds at most the clip norm"


def test_noise_of_two_charges_is_independent():
    recordings = []
    asked = one_sum("lm", noise_multiplier=1.0)
    for number in range(8):
        recording = Recording()
        mechanisms((asked,), number, recording).gaussian_sum(
            {"q": torch.zeros(3000)}, sensitivity=1.0, noise_multiplier=1.0, step=0, purpose="lm"
        )
        recordings += recording.calls
    assert noise_faults(recordings, significance=1e-6, noiseless=False) == []

"""Every fault that is planted into preference optimisation is found by its replay."""

import dataclasses
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from contract import preference_rows
from contract.method_under_replay import MethodRun
from contract.preference_rows import SLOT, neighbours, small_preferences, unrelated

from understudy.models import checkpoints
from understudy.preference_optimization import pool, release, rounds, scoring
from understudy.preference_optimization.clients import Clients
from understudy.privacy import mechanisms, secure_client
from understudy.privacy.mechanisms import Gateway

Patch = pytest.MonkeyPatch


def clip_removed(patch: Patch) -> None:
    exact = scoring.product_weights
    patch.setattr(scoring, "product_weights", lambda *args: [3 * weight for weight in exact(*args)])


def vote_counted_for_every_sample(patch: Patch) -> None:
    exact = release.histogram_sum

    def counted(space, nearest, owner, mask, **options):
        sums = np.zeros(space.count)
        for sample in range(len(owner)):
            sums += exact(space, nearest[[sample]], owner[[sample]], mask, **options)
        return sums

    patch.setattr(release, "histogram_sum", counted)


def divided_by_who_is_there(patch: Patch) -> None:
    """The mean over clients that have texts, scaled back by the public n, before the noise."""
    held = _hold_pool(patch)

    def mean(total, *, slots):
        return (total * slots / len(np.unique(held[-1].owner))).astype(np.float32)

    patch.setattr(release, "as_query", mean)


def noisy_sum_divided_by_who_is_there(patch: Patch) -> None:
    exact = release.release_scores

    def mean(clients, *args, **options):
        return exact(clients, *args, **options) / len(np.unique(clients.owner))

    patch.setattr(release, "release_scores", mean)


def pairs_from_scores_without_noise(patch: Patch) -> None:
    sums, pairs = _hold_sums(patch), rounds.preference_pairs
    patch.setattr(rounds, "preference_pairs", lambda scores, **options: pairs(sums[-1], **options))


def noised_but_not_used(patch: Patch) -> None:
    exact = Gateway.gaussian_sum

    def unused(self, query, **options):
        exact(self, query, **options)
        return dict(query)

    patch.setattr(Gateway, "gaussian_sum", unused)


def client_without_samples_dropped(patch: Patch) -> None:
    exact = pool.build_pool

    def dropped(*args, **options):
        found = exact(*args, **options)
        kept, owner = np.unique(found.owner, return_inverse=True)
        return dataclasses.replace(found, means=found.means[kept], owner=owner)

    patch.setattr(pool, "build_pool", dropped)


def private_text_as_seed(patch: Patch) -> None:
    held, exact = _hold_clients(patch), rounds.propose
    patch.setattr(rounds, "propose", lambda policy, _, **options: exact(policy, [max(held[-1].samples)], **options))


def embedded_in_one_batch(patch: Patch) -> None:
    """With an encoder whose embeddings depend, strongly here, on what else is in the batch."""
    _encoder_that_sees_the_batch(patch)
    patch.setattr(pool, "embed_samples", lambda clients, encode, *, dimension: encode(clients.samples))


def rejected_rank_from_the_texts(patch: Patch) -> None:
    held, exact = _hold_clients(patch), rounds.preference_pairs

    def ranked(scores, *, per_prompt, rejected_rank):
        return exact(scores, per_prompt=per_prompt, rejected_rank=2 + _with_texts(held) % (per_prompt - 1))

    patch.setattr(rounds, "preference_pairs", ranked)


def pairs_dropped_by_the_texts(patch: Patch) -> None:
    held, exact = _hold_clients(patch), rounds.drop_identical

    def dropped(pairs, candidates):
        return exact(pairs[: 1 + _with_texts(held) % 2], candidates)

    patch.setattr(rounds, "drop_identical", dropped)


def two_rounds_under_one_purpose(patch: Patch) -> None:
    exact = Gateway.gaussian_sum
    patch.setattr(
        Gateway, "gaussian_sum", lambda self, query, *, step, **options: exact(self, query, step=0, **options)
    )


def two_masked_rounds_under_one_purpose(patch: Patch) -> None:
    exact = Gateway.masked_sum
    patch.setattr(Gateway, "masked_sum", lambda self, *args, step, **options: exact(self, *args, step=0, **options))


def scores_drawn_twice(patch: Patch) -> None:
    exact = Gateway.gaussian_sum

    def twice(self, query, *, purpose, **options):
        one, other = (exact(self, query, purpose=name, **options) for name in (purpose, f"{purpose}/again"))
        return {name: (one[name] + other[name]) / 2 for name in one}

    patch.setattr(Gateway, "gaussian_sum", twice)


def participants_not_from_the_gateway(patch: Patch) -> None:
    patch.setattr(Gateway, "poisson", lambda self, *, n, **_: torch.arange(n) % 2 == 1)


def noise_times(factor: float) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        exact = mechanisms.gaussian
        patch.setattr(mechanisms, "gaussian", lambda key, size, *, scale: factor * exact(key, size, scale=scale))

    return plant


def masked_noise_times(factor: float) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        exact = secure_client.share_noise

        def scaled(key, size, *, scale):
            return np.rint(factor * exact(key, size, scale=scale)).astype(np.int64)

        patch.setattr(secure_client, "share_noise", scaled)

    return plant


def samples_logged(patch: Patch) -> None:
    exact = pool.embed_samples

    def logged(clients, *args, **options):
        logging.getLogger("understudy.preference_optimization").info("%d samples", len(clients.samples))
        return exact(clients, *args, **options)

    patch.setattr(pool, "embed_samples", logged)


def digest_beside_the_scores(patch: Patch) -> None:
    sums, exact = _hold_sums(patch), checkpoints.save_tensors

    def beside(path, tensors, *args, **options):
        exact(path, tensors, *args, **options)
        if path.name == "scores.safetensors":
            path.with_name("exact.sha256").write_text(hashlib.sha256(sums[-1].tobytes()).hexdigest())

    patch.setattr(checkpoints, "save_tensors", beside)


def _hold_pool(patch: Patch) -> list[pool.ClientPool]:
    held, exact = [], release.scores_without_noise

    def holding(clients, *args, **options):
        held.append(clients)
        return exact(clients, *args, **options)

    patch.setattr(release, "scores_without_noise", holding)
    return held


def _hold_sums(patch: Patch) -> list[np.ndarray]:
    held, exact = [], release.scores_without_noise

    def holding(*args, **options):
        held.append(exact(*args, **options))
        return held[-1]

    patch.setattr(release, "scores_without_noise", holding)
    return held


def _hold_clients(patch: Patch) -> list[Clients]:
    held, exact = [], pool.embed_samples

    def holding(clients, *args, **options):
        held.append(clients)
        return exact(clients, *args, **options)

    patch.setattr(pool, "embed_samples", holding)
    return held


def _with_texts(held: list[Clients]) -> int:
    return int((held[-1].counts > 0).sum())


def _encoder_that_sees_the_batch(patch: Patch) -> None:
    exact = preference_rows.hashed_words

    def normalised(texts):
        rows = exact(texts)
        return rows - rows.sum(axis=0, keepdims=True) + rows[::-1].cumsum(axis=0)

    patch.setattr(preference_rows, "hashed_words", normalised)


@dataclass(frozen=True)
class Planted:
    """A fault, the neighbour and settings that can show it, and what the replay must say."""

    plant: Callable[[Patch], None]
    kind: str
    says: str
    settings: dict = dataclasses.field(default_factory=dict)


MOVED, SEEN, SCALE = "times its declared sensitivity", "visible output", "times what was declared"
SAMPLED, MASKED = {"clients": {"sampling_probability": 0.5}}, {"scoring": {"aggregation": "masked"}}
HISTOGRAM = {"scoring": {"scorer": "histogram"}}
# 320 scores: at level 1e-6 a chi-square test misses 2/3 or 3/2 of the noise in fewer than one draw of ten million.
MANY = {"candidates": {"prompts": 80}, "preferences": {"batch_size": 64}}
PLANTED = {
    "clip removed": Planted(clip_removed, "plain", MOVED),
    "every sample votes": Planted(vote_counted_for_every_sample, "repeated", MOVED, HISTOGRAM),
    "mean over who is there": Planted(divided_by_who_is_there, "extreme", MOVED),
    "noisy mean over who is there": Planted(noisy_sum_divided_by_who_is_there, "plain", "scores.safetensors' differs"),
    "pairs without noise": Planted(pairs_from_scores_without_noise, "unrelated", "adapter.safetensors' differs"),
    "noised but not used": Planted(noised_but_not_used, "plain", "scores.safetensors' differs"),
    "null client dropped, masked": Planted(client_without_samples_dropped, "plain", "plan again", MASKED),
    "null client dropped, sampled": Planted(client_without_samples_dropped, "plain", "plan again", SAMPLED),
    "private text in a prompt": Planted(private_text_as_seed, "extreme", "table.parquet' differs"),
    "embedded in one batch": Planted(embedded_in_one_batch, "extreme", MOVED),
    "rank from the texts": Planted(rejected_rank_from_the_texts, "plain", "adapter.safetensors' differs"),
    "pairs dropped by the texts": Planted(pairs_dropped_by_the_texts, "plain", "value.json' differs"),
    "two rounds, one purpose": Planted(
        two_rounds_under_one_purpose, "plain", "made were 2, in steps [0, 0]", {"rounds": 2}
    ),
    "two masked rounds, one purpose": Planted(
        two_masked_rounds_under_one_purpose, "plain", "in steps [0, 0]", {"rounds": 2, **MASKED}
    ),
    "scores drawn twice": Planted(scores_drawn_twice, "plain", "scores/again: called, but not stated"),
    "participants chosen elsewhere": Planted(
        participants_not_from_the_gateway, "plain", "masks, drawn were 0", SAMPLED
    ),
    "noise not drawn": Planted(noise_times(0), "plain", f"noise is 0 {SCALE}"),
    "noise x 2/3": Planted(noise_times(2 / 3), "plain", SCALE, MANY),
    "noise x 3/2": Planted(noise_times(3 / 2), "plain", SCALE, MANY),
    "masked noise not drawn": Planted(masked_noise_times(0), "plain", SCALE, MASKED),
    "masked noise x 2/3": Planted(masked_noise_times(2 / 3), "plain", SCALE, MANY | MASKED),
    "masked noise x 3/2": Planted(masked_noise_times(3 / 2), "plain", SCALE, MANY | MASKED),
    "samples logged": Planted(samples_logged, "plain", "'logged' differs"),
    "digest beside the scores": Planted(digest_beside_the_scores, "plain", "exact.sha256' differs"),
}


def found_by(fault, model, folder, calibrations, patch):
    """What a replay of one small round says."""
    pairs = {kind: (data, neighbour) for kind, _, data, neighbour in neighbours("federated", SLOT)}
    data, neighbour = pairs.get(fault.kind, (pairs["plain"][0], unrelated("federated")))
    config = small_preferences(model, **({"rounds": 1, "samples": 2} | fault.settings))
    return MethodRun(config, folder, calibrations, patch).faults(data, neighbour)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_caught(name, random_model_folder, tmp_path, calibrations, monkeypatch):
    fault = PLANTED[name]
    fault.plant(monkeypatch)
    found = found_by(fault, random_model_folder, tmp_path, calibrations, monkeypatch)
    assert any(fault.says in one for one in found), found


def test_an_encoder_that_sees_its_batch_does_no_harm_where_a_batch_is_one_client(
    random_model_folder, tmp_path, calibrations, monkeypatch
):
    control = Planted(_encoder_that_sees_the_batch, "extreme", "")
    control.plant(monkeypatch)
    assert found_by(control, random_model_folder, tmp_path, calibrations, monkeypatch) == ()

"""What the server receives is the noisy sums and nothing else: the real flow, on two machines in one process."""

import hashlib
import json
import sys

import numpy as np
import pytest
import torch
from contract.flow_under_replay import without_evaluation
from contract.preference_rows import SEEDS
from contract.private_files import clients
from contract.test_replay_preference_optimization import flow
from safetensors.torch import save

from understudy import tensor_files
from understudy.artifacts.access import ArtifactRef
from understudy.artifacts.manifest import FileEntry, content_id
from understudy.errors import TaskFailed
from understudy.flows import preference_optimization as whole
from understudy.methods.preference_optimization import release, rounds
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.pool import ClientPool
from understudy.methods.preference_optimization.queries import QuerySchedule
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.secure_aggregation.fixed_point import encode
from understudy.privacy.testing.replay import Recording
from understudy.tasks.engine.cache_key import references

SCORES_FILE = "scores.safetensors"


def two_machines(root, patch):
    """Server steps run with the client's whole home away; returns what they were given, and what clients left.

    Returns:
        received: every step of the server.
        left: (task, name -> bytes) files that each task of the client added to the exchange.
    """
    received, left = [], []

    def on_the_server(take, step, zone):
        received.append(step)
        client, away, own = root / "home", root / "away", root / "server"
        own.mkdir(mode=0o700, exist_ok=True)
        client.rename(away)
        with pytest.MonkeyPatch.context() as there:
            there.setenv("UNDERSTUDY_HOME", str(own))
            there.setenv("UNDERSTUDY_ZONE", "server")
            try:
                return take(step, zone)
            finally:
                assert not client.exists(), "a step of the server made a place of the client's"
                away.rename(client)

    def on_the_client(name):
        task = getattr(whole, name)

        def call(*args):
            before = files_under(root / "exchange")
            result = task(*args)
            after = files_under(root / "exchange")
            left.append((name, {path: after[path] for path in after if before.get(path) != after[path]}))
            return result

        patch.setattr(whole, name, call)

    for step in (whole.Propose, whole.Prefer, whole.Publish, whole.WriteTexts):
        patch.setattr(step, "take", lambda self, zone, take=step.take: on_the_server(take, self, zone))
    on_the_client("embed_clients")
    on_the_client("score")
    return received, left


def files_under(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def noisy_sum_alone(name, output, parents, label):
    """The one folder that a mechanism interface output and public values determine."""
    content = save({"scores": output})
    described = {SCORES_FILE: FileEntry(sha256=hashlib.sha256(content).hexdigest(), size=len(content))}
    identity = content_id(name, described, label=label, parents=parents)
    return identity, content, described


# Masked sums leave the client zone by the same two tasks, and `test_replay_preference_optimization` replays them.
@pytest.mark.parametrize("variant", ["federated, sampled", pytest.param("federated, masked", marks=pytest.mark.slow)])
def test_the_server_receives_the_noisy_sums_and_nothing_else(
    variant, random_model_folder, tmp_path, places, monkeypatch
):
    run = flow(variant, random_model_folder, tmp_path, places, monkeypatch)
    without_evaluation(monkeypatch)
    recording, again = Recording(), Recording()
    # In one place first: what the server makes there, it makes without the client's files too.
    together = run(clients(), lambda material: Mechanisms(material, recorder=again))
    received, left = two_machines(tmp_path / "run", monkeypatch)
    proposed, preferred = watch_rounds(monkeypatch)
    apart = run(clients(), lambda material: Mechanisms(material, recorder=recording))
    stored = [{n: b for n, b in one.visible.items() if n.startswith(("out", "exchange"))} for one in (together, apart)]
    assert stored[0] == stored[1]

    outputs = [next(iter(c.output.values())) for c in recording.calls if c.mechanism.kind != "poisson"]
    assert len(outputs) == 2
    steps = [step for step in received if step.step == "prefer"]
    assert [name for name, _ in left] == ["embed_clients", "score", "score"]
    assert left[0][1] == {}, "the clients' embeddings stay with them"
    for (_, files), output, step in zip(left[1:], outputs, steps, strict=True):
        ref, candidates = step.scores, step.candidates
        parents = (f"source:replayed@{ref.label.guarantees[0].charge_id}", candidates.id)
        identity, content, described = noisy_sum_alone("scores", output, parents, ref.label)
        assert files.keys() == {f"{identity}/{SCORES_FILE}", f"{identity}/manifest.json"}
        assert files[f"{identity}/{SCORES_FILE}"] == content
        manifest = json.loads(files[f"{identity}/manifest.json"])
        expected = {"format": 1, "kind": "scores", "id": identity, "match": None, "parents": list(parents)}
        expected |= {"label": ref.label.model_dump(mode="json")}
        assert manifest == expected | {"files": {name: entry.model_dump() for name, entry in described.items()}}

    public = (PreferenceOptimizationConfig, int, tuple, str, type(None))
    for step in received:
        refs: list[ArtifactRef] = list(references(step))
        assert all(ref.label.kind != "private" for ref in refs)
        assert all(ref.uri.startswith(f"file://{tmp_path}/run/exchange") for ref in refs)
        assert all(isinstance(value, public) for _, value in step if value not in refs), step.step
        assert {ref.kind for ref in refs} <= {"candidates", "scores", "adapter"}
    assert [torch.equal(scores, output) for (_, scores), output in zip(preferred, outputs, strict=True)] == [True] * 2
    assert all(seeds == list(SEEDS) for seeds, _ in proposed)
    for (_, made), (taken, _) in zip(proposed, preferred, strict=True):
        assert made.table.equals(taken.table)
        assert np.array_equal(made.embeddings, taken.embeddings)


def watch_rounds(patch):
    """(seeds, candidates) of every `propose`, (candidates, scores) of every `prefer`."""
    proposed, preferred, propose, prefer = [], [], rounds.propose, rounds.prefer

    def proposing(policy, seeds, **options):
        proposed.append((list(seeds), propose(policy, seeds, **options)))
        return proposed[-1][1]

    def preferring(base, previous, candidates, scores, **options):
        preferred.append((candidates, scores))
        return prefer(base, previous, candidates, scores, **options)

    patch.setattr(rounds, "propose", proposing)
    patch.setattr(rounds, "prefer", preferring)
    return proposed, preferred


def test_a_file_beside_the_scores_would_be_noticed(random_model_folder, tmp_path, places, monkeypatch):
    exact = tensor_files.save_tensors

    def beside(path, *args, **options):
        exact(path, *args, **options)
        if path.name == SCORES_FILE:
            path.with_name("more").write_text("")

    run = flow("federated", random_model_folder, tmp_path, places, monkeypatch, "rounds=1")
    without_evaluation(monkeypatch)
    monkeypatch.setattr(tensor_files, "save_tensors", beside)
    _, left = two_machines(tmp_path / "run", monkeypatch)
    run(clients(), lambda material: Mechanisms(material))
    assert sorted(name.rpartition("/")[2] for name in left[1][1]) == ["manifest.json", "more", "scores.safetensors"]


def test_the_server_cannot_read_what_the_client_keeps(random_model_folder, tmp_path, places, monkeypatch):
    exact, place = rounds.propose, tmp_path / "run" / "home"

    def curious(policy, seeds, **options):
        return exact(policy, [*seeds, (place / "ledger.db").read_bytes().hex()], **options)

    run = flow("federated", random_model_folder, tmp_path, places, monkeypatch, "rounds=1")
    monkeypatch.setattr(rounds, "propose", curious)
    two_machines(tmp_path / "run", monkeypatch)
    with pytest.raises(TaskFailed, match=r"'propose'.*FileNotFoundError"):
        run(clients(), lambda material: Mechanisms(material))


@pytest.mark.parametrize("aggregation", ["masked", "trusted"])
def test_no_step_of_a_masked_release_holds_the_exact_sum(aggregation):
    """Not even this process, which plays all clients; where the sum is trusted to the client zone, it is seen."""
    n, count, random = 6, 8, np.random.default_rng(3)
    means, candidates = random.standard_normal((n, 5)), random.standard_normal((count, 5)).astype(np.float32)
    config = PreferenceOptimizationConfig(
        candidates={"per_prompt": 4}, scoring={"aggregation": aggregation, "survivors": 1.0}
    )
    clients = ClientPool(means, means.astype(np.float32), np.arange(n), None)
    vectors = release.every_vector(clients, candidates, labels=None, config=config)
    whole = np.sum([encode(vector, bits=12) for vector in vectors], axis=0)
    planned = QuerySchedule(
        n=n,
        rounds=1,
        sampling_probability=1.0,
        noise_multiplier=1.0,
        masked=aggregation == "masked",
    )
    seen = []

    def watch(frame, event, argument):
        if "understudy" not in frame.f_code.co_filename or "/.venv/" in frame.f_code.co_filename:
            return None
        for value in (*frame.f_locals.values(), argument):
            found = value.numpy() if isinstance(value, torch.Tensor) else value
            if isinstance(found, np.ndarray) and found.shape == (count,) and is_sum(found, whole):
                seen.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        released = release.release_scores(
            clients,
            candidates,
            labels=None,
            config=config,
            schedule=planned,
            mechanisms=Mechanisms.live(KeyMaterial(b"s" * 32, "charge", b"t" * 32, planned.queries)),
            round=0,
        )
    finally:
        sys.settrace(before)
    assert not is_sum(released.numpy(), whole)
    assert bool(seen) == (aggregation == "trusted"), seen[:3]


def is_sum(found, whole):
    """Whether an array is the exact sum: as whole steps, as words, or as numbers up to six clients' rounding."""
    if found.dtype.kind == "f":
        return bool(np.allclose(found, whole / 4096, rtol=0, atol=6 / 4096))
    return found.dtype.kind in "iu" and np.array_equal(found.astype(np.int64) % 2**32, whole % 2**32)

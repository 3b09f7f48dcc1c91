"""What the server receives is the noisy sums and nothing else."""

import hashlib
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from contract.method_under_replay import MethodRun
from contract.preference_rows import SEEDS, base_rows, small_preferences
from safetensors.torch import save

from understudy.artifact_manifest import FileEntry, content_id
from understudy.artifacts import ArtifactRef
from understudy.models import checkpoints
from understudy.preference_optimization import release, rounds
from understudy.preference_optimization.config import PreferenceOptimizationConfig
from understudy.preference_optimization.plan import Plan
from understudy.preference_optimization.pool import ClientPool
from understudy.privacy.ledger_records import KeyMaterial
from understudy.privacy.mechanisms import Gateway
from understudy.privacy.replay import Recording
from understudy.privacy.secure_fixed_point import encode
from understudy.tasks import preference_optimization as tasks

SCORES_FILE = "scores.safetensors"
SERVER, CLIENT = ("propose", "prefer", "publish", "write_texts"), ("embed_clients", "score")


def two_machines(home, patch):
    """Server steps run with the client's whole home away; returns what they were given, and what clients left.

    Returns:
        received: (step, arguments) of every server step.
        left: (step, name -> bytes) files that each client step added to the exchange.
    """
    received, left = [], []

    def on_the_server(name, function):
        def call(*args):
            received.append((name, args))
            client, away, own = home / "understudy", home / "away", home / "server"
            own.mkdir(mode=0o700, exist_ok=True)
            client.rename(away)
            with pytest.MonkeyPatch.context() as there:
                there.setenv("UNDERSTUDY_HOME", str(own))
                there.setenv("UNDERSTUDY_ZONE", "server")
                try:
                    return function(*args)
                finally:
                    assert not client.exists(), "a step of the server made a place of the client's"
                    away.rename(client)

        return call

    def on_the_client(name, function):
        def call(*args):
            before = files_under(home / "exchange")
            result = function(*args)
            after = files_under(home / "exchange")
            left.append((name, {path: after[path] for path in after if before.get(path) != after[path]}))
            return result

        return call

    for name in SERVER:
        patch.setattr(
            tasks, name, {"server": SimpleNamespace(fn=on_the_server(name, getattr(tasks, name)["server"].fn))}
        )
    for name in CLIENT:
        patch.setattr(tasks, name, SimpleNamespace(fn=on_the_client(name, getattr(tasks, name).fn)))
    return received, left


def files_under(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def noisy_sum_alone(name, output, parents, label):
    """The one folder that a gateway output and public values determine."""
    content = save({"scores": output})
    described = {SCORES_FILE: FileEntry(sha256=hashlib.sha256(content).hexdigest(), size=len(content))}
    identity = content_id(name, described, label=label, parents=parents)
    return identity, content, described


@pytest.mark.parametrize("given", [{"clients": {"sampling_probability": 0.5}}, {"scoring": {"aggregation": "masked"}}])
def test_the_server_receives_the_noisy_sums_and_nothing_else(
    given, random_model_folder, tmp_path, calibrations, monkeypatch
):
    config = small_preferences(random_model_folder, **given)
    recording, again = Recording(), Recording()
    run = MethodRun(config, tmp_path, calibrations, monkeypatch)
    # In one place first: what the server makes there, it makes without the client's files too.
    together = run(base_rows("federated"), lambda material: Gateway(material, recorder=again))
    received, left = two_machines(tmp_path / "home-1", monkeypatch)
    proposed, preferred = watch_rounds(monkeypatch)
    apart = run(base_rows("federated"), lambda material: Gateway(material, recorder=recording))
    assert apart.visible == together.visible

    outputs = [next(iter(c.output.values())) for c in recording.calls if c.mechanism.kind != "poisson"]
    assert len(outputs) == 2
    scores_refs = [args[1] for name, args in received if name == "prefer"]
    candidates_refs = [args[0] for name, args in received if name == "prefer"]
    assert [name for name, _ in left] == ["embed_clients", "score", "score"]
    assert left[0][1] == {}, "the clients' embeddings stay with them"
    for (_, files), output, ref, candidates in zip(left[1:], outputs, scores_refs, candidates_refs, strict=True):
        parents = (f"source:replayed@{ref.label.guarantees[0].charge_id}", candidates.id)
        identity, content, described = noisy_sum_alone("scores", output, parents, ref.label)
        assert files.keys() == {f"{identity}/{SCORES_FILE}", f"{identity}/manifest.json"}
        assert files[f"{identity}/{SCORES_FILE}"] == content
        manifest = json.loads(files[f"{identity}/manifest.json"])
        expected = {"format": 1, "kind": "scores", "id": identity, "match": None, "parents": list(parents)}
        expected |= {"label": ref.label.model_dump(mode="json")}
        assert manifest == expected | {"files": {name: entry.model_dump() for name, entry in described.items()}}

    public = (PreferenceOptimizationConfig, int, tuple, type(None))
    for name, args in received:
        refs = [value for value in args if isinstance(value, ArtifactRef)]
        assert all(
            ref.label.kind != "private" and ref.uri.startswith(f"file://{tmp_path}/home-1/exchange") for ref in refs
        )
        assert all(isinstance(value, public) for value in args if value not in refs), name
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


def test_a_file_beside_the_scores_would_be_noticed(random_model_folder, tmp_path, calibrations, monkeypatch):
    exact = checkpoints.save_tensors

    def beside(path, *args, **options):
        exact(path, *args, **options)
        if path.name == SCORES_FILE:
            path.with_name("more").write_text("")

    monkeypatch.setattr(checkpoints, "save_tensors", beside)
    _, left = two_machines(tmp_path / "home-0", monkeypatch)
    config = small_preferences(random_model_folder, rounds=1)
    MethodRun(config, tmp_path, calibrations, monkeypatch)(base_rows("federated"), lambda material: Gateway(material))
    assert sorted(name.rpartition("/")[2] for name in left[1][1]) == ["manifest.json", "more", "scores.safetensors"]


def test_the_server_cannot_read_what_the_client_keeps(random_model_folder, tmp_path, calibrations, monkeypatch):
    exact, place = rounds.propose, tmp_path / "home-0" / "understudy"

    def curious(policy, seeds, **options):
        return exact(policy, [*seeds, (place / "ledger.db").read_bytes().hex()], **options)

    monkeypatch.setattr(rounds, "propose", curious)
    two_machines(tmp_path / "home-0", monkeypatch)
    run = MethodRun(small_preferences(random_model_folder, rounds=1), tmp_path, calibrations, monkeypatch)
    with pytest.raises(FileNotFoundError, match=r"ledger\.db"):
        run(base_rows("federated"), lambda material: Gateway(material))


@pytest.mark.parametrize("aggregation", ["masked", "trusted"])
def test_no_step_of_a_masked_release_holds_the_exact_sum(aggregation):
    """Not even this process, which plays all clients; where the sum is trusted to the client zone, it is seen."""
    n, count, random = 6, 8, np.random.default_rng(3)
    means, candidates = random.standard_normal((n, 5)), random.standard_normal((count, 5)).astype(np.float32)
    config = PreferenceOptimizationConfig(
        candidates={"per_prompt": 4}, scoring={"aggregation": aggregation, "survivors": 1.0}
    )
    clients = ClientPool(means, means.astype(np.float32), np.arange(n), None)
    vectors = release._every_vector(clients, candidates, labels=None, config=config)
    whole = np.sum([encode(vector, bits=12) for vector in vectors], axis=0)
    planned = Plan(epsilon=8, delta=1e-3, n=n, rounds=1, sampling_probability=1.0, noise_multiplier=1.0)
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
            plan=planned,
            gateway=Gateway.live(KeyMaterial(b"s" * 32, "charge", b"t" * 32)),
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

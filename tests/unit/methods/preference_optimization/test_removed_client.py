"""One client less in the file: nothing public changes, and no other client is treated differently."""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.artifacts.access import read_table
from understudy.errors import InputError
from understudy.methods.preference_optimization.pool import build_pool, load_pool, save_pool
from understudy.methods.preference_optimization.queries import QuerySchedule
from understudy.methods.preference_optimization.release import release_scores, scores_without_noise
from understudy.models.loading import load_model
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.sampling import poisson_mask_of
from understudy.runs.registration import registered
from understudy.runs.request import Budget, RunRequest
from understudy.runs.run_plan import dry_run_of
from understudy.runs.validation import validate

pytestmark = pytest.mark.usefixtures("fixed_root_key")

CLIENTS = 120
DIMENSION = 16
METHOD = "preference-optimization"


def documents(gone: int | None = None) -> pa.Table:
    """Two documents of each of 120 clients, or of all but one."""
    rows = [(c, d) for d in range(2) for c in range(CLIENTS) if c != gone]
    words = ("river", "mill", "stone", "rain", "song", "night", "green", "smoke", "bright")
    texts = [f"diary {c * 7 + d}: " + " ".join(words[(c * k + d) % 9] for k in range(1, 8)) for c, d in rows]
    return pa.table({"client_id": [f"client-{c:03d}" for c, _ in rows], "text": texts})


def encode(texts) -> np.ndarray:
    """Unit vectors that are a function of each text alone."""
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) for text in texts]
    rows = np.array([np.random.default_rng(seed).normal(size=DIMENSION) + np.eye(DIMENSION)[0] for seed in seeds])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def ask(home, tmp_path):
    def make(table: pa.Table, **given) -> RunRequest:
        path = tmp_path / f"{table.num_rows}.parquet"
        pq.write_table(table, path)
        fields = {"data": str(path), "source": "diaries", "out": str(tmp_path / "out"), "epsilon": 5.0}
        fields |= {"budget": Budget(epsilon=50, delta=1e-3), "delta": 1e-4}
        # A rate of its own: no other is tried out before the run, which would take most of the test's time.
        fields |= {"overrides": ("preferences.learning_rate=1e-3",)}
        return RunRequest.model_validate(fields | given)

    return make


def pool_of(request: RunRequest):
    """Admitted as a run would be, and embedded."""
    run = registered(request, METHOD)
    return run, build_pool(
        read_table(run.train),
        config=run.config,
        classes=0,
        tokenizer=load_model("tiny-llama").tokenizer,
        encode=encode,
        dimension=DIMENSION,
        slots=run.n,
    )


def takes_part(ids: np.ndarray, round: int) -> np.ndarray:
    """The mechanism's own mask at q = 1/2: a function of (round, id)."""
    return poisson_mask_of(bytes([round]) * 32, ids, probability=0.5).numpy()


@pytest.mark.parametrize("gone", [0, 60])
def test_a_removed_client_moves_no_other(gone, ask):
    asked = ask(documents(), units=CLIENTS)
    run, pool = pool_of(asked)
    # The command line's neighbour: the same command on the file without the client.
    neighbour = ask(documents(gone), units=CLIENTS)
    fewer, other = pool_of(neighbour)
    refs = {"train": None, "test": None}
    # Ids of private rows are random, and the run's key is made of them.
    apart = refs | {"key": ""}
    assert fewer.model_copy(update=apart) == run.model_copy(update=apart), "everything public, n and all that follows"
    assert dry_run_of(validate(neighbour, METHOD).plan) == dry_run_of(validate(asked, METHOD).plan)

    name = f"client-{gone:03d}"
    sides = [{ref: set(read_table(getattr(one, ref))["client_id"].to_pylist()) for ref in refs} for one in (run, fewer)]
    assert all(sides[0][ref] - {name} == sides[1][ref] for ref in refs), "hold-out of every other client"
    assert len(sides[1]["train"]) + len(sides[1]["test"]) == CLIENTS - 1

    assert pool.unit_ids.shape == other.unit_ids.shape == (CLIENTS, 16)
    assert pool.unit_ids.dtype == np.uint8
    present = [{bytes(row) for row in found.unit_ids if row.any()} for found in (pool, other)]
    assert len(present[0] - present[1]) == (name in sides[0]["train"])
    assert present[1] <= present[0]

    candidates = encode([f"candidate {number}" for number in range(24)])
    config = run.config.model_copy(update={"candidates": run.config.candidates.model_copy(update={"per_prompt": 4})})
    for round in range(4):
        one, without = (
            scores_without_noise(found, candidates, takes_part(found.unit_ids, round), labels=None, config=config)
            for found in (pool, other)
        )
        assert np.linalg.norm(one) > 3, "many take part"
        assert np.linalg.norm(one - without) <= 1 + 1e-9


def test_participation_by_slot_would_move_others(ask):
    """What the ids are for: with masks by slot, clients behind the removed one change places."""
    _, pool = pool_of(ask(documents(), units=CLIENTS))
    first = bytes(pool.unit_ids[0])
    by_id = {bytes(row): taken for row, taken in zip(pool.unit_ids, takes_part(pool.unit_ids, 0), strict=True)}
    run, _ = pool_of(ask(documents(), units=CLIENTS))
    table = read_table(run.train)
    gone = int(table["client_id"][0].as_py().removeprefix("client-"))
    _, other = pool_of(ask(documents(gone), units=CLIENTS))
    assert first not in {bytes(row) for row in other.unit_ids}
    mask = takes_part(pool.unit_ids, 0)
    moved = sum(by_id[bytes(row)] != taken for row, taken in zip(other.unit_ids, mask, strict=True) if row.any())
    assert moved > 20


class Drawn:
    """Keeps the masks that a mechanism interface draws."""

    def __init__(self) -> None:
        self.masks: list[np.ndarray] = []

    def observe(self, mechanism, query, draw):
        made = draw()
        if mechanism.kind == "poisson":
            self.masks.append(made["mask"].numpy())
        return made


def test_a_release_lets_a_client_take_part_wherever_it_stands(ask):
    """Who takes part is drawn by the release itself: the same clients, whoever leaves."""
    run, pool = pool_of(ask(documents(), units=CLIENTS))
    gone = int(read_table(run.train)["client_id"][0].as_py().removeprefix("client-"))
    _, other = pool_of(ask(documents(gone), units=CLIENTS))
    schedule = QuerySchedule(n=CLIENTS, rounds=1, sampling_probability=0.5, noise_multiplier=1.0)
    candidates, taken = encode([f"candidate {number}" for number in range(8)]), []
    config = run.config.model_copy(update={"candidates": run.config.candidates.model_copy(update={"per_prompt": 4})})
    for found in (pool, other):
        drawn = Drawn()
        mechanisms = Mechanisms(KeyMaterial(b"s" * 32, "charge", b"salt" * 4, schedule.queries), recorder=drawn)
        asked = {"labels": None, "config": config, "schedule": schedule, "mechanisms": mechanisms, "round": 0}
        release_scores(found, candidates, **asked)
        (mask,) = drawn.masks
        taken.append({bytes(row): part for row, part in zip(found.unit_ids, mask, strict=True) if row.any()})
    assert len(taken[0]) == len(taken[1]) + 1 > 20
    assert taken[1].items() <= taken[0].items()
    assert len(set(taken[1].values())) == 2


def test_the_ids_are_stored_with_the_pool(ask, tmp_path):
    _, pool = pool_of(ask(documents(), units=140))
    assert pool.slots == 140
    ids = pool.unit_ids
    assert not ids[-20:].any(), "slots without a client"
    assert not pool.means[-20:].any()
    (tmp_path / "pool").mkdir()
    save_pool(pool, tmp_path / "pool")
    again = load_pool(tmp_path / "pool")
    assert np.array_equal(again.unit_ids, ids)
    assert again.unit_ids.dtype == np.uint8


def test_the_order_of_the_file_moves_nothing(ask):
    table = documents()
    _, pool = pool_of(ask(table, units=CLIENTS))
    shuffled = table.take(
        pa.array(np.argsort(np.random.default_rng(0).permutation(CLIENTS)).tolist() + list(range(CLIENTS, 2 * CLIENTS)))
    )
    _, other = pool_of(ask(shuffled, units=CLIENTS))
    assert np.array_equal(pool.unit_ids, other.unit_ids)
    assert np.array_equal(pool.means, other.means)


def test_a_client_more_than_registered_is_refused(ask):
    registered(ask(documents(0), units=CLIENTS - 1), METHOD)
    with pytest.raises(InputError, match=r"120 clients: source 'diaries' .*119"):
        registered(ask(documents()), METHOD)

"""What is left of the scores of all rounds for whoever knows all clients but the canaries."""

import math

import numpy as np
import pyarrow as pa
import pytest

from understudy.auditing.known_rows import coin_scores
from understudy.compute import ON_CPU
from understudy.evaluation.texts.encoder import Encoder
from understudy.methods.preference_optimization import left_over as module
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.left_over import left_over
from understudy.methods.preference_optimization.pool import build_pool
from understudy.methods.preference_optimization.queries import queries_of, schedule_of
from understudy.methods.preference_optimization.release import release_scores
from understudy.methods.preference_optimization.stored import (
    CANDIDATE_SCHEMA,
    SCORES_FILE,
    Candidates,
    save_candidates,
)
from understudy.methods.reading import Made, SumsToRead
from understudy.models.loading import load_model
from understudy.tensor_files import save_tensors

D, ROUNDS = 12, 3
OTHERS = [{"client_id": f"client {row % 7}", "text": f"the text of row {row}"} for row in range(15)]
CANARIES = [{"client_id": f"canary x{number}", "text": f"zebra {number} " * 4} for number in range(10)]
COINS = [number * number % 3 == 1 for number in range(10)]


def of_letters(texts):
    seeds = [int.from_bytes(text.encode()[-8:]) for text in texts]
    return np.stack([np.random.default_rng(seed).standard_normal(D) for seed in seeds]).astype(np.float32)


@pytest.fixture(scope="module")
def base():
    return load_model("tiny-llama")


@pytest.fixture
def read(base, make_mechanisms, tmp_path, monkeypatch):
    """What is left of rounds in which canaries take part by coins."""
    monkeypatch.setattr(module.encoder, "load_encoder", lambda **_: Encoder("letters", "d" * 64, D, of_letters))
    monkeypatch.setattr(module, "load_base", lambda _: base)

    def read(*, epsilon=math.inf, charge="charge", clients=None, **scoring):
        config = PreferenceOptimizationConfig.model_validate(
            {
                "rounds": ROUNDS,
                "candidates": {"prompts": 3, "per_prompt": 6},
                "scoring": scoring,
                "clients": clients or {},
            }
        )
        met = [*OTHERS, *(row for row, coin in zip(CANARIES, COINS, strict=True) if coin)]
        with_canaries, canaries, others = (pa.Table.from_pylist(rows) for rows in (met, CANARIES, OTHERS))
        queries = queries_of(config, n=20, epsilon=epsilon, delta=1e-5)
        schedule = schedule_of(queries)
        pool = build_pool(
            with_canaries,
            config=config,
            classes=0,
            tokenizer=base.tokenizer,
            encode=of_letters,
            dimension=D,
            slots=20,
        )
        mechanisms, last = make_mechanisms(schedule, charge=charge), None
        for number in range(ROUNDS):
            place = tmp_path / f"{charge} round {number}"
            texts = [f"candidate {number} {row}" for row in range(18)]
            table = pa.table({"prompt": texts, "text": texts, "label": [None] * 18}, schema=CANDIDATE_SCHEMA)
            proposed = Candidates(table, of_letters(texts))
            asked = {"config": config, "schedule": schedule, "mechanisms": mechanisms, "round": number}
            scores = release_scores(pool, proposed.embeddings, labels=None, **asked)
            for kind in ("candidates", "scores", "adapter"):
                (place / kind).mkdir(parents=True)
            save_candidates(proposed, place / "candidates")
            save_tensors(place / "scores" / SCORES_FILE, {"scores": scores})
            of_round = Made("candidates", place / "candidates", (last,) if last else ())
            scored = Made("scores", place / "scores", (of_round,))
            last = Made("adapter", place / "adapter", (of_round, scored, *((last,) if last else ())))
        released = Made("model", tmp_path, (last,))
        return left_over(SumsToRead(canaries, others, (), config, queries, released, ON_CPU))

    return read


@pytest.mark.parametrize("scorer", ["cosine", "histogram"])
def test_without_noise_the_coins_are_read_off_all_rounds(read, scorer):
    found = read(scorer=scorer)
    assert found.deviation == 0
    assert coin_scores(found) == pytest.approx([0.5 if coin else -0.5 for coin in COINS], abs=0.02)
    # Each adds a vector of norm 1 to each round.
    assert found.gram.diagonal().numpy() == pytest.approx(ROUNDS, rel=1e-6)


def test_the_noise_is_that_of_a_round(read):
    seen = []
    for number in range(12):
        found = read(epsilon=8.0, charge=f"charge {number}")
        signs = np.array(COINS, dtype=np.float64) - 0.5
        seen.append((found.against.numpy() - found.gram.numpy() @ signs) / math.sqrt(ROUNDS))
    assert found.deviation > 0
    # 12 draws, seen by ten canaries in a space of three times ten numbers; the key is the tests' own.
    assert float(np.std(seen)) == pytest.approx(found.deviation, rel=0.2)


def test_nobody_knows_who_takes_part_where_that_is_drawn(read):
    assert read(clients={"sampling_probability": 0.5}) is None

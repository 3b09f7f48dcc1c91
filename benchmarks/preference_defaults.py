"""What the tiny profile's training constants rest on: public text alone, in place of private clients.

    python benchmarks/preference_defaults.py --data ../shared/data

DPO: the candidates of 32 prompts of 6 texts are ranked, without noise, by their cosine to the mean of 150 public
responses; a setting is good if that cosine rises over three rounds and the texts stay distinct. Scoring: the share of
64 prompts whose chosen text is still nearer to the clients than the rejected one when scores are noised, 20 draws, by
how scores are standardised. One seed; at most eleven minutes of one core.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from understudy.evaluation.encoder import embed, load_encoder
from understudy.generation.config import SamplingConfig
from understudy.methods.preference_optimization.candidates import continue_prompts, round_prompts
from understudy.methods.preference_optimization.client_vectors import FloatArray, Rows, unit_rows
from understudy.methods.preference_optimization.config import (
    CandidateConfig,
    PreferenceConfig,
    PreferenceOptimizationConfig,
)
from understudy.methods.preference_optimization.dpo import Pairs, train_round
from understudy.methods.preference_optimization.policy import load_policy
from understudy.methods.preference_optimization.queries import plan
from understudy.methods.preference_optimization.scoring import exact_sum
from understudy.models.loading import load_model
from understudy.privacy.accounting import default_delta

SETTINGS = ((5e-4, 2), (5e-4, 4), (1e-3, 2), (1e-3, 4), (2e-3, 2))  # learning rate, epochs
ROUNDS, PROMPTS, PER_PROMPT, RESPONSES, WORDS = 3, 32, 6, 150, 45
WAYS = (
    {"normalise": "none", "over": "all"},
    *({"normalise": "standardise", "over": over} for over in ("all", "within", "prompt")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with public_text and public_instructions")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = pq.read_table(options.data / "public_text" / "train.parquet")["text"].to_pylist()
    responses = pq.read_table(options.data / "public_instructions" / "train.parquet")["response"].to_pylist()
    encoder = load_encoder()
    survival(seeds, responses, encoder)
    wanted = embed([" ".join(text.split()[:WORDS]) for text in responses[:RESPONSES]], encoder)
    print(f"\ncosine of a response to the mean of all: {float((wanted @ wanted.mean(0)).mean()):.3f}\n")
    print("| learning rate | epochs | mean cosine per round | distinct at the end |\n|---|---|---|---|")
    for rate, epochs in SETTINGS:
        config = PreferenceConfig(learning_rate=rate, epochs=epochs)
        cosines, distinct = rounds(config, seeds, wanted.mean(0), encoder)
        shown = ", ".join(f"{value:.3f}" for value in cosines)
        print(f"| {rate:g} | {epochs} | {shown} | {distinct} of {PROMPTS * PER_PROMPT} |", flush=True)


def survival(seeds: list[str], responses: list[str], encoder: object) -> None:
    """How many preferences are right under noise, for each way to standardise; public texts are the clients."""
    sampling = SamplingConfig(max_new_tokens=48, top_p=1.0)
    asked = CandidateConfig(prompts=64, per_prompt=10, seed_tokens=32, sampling=sampling)
    base = load_model("tiny-llama")
    prompts = round_prompts(seeds, asked, loaded=base, round=0, public_seed=0)
    policy = load_policy(base, None, alpha=32)
    texts = continue_prompts(policy, prompts, per_prompt=10, sampling=sampling, public_seed=0, round=0)
    candidates, config = embed(texts, encoder), PreferenceOptimizationConfig(rounds=6)
    clients = {"responses": [" ".join(text.split()[:100]) for text in responses], "public text": seeds[:1500]}
    print("\n| clients | epsilon | clipped only | all | within | prompt |\n|---|---|---|---|---|---|")
    for name, owned in clients.items():
        everyone = unit_rows(embed(owned, encoder))
        for count, epsilon in product((750, 100), (1.0, 7.0)):
            means = everyone[np.random.default_rng(0).permutation(len(everyone))[:count]]
            noise = plan(config, n=count, epsilon=epsilon, delta=default_delta(count)).noise_multiplier
            shares = [f"{survivors(means, candidates, way, noise):.3f}" for way in WAYS]
            print(f"| {count} {name} | {epsilon:g} | " + " | ".join(shares) + " |", flush=True)


def survivors(means: FloatArray, candidates: Rows, way: dict[str, str], noise: float) -> float:
    """Share of prompts whose noisy first is truly nearer to the clients than the noisy fifth."""
    truth = (means @ unit_rows(candidates).T).mean(0).reshape(64, 10)
    everyone = np.ones(len(means), dtype=bool)
    exact = exact_sum(means, candidates, everyone, per_prompt=10, **way)  # type: ignore[arg-type]
    found = []
    for draw in range(20):
        noisy = exact + noise * np.random.default_rng(draw).normal(size=exact.shape)
        order = np.argsort(-noisy.reshape(64, 10), axis=1)
        first, fifth = (np.take_along_axis(truth, order[:, rank, None], axis=1) for rank in (0, 4))
        found.append(np.mean(first > fifth))
    return float(np.mean(found))


def rounds(config: PreferenceConfig, seeds: list[str], target: np.ndarray, encoder: object) -> tuple[list[float], int]:
    """Mean cosine to the target before the first round and after each, and how many of the last texts differ."""
    base, adapter, cosines = load_model("tiny-llama"), None, []
    sampling = SamplingConfig(max_new_tokens=32, top_p=1.0)
    asked = CandidateConfig(prompts=PROMPTS, per_prompt=PER_PROMPT, seed_tokens=32, sampling=sampling)
    for number in range(ROUNDS + 1):
        prompts = round_prompts(seeds, asked, loaded=base, round=number, public_seed=0)
        policy = load_policy(base, adapter, alpha=config.lora_alpha)
        texts = continue_prompts(policy, prompts, per_prompt=PER_PROMPT, sampling=sampling, public_seed=0, round=number)
        scores = (embed(texts, encoder) @ target).reshape(PROMPTS, PER_PROMPT)
        cosines.append(float(scores.mean()))
        if number < ROUNDS:
            order = np.argsort(-scores, axis=1)
            rank = config.rejected_rank - 1
            pairs = Pairs(
                prompts,
                [texts[k * PER_PROMPT + order[k, 0]] for k in range(PROMPTS)],
                [texts[k * PER_PROMPT + order[k, rank]] for k in range(PROMPTS)],
            )
            with tempfile.TemporaryDirectory() as folder:
                adapter = train_round(
                    base, adapter, pairs=pairs, config=config, public_seed=0, round=number, folder=Path(folder)
                )
    return cosines, len(set(texts))


if __name__ == "__main__":
    main()

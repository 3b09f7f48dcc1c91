"""Claim: a masked round of 750 clients costs at most 15 seconds of one core in all, and 16 kB of upload each.

Each client has 384 scores, and 30 % of them drop out; all of them run in this process. Every client computes what it
would on its own machine, both sides of every pair included; seconds per client is that total over n, server included. A
second line takes 18,000 scores (the paper's candidates), a third the full graph of Bonawitz et al. 2017 at the same
threshold, on fewer clients because its cost grows as n^2. 10,000 clients are scaled up from the sparse graph, whose
cost per client does not depend on n.

    OMP_NUM_THREADS=1 python benchmarks/secure_aggregation.py --out secure_aggregation.json
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from measuring import write_result

from understudy.privacy.noise import derive_key, discrete_gaussian
from understudy.privacy.secure_aggregation.accounting import total_variation
from understudy.privacy.secure_aggregation.aggregation import SecureSettings, masked_sum
from understudy.privacy.secure_aggregation.noise import share_noise
from understudy.privacy.secure_aggregation.round import DEGREE, Kind

CLIENTS, SCORES = 750, 384
TARGET_SECONDS, TARGET_BYTES = 15.0, 16_000
SHARE_OF_SURVIVORS, SHARE_OF_DROPOUTS = 0.6, 0.3
KEY = bytes(range(32))
Figures = dict[str, float]


def secret(client: int) -> bytes:
    return derive_key(KEY, charge_id="", salt=b"", step=client, purpose="benchmark")


def settings(n: int, degree: int) -> SecureSettings:
    return SecureSettings(
        bits=12, noise_multiplier=1.0, smallest_surviving=int(SHARE_OF_SURVIVORS * n), degree=degree, threshold=16
    )


def one_round(n: int, d: int, degree: int) -> Figures:
    """One round with dropouts half before and half after the masked vector."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    kinds: tuple[Kind, Kind] = ("masked", "unmask")
    gone = rng.choice(n, int(SHARE_OF_DROPOUTS * n), replace=False)
    silent = {int(client): kinds[place % 2] for place, client in enumerate(gone)}
    cpu, wall = time.process_time(), time.perf_counter()
    result = masked_sum(
        rows,
        settings(n, degree),
        participating=np.ones(n, dtype=bool),
        d=d,
        client_secret=secret,
        step=0,
        silent_from=silent,
    )
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    plan = result.plan
    kept = [client for client in range(n) if silent.get(client) != "masked"]
    noise = float(np.std(result.values - rows[kept].sum(0)))
    return {
        "clients": n,
        "scores": d,
        "degree": len(plan.neighbours[0]),
        "threshold": plan.threshold,
        "survivors": result.survivors,
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(wall, 2),
        "cpu_ms_per_client": round(1000 * cpu / n, 2),
        "upload_bytes_per_client": round(sum(result.transcript.upload_bytes.values()) / n),
        "vector_bytes": d * plan.width // 8,
        # Of the charged scale; sqrt(survivors / smallest surviving set) is expected.
        "noise": round(noise, 3),
        "expected_noise": round(float(np.sqrt(result.survivors / plan.smallest_surviving)), 3),
        "total_variation": total_variation(plan.share_scale, shares=plan.smallest_surviving, d=d),
    }


def sampler() -> Figures:
    """Microseconds for one value: by table, and exactly."""
    size, scale = 200_000, 193.0
    share_noise(KEY, 1, scale=scale)
    start = time.process_time()
    share_noise(KEY, size, scale=scale)
    table = (time.process_time() - start) / size
    start = time.process_time()
    discrete_gaussian(KEY, size // 40, scale=scale)
    exact = (time.process_time() - start) / (size // 40)
    return {"table_microseconds": round(1e6 * table, 3), "exact_microseconds": round(1e6 * exact, 1)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--scores", type=int, default=SCORES)
    parser.add_argument("--degree", type=int, default=DEGREE)
    parser.add_argument("--full", type=int, default=200, help="clients of the full graph; 0 leaves it out")
    parser.add_argument("--many-scores", type=int, default=18_000, help="0 leaves it out")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    rounds = [one_round(options.clients, options.scores, options.degree)]
    if options.many_scores:
        rounds.append(one_round(options.clients, options.many_scores, options.degree))
    if options.full:
        rounds.append(one_round(options.full, options.scores, options.full - 1))
    shown = ("clients", "scores", "degree", "cpu_seconds", "cpu_ms_per_client", "upload_bytes_per_client")
    print("".join(f"{name:>25}" for name in shown))
    for figures in rounds:
        print("".join(f"{figures[name]:>25}" for name in shown))
    real = rounds[0]
    print(f"10,000 clients of {options.scores} scores: {10 * real['cpu_ms_per_client']:.0f} cpu s, same bytes each")
    if options.full:
        pairs = (CLIENTS / options.full) ** 2
        print(f"full graph of {CLIENTS} clients: about {pairs * rounds[-1]['cpu_seconds']:.0f} cpu s")
    noise = sampler()
    print(f"noise: {noise['table_microseconds']} us a value by table, {noise['exact_microseconds']} exactly")
    met = real["cpu_seconds"] <= TARGET_SECONDS and real["upload_bytes_per_client"] <= TARGET_BYTES
    print(f"target {TARGET_SECONDS:g} s, {TARGET_BYTES} bytes: {'met' if met else 'missed'}")
    write_result(options.out, {"rounds": rounds, "sampler": noise, "met": met})
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

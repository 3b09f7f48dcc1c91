"""Claim: an audit with canaries catches a run without noise, finds nothing without a canary, and less than is claimed.

Beside the bounds stands which share of the canaries' secrets whoever has the model guesses right; chance is 1 / 64.

A method is audited at its default settings on shipped rows, seed after seed, each in a home of its own; the three runs
are the method's own flow. An audit whose attack is too weak says so, and its claim is not run.

    python benchmarks/audits.py --seeds 3 --out audits.json
    python benchmarks/audits.py --method gradient-matching --samples 4 --set matching.rounds=1 --canaries 100 --insist
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any


def audited(method: str, data: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What an audit finds: every figure of its report, and why it ended without a claim, if it did."""
    import understudy
    from understudy.errors import UnderstudyError

    with tempfile.TemporaryDirectory() as place:
        if data == "sentences":
            data = clients_of_sentences(Path(place, "clients.parquet"))
        os.environ["UNDERSTUDY_HOME"] = f"{place}/home"
        why = ""
        try:
            understudy.audit(
                data,
                source="audited",
                out=f"{place}/audit",
                epsilon=options.epsilon,
                method=method,
                canaries=options.canaries,
                seed=seed,
                samples=options.samples,
                overrides=options.set,
                insist=options.insist,
            )
        except UnderstudyError as error:
            why = str(error).partition(";")[0]
        report = json.loads(Path(place, "audit/report.json").read_text())
    return {"method": method, "data": data, "seed": seed, "why": why, "figures": report["metrics"]}


def secrets_in(figures: dict[str, float]) -> str:
    """Of the secrets of each run's canaries, the share that was guessed right, beside how many there were."""
    runs = {"claim": "", **{name: f"{name}." for name in ("positive_control", "null_control", "left_out")}}
    return ", ".join(
        f"{run} {figures[f'audit.secrets.{prefix}rate']:.3f} of {figures[f'audit.secrets.{prefix}guessed']:.0f}"
        for run, prefix in runs.items()
        if f"audit.secrets.{prefix}rate" in figures
    )


def clients_of_sentences(path: Path) -> str:
    """160 clients, each of one sentence of the shipped clients' documents: more units than those are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from understudy.data.samples import generate

    documents = generate("clients")["text"].to_pylist()
    sentences = [one for text in documents for one in re.split(r"(?<=[.!?])\s+", text) if len(one.split()) >= 6][:160]
    pq.write_table(pa.table({"client_id": [f"client {n}" for n in range(len(sentences))], "text": sentences}), path)
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="conditional-generation")
    parser.add_argument(
        "--data", default="sample:reviews", help="rows, or `sentences`: of sample:clients, a client each"
    )
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--canaries", type=int, default=150)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--insist", action="store_true", help="run the claim whatever catches the run without noise")
    parser.add_argument("--set", nargs="*", default=(), help="settings of the method, name=value")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    found = []
    for seed in range(options.seeds):
        found.append(audited(options.method, options.data, seed, options))
        figures = found[-1]["figures"]
        for threat in ("data", "model", "sums"):
            names = {
                condition: f"audit.one_run.{threat}.{condition}"
                for condition in ("", "positive_control.", "null_control.")
            }
            told = ", ".join(
                f"{condition.rstrip('.') or 'claim'} {figures[f'{name}epsilon_lower_bound']:.2f} "
                f"(AUC {figures[f'{name}auc']:.2f})"
                for condition, name in names.items()
                if f"{name}auc" in figures
            )
            print(f"seed {seed}, {threat}: {told}", flush=True)
        print(f"seed {seed}, secrets: {secrets_in(figures)}", flush=True)
        if options.out:
            settings = {name: str(value) for name, value in vars(options).items() if name != "out"}
            options.out.write_text(json.dumps({"settings": settings, "audits": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

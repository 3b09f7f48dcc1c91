"""Claim: an audit with canaries catches a run without noise, finds nothing without a canary, and less than is claimed.

A method is audited at its default settings on shipped rows, seed after seed, each in a home of its own; the three runs
are the method's own flow. An audit whose attack is too weak says so, and its claim is not run.

    python benchmarks/audits.py --seeds 3 --out audits.json
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def audited(method: str, data: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What an audit finds: every figure of its report, and why it ended without a claim, if it did."""
    import understudy
    from understudy.errors import UnderstudyError

    with tempfile.TemporaryDirectory() as place:
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
            )
        except UnderstudyError as error:
            why = str(error).partition(";")[0]
        report = json.loads(Path(place, "audit/report.json").read_text())
    return {"method": method, "data": data, "seed": seed, "why": why, "figures": report["metrics"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="conditional-generation")
    parser.add_argument("--data", default="sample:reviews")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--canaries", type=int, default=150)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    found = []
    for seed in range(options.seeds):
        found.append(audited(options.method, options.data, seed, options))
        figures = found[-1]["figures"]
        for threat in ("data", "model"):
            names = {arm: f"audit.one_run.{threat}.{arm}" for arm in ("", "positive_control.", "null_control.")}
            told = ", ".join(
                f"{arm.rstrip('.') or 'claim'} {figures[f'{name}epsilon_lower_bound']:.2f} "
                f"(AUC {figures[f'{name}auc']:.2f})"
                for arm, name in names.items()
                if f"{name}auc" in figures
            )
            print(f"seed {seed}, {threat}: {told}", flush=True)
        if options.out:
            settings = {name: str(value) for name, value in vars(options).items() if name != "out"}
            options.out.write_text(json.dumps({"settings": settings, "audits": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

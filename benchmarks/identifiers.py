"""Claim: how often telephone numbers of private rows come out of a run is read beside those of rows never seen.

Each message of sample:clinic has a number of its own. tiny-llama is trained on them with many passes, once without
noise and once with, each in a home of its own; what the synthetic texts hold of private rows, and of rows held out, is
what every report says.

    python benchmarks/identifiers.py --out identifiers.json
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

SETTINGS = (
    "variant=naive",
    "selection.draws=1",
    "train.batch_size=32",
    "train.l2_clip_norm=1.0",
    "train.learning_rate=3e-3",
)
SHOWN = (
    "memorization.identifiers.number.private",
    "memorization.identifiers.number.replayed",
    "memorization.lone_identifiers.synthetic_minus_holdout",
    "memorization.lone_words.synthetic",
    "memorization.lone_words.holdout",
    "memorization.lone_words.synthetic_minus_holdout",
    "memorization.longest_match.all_private",
    "memorization.exact_duplicates.all_private",
)


def measured(epsilon: float, options: argparse.Namespace) -> dict[str, Any]:
    """Figures and intervals of a run's report, of what is memorised."""
    import understudy

    with tempfile.TemporaryDirectory() as place:
        os.environ["UNDERSTUDY_HOME"] = f"{place}/home"
        understudy.synthesize(
            options.data,
            source="messages",
            out=f"{place}/run",
            epsilon=epsilon,
            budget=(options.epsilon, 1e-3),
            samples=options.samples,
            overrides=(*SETTINGS, f"train.epochs={options.passes}"),
        )
        report = json.loads(Path(place, "run/internal/report.json").read_text())
    kept = [name for name in report["metrics"] if name.startswith("memorization.")]
    return {
        "metrics": {name: report["metrics"][name] for name in kept},
        "intervals": {name: report["intervals"][name] for name in kept if name in report["intervals"]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="sample:clinic", help="rows with numbers in them")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--passes", type=int, default=30)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    result: dict[str, Any] = {"settings": {name: str(value) for name, value in vars(options).items() if name != "out"}}
    for condition, epsilon in (("without noise", float("inf")), ("with noise", options.epsilon)):
        result[condition] = found = measured(epsilon, options)
        for name in SHOWN:
            between = found["intervals"].get(name, "")
            print(f"{condition}: {name} {found['metrics'].get(name, float('nan')):.4g} {between}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

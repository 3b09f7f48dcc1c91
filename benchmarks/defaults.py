"""A user's first command on tables that nobody tuned for: defaults, and the names of the labels.

    python benchmarks/defaults.py OUT.json --data FOLDER [--model NAME] [--rows 2000] [--samples 200] [--methods ...]

Each cell is one `understudy run` in a process of its own: method, table and model, epsilon 8, no setting but the label
names, the number of rows asked for and, with --about, public words. A finished cell stands in its folder under --cache
and is read again. The table shows what was delivered of each label, and the accuracy of a classifier that was trained
on the synthetic rows, on prompt-only rows and on real ones, each on the same real test rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tables import print_table, write_figures

TABLES = {
    "rotten_tomatoes": ("test", "0=negative,1=positive", "one-sentence film reviews"),
    "ag_news": ("test", "0=world,1=sports,2=business,3=science", "short news reports"),
    "tweet_emotion": ("validation", "0=anger,1=joy,2=optimism,3=sadness", "tweets"),
}
METHODS = ("conditional-generation", "gradient-matching")
EPSILON = 8.0


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: str
    table: str
    model: str


def main() -> None:
    options = _options()
    found = []
    for table in options.tables:
        for method in options.methods:
            cell = Cell(method, table, options.model)
            found.append(_figures(cell, _run(cell, options), options))
            print_table([found[-1]])
    print_table(found, f"{options.model}, epsilon {EPSILON:g}, {options.rows} private rows")
    write_figures(options.out, {"cells": found}, rows=options.rows, samples=options.samples, epsilon=EPSILON)


def _run(cell: Cell, options: argparse.Namespace) -> Path:
    """Run a cell unless it is finished; gives its folder."""
    words = "about" if options.about else "plain"
    sizes = f"{options.rows}-rows-{options.samples}-samples"
    place = options.cache / f"{cell.method}-{cell.table}-{Path(cell.model).name}-{sizes}-{words}"
    if (place / "done.json").is_file():
        return place
    place.mkdir(parents=True, exist_ok=True)
    test, names, about = TABLES[cell.table]
    files = {}
    for part, split in (("train", "train"), ("test", test)):
        rows = pq.read_table(options.data / cell.table / f"{split}.parquet", columns=["text", "label"])
        files[part] = place / f"{part}.parquet"
        pq.write_table(_spread(rows, options.rows if part == "train" else 500), files[part])
    command = [sys.executable, "-m", "understudy.flows.cli", "run", cell.method, "--data", str(files["train"])]
    command += ["--test", str(files["test"]), "--label-names", names, "--source", cell.table.replace("_", "-")]
    command += ["--epsilon", str(EPSILON), "--samples", str(options.samples), "--model", cell.model]
    command += ["--out", str(place / "out"), *(["--about", about] if options.about else [])]
    began = time.time()
    environment = {**os.environ, "UNDERSTUDY_HOME": str(place / "home")}
    with (place / "log.txt").open("w") as log:
        code = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    (place / "done.json").write_text(json.dumps({"code": code, "seconds": time.time() - began}))
    return place


def _spread(rows: pa.Table, count: int) -> pa.Table:
    """So many rows, evenly spread over the table."""
    step = max(1, rows.num_rows // count)
    return rows.take(list(range(0, rows.num_rows, step))[:count])


def _figures(cell: Cell, place: Path, options: argparse.Namespace) -> dict[str, str]:
    """What the run left: exit code, rows of each label, accuracies with their intervals."""
    done = json.loads((place / "done.json").read_text())
    row = {
        "table": cell.table,
        "method": cell.method,
        "exit": str(done["code"]),
        "minutes": f"{done['seconds'] / 60:.0f}",
    }
    report = place / "out" / "internal" / "report.json"
    if not report.is_file():
        return {**row, "rows": (place / "log.txt").read_text().strip().splitlines()[-1][:80]}
    figures = json.loads(report.read_text())
    delivered = pq.read_table(place / "out" / "export" / "synthetic.parquet")
    counts = Counter(delivered["label"].to_pylist())
    row["rows"] = " + ".join(str(counts[label]) for label in sorted(counts)) + f" of {options.samples}"
    for condition in ("synthetic", "prompt_only", "real"):
        row[condition] = _with_interval(figures, f"utility.{condition}.accuracy")
    row["synthetic - prompt-only"] = _with_interval(figures, "utility.synthetic_minus_prompt_only.accuracy")
    return row


def _with_interval(figures: dict[str, Any], name: str) -> str:
    value, limits = figures["metrics"].get(name), figures["intervals"].get(name)
    if value is None:
        return ""
    return f"{value:.3f}" + (f" [{limits[0]:.3f}, {limits[1]:.3f}]" if limits else "")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder of Parquet files per table")
    parser.add_argument("--cache", type=Path, default=Path("out/defaults"))
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--about", action="store_true", help="say in public words what the rows are")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Conditional generation on real reviews: what steering and the second objective buy, at epsilon inf and 3.

    python benchmarks/conditional_generation.py --data ../shared/data/rotten_tomatoes --cache out/benchmark

Each cell (arm, epsilon, seed) trains on every training row, draws 1,000 rows, and trains an embedding probe on them
that is tested on the real test rows; seed 0 also fine-tunes the transformer classifier. Label fidelity is judged by a
probe trained on real rows, which is not the steering head. Cells are cached as JSON: a killed run goes on where it
was. The charges are simulations: measured, never exported. The last step prints the table, with paired bootstrap
intervals over test rows and seeds, and writes `table.json`.

`--published FOLDER` writes finished cells there too, without sample texts, and takes them from there: the cells behind
docs/results.md lie in benchmarks/cells/conditional_generation, so that the table can be remade, and checked, in a
second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import finished_cells

ARMS: dict[str, dict[str, Any]] = {
    "naive": {"variant": "naive"},
    "naive + filter": {"variant": "naive_filter"},
    "naive + PPLM": {"variant": "naive_pplm"},
    "multitask + PPLM, alternating": {"variant": "multitask", "update": "alternating"},
    "multitask + PPLM, joint": {"variant": "multitask", "update": "joint"},
    # Ablations: what is left of the method without steering, and what steering adds.
    "multitask, alternating, unsteered": {"variant": "multitask", "update": "alternating", "steered": False},
}
LABELS = ("negative", "positive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.parquet and test.parquet")
    parser.add_argument("--cache", type=Path, required=True, help="folder of finished cells")
    parser.add_argument("--published", type=Path, help="folder of finished cells without their texts")
    parser.add_argument("--model", default=None, help="base model; default: the tiny profile's")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, float("inf")])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--transformer", action="store_true", help="also fine-tune the transformer for seed 0")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    os.environ["UNDERSTUDY_HOME"] = str((options.cache / "home").absolute())
    (options.cache / "home").mkdir(mode=0o700, exist_ok=True)
    prepare(options)
    wanted = [("real", float("inf"), 0), *(("prompt-only", float("inf"), seed) for seed in options.seeds)]
    # One epsilon after the other and seed by seed, so that a run that is stopped early has whole rows.
    for epsilon, seed, arm in product(options.epsilons, options.seeds, options.arms):
        wanted.append((arm, epsilon, seed))
    waiting = [cell for cell in wanted if finished(options, cell) is None]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for number, (cell, seconds) in enumerate(pool.map(run_cell, [options] * len(waiting), waiting), 1):
            publish(options, cell)
            print(f"[{number}/{len(waiting)}] {cell}: {seconds:.0f} s", flush=True)
    for cell in wanted:
        publish(options, cell)
    summarize(options, wanted)


def finished(options: argparse.Namespace, cell: tuple[str, float, int]) -> dict[str, Any] | None:
    """A cell's figures; None where it is still to do."""
    return finished_cells.read(cell_name(cell), options.cache, options.published)


def publish(options: argparse.Namespace, cell: tuple[str, float, int]) -> None:
    """A finished cell beside the script."""
    finished_cells.publish(cell_name(cell), finished(options, cell), options.published)


def cell_name(cell: tuple[str, float, int]) -> str:
    arm, epsilon, seed = cell
    return "".join(c if c.isalnum() else "-" for c in f"{arm} eps {epsilon:g} seed {seed}")


def read(options: argparse.Namespace, split: str) -> tuple[list[str], list[int]]:
    import pyarrow.parquet as pq

    table = pq.read_table(options.data / f"{split}.parquet")
    return table["text"].to_pylist(), table["label"].to_pylist()


def prepare(options: argparse.Namespace) -> None:
    """Embed the real rows once, and register the source."""
    import numpy as np

    from understudy.privacy.ledger.ledger import Ledger, SourceRecord

    texts, _ = read(options, "train")
    record = SourceRecord(
        name="benchmark",
        unit="example",
        relation="replace_special",
        epsilon=1000.0,
        delta=0.5 / len(texts),
        n=len(texts),
        label_names=LABELS,
    )
    Ledger.open().register(record)
    for split in ("train", "test"):
        path = options.cache / f"{split}-embedded.npy"
        if not path.exists():
            from understudy.evaluation.encoder import embed, load_encoder

            with path.with_suffix(".part").open("wb") as file:
                np.save(file, embed(read(options, split)[0], load_encoder()))
            path.with_suffix(".part").rename(path)


def configure(options: argparse.Namespace, arm: str, seed: int) -> Any:
    from understudy.methods.conditional_generation.config import ConditionalGenerationConfig

    given = dict(ARMS.get(arm, ARMS["naive"]))
    steered = given.pop("steered", True)
    if options.model:
        given["model"] = options.model
    config = ConditionalGenerationConfig(**given, samples=options.samples, public_seed=seed)
    if not steered:
        steering = config.generate.steering.model_copy(update={"steer": "none"})
        config = config.model_copy(update={"generate": config.generate.model_copy(update={"steering": steering})})
    return config


def run_cell(options: argparse.Namespace, cell: tuple[str, float, int]) -> tuple[tuple[str, float, int], float]:
    import torch

    torch.set_num_threads(1)
    began = time.perf_counter()
    arm, _, seed = cell
    result = measure(options, cell, synthesize(options, cell))
    result |= {"arm": arm, "epsilon": str(cell[1]), "seed": seed, "seconds": time.perf_counter() - began}
    finished_cells.write(options.cache / f"{cell_name(cell)}.json", result)
    return cell, time.perf_counter() - began


def synthesize(
    options: argparse.Namespace, cell: tuple[str, float, int]
) -> tuple[list[str], list[int], dict[str, Any]]:
    """The rows of one arm, and public facts of how they were made."""
    from understudy.methods.conditional_generation.fitting import train_on_table
    from understudy.methods.conditional_generation.queries import plan
    from understudy.methods.conditional_generation.synthesis import synthesize_stored, synthesize_untrained
    from understudy.privacy.accounting import default_delta, epsilon_pld, epsilon_rdp
    from understudy.privacy.ledger.ledger import Ledger
    from understudy.privacy.mechanisms import Gateway
    from understudy.privacy.queries import queries_to_json

    arm, epsilon, seed = cell
    texts, labels = read(options, "train")
    if arm == "real":
        return texts, labels, {}
    config = configure(options, arm, seed)
    if arm == "prompt-only":
        made = synthesize_untrained(config, LABELS, rows=options.samples)
        return made.table["text"].to_pylist(), made.table["label"].to_pylist(), made.report()
    delta = default_delta(len(texts))
    planned = plan(config, n=len(texts), epsilon=epsilon, delta=delta, cache=options.cache / "calibrations")
    event, finite = planned.event, epsilon != float("inf")
    ledger = Ledger.open()
    charge = ledger.reserve(
        source="benchmark",
        request_key=ledger.request_key(str(cell), config.model_dump_json()),
        queries=queries_to_json(planned.queries),
        epsilon=epsilon,
        delta=delta,
        epsilon_rdp=epsilon_rdp(event, delta) if finite else epsilon,
        unit="example",
        relation="replace_special",
        code_digest="benchmark",
        simulation=True,
    )
    began = time.perf_counter()
    gateway = Gateway.live(ledger.material(charge.id))
    stored = train_on_table(texts, labels, label_names=LABELS, config=config, plan=planned, gateway=gateway)
    trained = time.perf_counter() - began
    made = synthesize_stored(stored, config)
    facts = made.report() | {
        "training_seconds": trained,
        "generation_seconds": time.perf_counter() - began - trained,
        "steps": planned.steps,
        "epsilon_pld": epsilon_pld(event, delta) if finite else None,
        "epsilon_rdp": epsilon_rdp(event, delta) if finite else None,
        "delta": delta,
        "test_loss": test_loss(options, stored, config),
        "discriminator_accuracy": head_accuracy(options, stored, config),
    }
    return made.table["text"].to_pylist(), made.table["label"].to_pylist(), facts


def test_loss(options: argparse.Namespace, stored: Any, config: Any) -> float:
    """Nats per token of test texts under their own prompt (the paper's Table 4)."""
    import torch

    from understudy.methods.conditional_generation.encode import encode
    from understudy.methods.conditional_generation.losses import lm_loss

    texts, labels = read(options, "test")
    rows = encode(texts, labels, label_names=LABELS, tokenizer=stored.trained.tokenizer, config=config)
    total = tokens = 0.0
    with torch.no_grad():
        for start in range(0, len(texts), 64):
            part = slice(start, start + 64)
            batch = {k: getattr(rows, k)[part] for k in ("input_ids", "attention_mask", "loss_mask", "label", "valid")}
            counts = batch["loss_mask"].sum(1)
            total += float((lm_loss(stored.trained.model, batch, prompts=rows.prompts) * counts).sum())
            tokens += float(counts.sum())
    return total / tokens


def head_accuracy(options: argparse.Namespace, stored: Any, config: Any) -> float | None:
    """How often the steering head or the filter is right about real test texts; None where there is none."""
    from understudy.methods.conditional_generation.states import label_log_probabilities

    if stored.trained.model.classifier is None:
        return None
    texts, labels = read(options, "test")
    found = label_log_probabilities(stored.trained, texts, config=config).argmax(-1).tolist()
    return sum(a == b for a, b in zip(found, labels, strict=True)) / len(labels)


def measure(
    options: argparse.Namespace, cell: tuple[str, float, int], made: tuple[list[str], list[int], dict[str, Any]]
) -> dict[str, Any]:
    import numpy as np

    from understudy.evaluation import fidelity, utility
    from understudy.evaluation.config import ClassifierConfig
    from understudy.evaluation.encoder import embed, load_encoder

    arm, _, seed = cell
    texts, labels, facts = made
    _, real_labels = read(options, "train")
    test_texts, test_labels = read(options, "test")
    real, test = (np.load(options.cache / f"{split}-embedded.npy") for split in ("train", "test"))
    mine = real if arm == "real" else embed(texts, load_encoder())
    correct = utility.score(utility.fit_probe(mine, labels)(test), test_labels).correct
    result: dict[str, Any] = facts | {"correct": correct.astype(int).tolist(), "rows": len(texts)}
    if arm != "real":
        judge = utility.fit_probe(real, real_labels)
        result["label_fidelity"] = float(utility.label_fidelity(mine, labels, judge).share)
        result["mauve"] = float(fidelity.mauve(mine[: len(test)], test, seed=0))
        result["texts"] = [[label, text] for text, label in zip(texts, labels, strict=True)]
    if options.transformer and seed == 0:
        scored = utility.transformer_accuracy(
            texts, labels, test_texts, test_labels, classes=2, config=ClassifierConfig(profile="tiny"), seed=0
        )
        result["transformer_accuracy"] = float(scored.accuracy)
    return result


def summarize(options: argparse.Namespace, wanted: list[tuple[str, float, int]]) -> None:
    import numpy as np

    from understudy.evaluation.utility import accuracy_interval, paired_bootstrap

    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in wanted:
        value = finished(options, cell)
        if value is not None:
            found.setdefault((value["arm"], value["epsilon"]), []).append(value)
    rows = []
    for (arm, epsilon), values in found.items():
        values.sort(key=lambda value: value["seed"])
        table = np.array([value["correct"] for value in values], dtype=bool)
        interval = accuracy_interval(table, seed=0, replicates=2000, level=0.95)
        row: dict[str, Any] = {"arm": arm, "epsilon": epsilon, "seeds": [value["seed"] for value in values]}
        row["probe_accuracy"] = [interval.value, interval.low, interval.high]
        naive = found.get(("naive", epsilon))
        if naive and arm not in ("naive", "real", "prompt-only") and len(naive) == len(values):
            base = np.array([v["correct"] for v in sorted(naive, key=lambda v: v["seed"])], dtype=bool)
            difference = paired_bootstrap(table, base, seed=0, replicates=2000, level=0.95)
            row["minus_naive"] = [difference.value, difference.low, difference.high]
        for name in ("label_fidelity", "mauve", "test_loss", "discriminator_accuracy", "transformer_accuracy"):
            known = [value[name] for value in values if value.get(name) is not None]
            row[name] = sum(known) / len(known) if known else None
        row["minutes"] = sum(value["seconds"] for value in values) / len(values) / 60
        rows.append(row)
    (options.cache / "table.json").write_text(json.dumps({"command": sys.argv, "rows": rows}, indent=1))
    print_table(rows)


def print_table(rows: list[dict[str, Any]]) -> None:
    names = "arm, epsilon, probe accuracy, minus naive, label fidelity, MAUVE, test loss, head, transformer, minutes"
    print("| " + " | ".join(names.split(", ")) + " |")
    print("|---" * len(names.split(", ")) + "|")
    for row in rows:
        cells = [
            row["arm"],
            row["epsilon"],
            interval_text(row["probe_accuracy"]),
            interval_text(row.get("minus_naive")),
        ]
        names = ("label_fidelity", "mauve", "test_loss", "discriminator_accuracy", "transformer_accuracy")
        cells += ["" if row[name] is None else f"{row[name]:.3f}" for name in names]
        print("| " + " | ".join([*cells, f"{row['minutes']:.1f}"]) + " |")


def interval_text(found: list[float] | None) -> str:
    return "" if found is None else f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


if __name__ == "__main__":
    main()

"""What each part of gradient matching buys: the gradient, the projection, the swaps, and each filter in turn.

    python benchmarks/gradient_matching_ablations.py --data ../shared/data --cache out/gradient-matching

Per data set, 50 real rows at epsilon inf and one seed. The variants match as many texts and keep all that are not
empty; accuracy is that of the shipped model after 200 steps on them, the loss 1 - cosine to the exact head gradient of
all training rows, one measure for every variant; log-perplexity, nats per token under the same model, says how it
reads. Then the filters, one more at a time, on the texts that the method's own settings matched: how many are left and
what they are worth. Accuracy reads real rows: internal. Charges are simulations.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from finished_cells import write
from gradient_matching_data import DATASETS, Cell, Settings, configure, model_of, read, subset, taken
from gradient_matching_measures import losses, tune, verdicts
from gradient_matching_release import register, source_name, yardstick

from understudy.evaluation.nearest import log_perplexities
from understudy.evaluation.rows import LabelledTexts
from understudy.methods.gradient_matching.filters import filter_texts
from understudy.methods.gradient_matching.matched import match_shard
from understudy.methods.gradient_matching.method import calibrated_plan, charged_settings
from understudy.methods.gradient_matching.release import release_target
from understudy.methods.gradient_matching.synthesis import shards
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.privacy.accounting import default_delta
from understudy.privacy.ledger.ledger import Ledger
from understudy.privacy.mechanisms import Gateway
from understudy.privacy.queries import queries_to_json

VARIANTS = {
    "as it is": (),
    "without swaps": ("matching.swap_sweeps=0",),
    "L2 projection, without swaps": ("projection.kind=l2", "matching.swap_sweeps=0"),
    "full gradient, without swaps": ("matching.gradient=full", "matching.swap_sweeps=0"),
}
FILTERS = {
    "none": {"label_check": False, "balance": False},
    "label check": {"label_check": True, "balance": False},
    "label check, lowest half": {"label_check": True, "keep_lowest": 0.5, "balance": False},
    "label check, lowest half, balance": {"label_check": True, "keep_lowest": 0.5, "balance": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per data set")
    parser.add_argument("--cache", type=Path, required=True, help="folder of what the cells share")
    parser.add_argument("--datasets", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--samples", type=int, default=40, help="texts matched per variant")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    home = (options.cache / "home").absolute()
    home.mkdir(parents=True, mode=0o700, exist_ok=True)
    os.environ["UNDERSTUDY_HOME"] = str(home)
    torch.set_num_threads(1)
    print("| data | variant | texts | loss | accuracy | log-perplexity | CPU seconds |\n|---|---|---|---|---|---|---|")
    for dataset in options.datasets:
        for variant in options.variants:
            print(line(options, dataset, variant), flush=True)
    if "as it is" in options.variants:
        print("\n| data | filters | left | loss | accuracy |\n|---|---|---|---|---|")
        for dataset in options.datasets:
            for name in FILTERS:
                print(filtered(options, dataset, name), flush=True)


def settings_of(options: argparse.Namespace, variant: str) -> Settings:
    return Settings(
        data=options.data,
        cache=options.cache,
        samples=options.samples,
        oversample=1.0,
        overrides=VARIANTS[variant],
        models=("tiny-llama",),
    )


def line(options: argparse.Namespace, dataset: str, variant: str) -> str:
    """One variant."""
    settings, cell = settings_of(options, variant), cell_of(options, dataset)
    found = texts_of(settings, cell, variant)
    rows = kept(dataset, found, [i for i, text in enumerate(found["text"]) if text.strip()])
    fluency = log_perplexities(model_of(settings.models[0]), {"rows": list(rows.texts)})["rows"]
    return f"| {dataset} | {variant} | {measured(settings, cell, rows)} | {fluency:.2f} | {found['cpu_seconds']:.0f} |"


def filtered(options: argparse.Namespace, dataset: str, name: str) -> str:
    """One more filter on the texts of the method's own settings."""
    settings, cell = settings_of(options, "as it is"), cell_of(options, dataset)
    config, found = configure(settings, cell), texts_of(settings, cell, "as it is")
    base = model_of(config.model)
    chosen = filter_texts(
        found["text"],
        np.asarray(found["loss"]),
        found["label"],
        base=base,
        verbalizer=build_verbalizer(base.tokenizer, DATASETS[dataset].label_names, config.verbalizer),
        config=config.filter.model_copy(update=FILTERS[name]),
        max_length=config.max_length,
    )
    return f"| {dataset} | {name} | {measured(settings, cell, kept(dataset, found, chosen.rows.tolist()))} |"


def cell_of(options: argparse.Namespace, dataset: str) -> Cell:
    return Cell(dataset, "ablation", 50, target="sketch", seed=options.seed)


def texts_of(settings: Settings, cell: Cell, variant: str) -> dict[str, Any]:
    """Matched texts of a variant, with labels and losses to their own target; from the cache or now."""
    config = configure(settings, cell)
    words = "-".join("".join(c if c.isalnum() else " " for c in variant).split())
    path = settings.cache / f"{cell.name}-{words}-{settings.samples}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    began, rows = time.process_time(), subset(read(settings.data, cell.dataset, "train"), taken(settings, cell))
    names, base = DATASETS[cell.dataset].label_names, model_of(config.model)
    plan = calibrated_plan(config, n=len(rows.texts), epsilon=cell.epsilon, delta=default_delta(len(rows.texts)))
    register(settings, cell)
    ledger = Ledger.open()
    charge = ledger.reserve(
        source=source_name(cell),
        request_key=ledger.request_key(cell.name, variant, charged_settings(config).model_dump_json()),
        queries=queries_to_json(plan.queries),
        epsilon=cell.epsilon,
        delta=default_delta(len(rows.texts)),
        epsilon_rdp=cell.epsilon,
        unit="example",
        relation="replace_special",
        code_digest="benchmark",
        simulation=True,
    )
    target = release_target(
        rows.texts,
        rows.labels.tolist(),
        label_names=names,
        config=charged_settings(config),
        plan=plan,
        gateway=Gateway.live(ledger.material(charge.id)),
        base=base,
    )
    parts = [
        match_shard(base, target, config=config, examples=part, public_seed=cell.seed)
        for part in shards(config, len(names))
    ]
    table = pa.concat_tables(parts)
    found = {
        "text": table["text"].to_pylist(),
        "label": table["label"].to_pylist(),
        "loss": table["emitted_loss"].to_pylist(),
        "cpu_seconds": time.process_time() - began,
    }
    write(path, found)
    return found


def kept(dataset: str, found: dict[str, Any], rows: list[int]) -> LabelledTexts:
    labels = np.asarray(found["label"], np.int64)[rows]
    return LabelledTexts([found["text"][row] for row in rows], labels, DATASETS[dataset].label_names)


def measured(settings: Settings, cell: Cell, rows: LabelledTexts) -> str:
    """Number, median loss to the common yardstick, accuracy after tuning on them."""
    if not rows.texts:
        return "0 | | "
    (model,) = settings.models
    right = verdicts(settings, cell.dataset, model, tune(cell, model, rows)).correct
    error = (right.mean() * (1 - right.mean()) / len(right)) ** 0.5
    loss = np.median(losses(yardstick(settings, cell), rows))
    return f"{len(rows.texts)} | {loss:.4f} | {right.mean():.3f} ± {error:.3f}"


if __name__ == "__main__":
    main()

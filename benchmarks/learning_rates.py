"""Claim: the learning rate that is chosen on the model's own texts is near the one that learns most from rows.

    python benchmarks/learning_rates.py OUT.json --cache out/learning-rates [--models NAME ...]

Made-up notes with labels (`sample:ferry`) stand in for private rows: naive training at its defaults, one line per
learning rate and epsilon. It shows how far the loss on 200 further notes changes in nats per token, beside what the two
rules look at: the rise of the loss on the model's own texts after as many steps of noise alone (`damage`, at most 0.1
where epsilon is finite), and after as many steps without noise on half of those texts, measured on the other half
(`drift`, at most 0.3 at epsilon inf). `--own-only` leaves the training out, for a model that takes long.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from cells import set_environment
from simulation import charge, register
from tables import print_table, write_figures

RATES = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
HELD_OUT = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file of the table")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the ledger of the simulated charges")
    parser.add_argument("--models", nargs="+", default=["tiny-llama", "tiny-gpt2"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[math.inf, 8.0])
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--about", default="notes from the quay", help="public words about the rows")
    parser.add_argument("--own-only", action="store_true", help="only what the rules look at")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    set_environment(options.cache)
    torch.set_num_threads(1)
    lines = []
    for model in options.models:
        rows = _rows_of(model, options)
        lines += rows
        print_table(rows, model)
    write_figures(options.out, {"rates": lines}, rows=options.rows, seed=options.seed)


def _rows_of(model: str, options: argparse.Namespace) -> list[dict[str, str]]:
    from understudy.methods.conditional_generation import twin as rules
    from understudy.methods.conditional_generation.queries import trainings_of
    from understudy.models.loading import load_base

    config = _config(model, options.rates[0], options)
    steps = trainings_of(config, options.rows, noise_multiplier=1.0)[0].steps
    names = _notes(options)[0].label_names
    own = rules.own_rows(load_base(config), names, config)
    twin = rules.Twin(lambda: load_base(config), own, config, steps)
    lines = []
    for rate in options.rates:
        line = {"model": model, "steps": str(steps), "rate": f"{rate:g}"}
        line |= {"damage": f"{rules.damage(twin, rate):.3f}", "drift": f"{rules.drift(twin, rate):.3f}"}
        for epsilon in () if options.own_only else options.epsilons:
            line[f"held out, epsilon {epsilon:g}"] = f"{_learnt(model, rate, epsilon, options):+.3f}"
        lines.append(line)
    return lines


def _learnt(model: str, rate: float, epsilon: float, options: argparse.Namespace) -> float:
    """Change of the loss on further notes, in nats per token, by a training at this rate."""
    from understudy.methods.conditional_generation.fitting import train_on_table
    from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
    from understudy.models.loading import load_base
    from understudy.privacy.accounting import default_delta

    config, n = _config(model, rate, options), options.rows
    notes, further = _notes(options)
    queries = queries_of(config, n=n, epsilon=epsilon, delta=default_delta(n))
    register(source := f"notes-{n}", unit="example", n=n, label_names=notes.label_names, share=0.5)
    request = (model, f"{rate:g} {epsilon:g}", config.model_dump_json())
    mechanisms = charge(source, unit="example", n=n, epsilon=epsilon, queries=queries, request=request)
    base = load_base(config)
    before = _loss(base.model, base.tokenizer, further, config)
    trained = train_on_table(notes, Asked(config, schedule_of(queries), mechanisms), base=base).trained
    return _loss(trained.model.lm, base.tokenizer, further, config) - before


def _loss(model: Any, tokenizer: Any, notes: Any, config: Any) -> float:
    """Nats per token behind the right prompt, over all tokens."""
    from understudy.methods.conditional_generation.encode import encode
    from understudy.methods.conditional_generation.losses import lm_loss
    from understudy.methods.conditional_generation.model import MultitaskModel

    rows = encode(notes, tokenizer=tokenizer, config=config)
    fields, total, tokens = ("input_ids", "attention_mask", "loss_mask"), 0.0, 0.0
    with torch.no_grad():
        for start in range(0, len(rows.label), 16):
            batch = {name: getattr(rows, name)[start : start + 16] for name in fields}
            counts = batch["loss_mask"].sum(1)
            total += float((lm_loss(MultitaskModel(model), batch, prompts=rows.prompts) * counts).sum())
            tokens += float(counts.sum())
    return total / tokens


def _config(model: str, rate: float, options: argparse.Namespace) -> Any:
    """A user's settings, but for the variant and the rate."""
    from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
    from understudy.methods.conditional_generation.method import resolve

    given = {"variant": "naive", "model": model, "about": options.about, "public_seed": options.seed}
    config = ConditionalGenerationConfig.model_validate({**given, "train": {"learning_rate": rate}})
    return resolve(config, options.rows, _notes(options)[0].label_names, math.inf)


def _notes(options: argparse.Namespace) -> tuple[Any, Any]:
    """The first notes and the last ones, as rows."""
    from understudy.data.private_rows import PrivateRows
    from understudy.data.readers import read_source

    table = read_source("sample:ferry")
    names = tuple(sorted(set(table["label"].to_pylist())))
    labels = [names.index(label) for label in table["label"].to_pylist()]
    texts = table["text"].to_pylist()
    if options.rows + HELD_OUT > len(texts):
        raise SystemExit(f"--rows {options.rows}: expected at most {len(texts) - HELD_OUT}")
    return (
        PrivateRows(texts[: options.rows], labels[: options.rows], names),
        PrivateRows(texts[-HELD_OUT:], labels[-HELD_OUT:], names),
    )


if __name__ == "__main__":
    main()

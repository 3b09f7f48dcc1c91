"""Claim: whether texts that are steered by a head of the model's own texts teach labels better than unsteered ones.

    python benchmarks/warm_steering.py OUT.json --data FOLDER [--model NAME] [--table NAME] [--budgets 0.05 0.1]

Nothing private is read: this is the most that a head started on own texts could add to a run whose private steps teach
it nothing. The head is the linear one of `warm_head.py`, fitted on texts of other numbers than those that are drawn.
Each seed draws the same rows without steering and, for each budget, with it; a probe of their embeddings is asked about
real test rows. The differences have paired intervals over test rows and seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from defaults import TABLES
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from tables import interval_text, print_table, write_figures
from torch import nn
from warm_head import rows_of

from understudy.evaluation.statistics import intervals
from understudy.evaluation.texts.encoder import embed, load_encoder
from understudy.evaluation.utility import accuracy
from understudy.generation.own_texts import write_own_texts
from understudy.generation.prompts import build_prompts
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.generate import generate
from understudy.methods.conditional_generation.model import MultitaskModel, TrainedModel
from understudy.methods.conditional_generation.states import text_states
from understudy.models.loading import LoadedModel, load_model


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    split, names, about = TABLES[options.table]
    label_names = tuple(one.partition("=")[2] for one in names.split(","))
    config = ConditionalGenerationConfig(model=options.model, about=about)
    base = load_model(options.model)
    head = own_head(base, label_names, config, per_label=options.per_label)
    test = rows_of(options.data / options.table, split, options.rows)
    encoder = load_encoder()
    asked = embed(test.texts, encoder)
    labels = [number % len(label_names) for number in range(options.samples)]
    correct: dict[float, list[Any]] = {}
    for seed in options.seeds:
        for budget in (0.0, *options.budgets):
            texts = drawn(base, label_names, labels, head if budget else None, config, seed=seed, budget=budget)
            probe = accuracy.fit_probe(embed(texts, encoder), labels)
            correct.setdefault(budget, []).append(accuracy.score(probe(asked), test.labels).correct)
            print(f"seed {seed}, budget {budget:g}: {correct[budget][-1].mean():.3f}; {texts[0]!r}", flush=True)
    lines, figures = [], []
    for budget, found in correct.items():
        right = np.array(found)
        own = intervals.accuracy_interval(right, seed=0)
        line = {"accuracy": (own.value, own.low, own.high)}
        if budget:
            more = intervals.paired_bootstrap(right, np.array(correct[0.0]), seed=0)
            line["minus unsteered"] = (more.value, more.low, more.high)
        figures.append({"budget": budget, **line})
        lines.append({"budget, nats": f"{budget:g}", **{name: interval_text(value) for name, value in line.items()}})
    print_table(lines, f"{options.model}, {options.table}, {options.samples} texts, seeds {options.seeds}")
    write_figures(options.out, {"steering": figures}, samples=options.samples, seeds=options.seeds)


def own_head(
    base: LoadedModel, label_names: Sequence[str], config: ConditionalGenerationConfig, *, per_label: int
) -> nn.Module:
    """A linear head on mean states of the model's own texts, standardised, as one affine map."""
    tokens = config.generate.sampling.max_new_tokens
    texts, labels = write_own_texts(base, label_names, about=config.about, per_label=per_label, tokens=tokens)
    states = text_states(base.model, texts, trained=_model(base, label_names, None, config), config=config)["mean"]
    scaler = StandardScaler().fit(states.double().numpy())
    found = LogisticRegression(C=0.01, max_iter=2000).fit(scaler.transform(states.double().numpy()), labels)
    weights, bias = found.coef_, found.intercept_
    if len(weights) == 1:  # two labels: one score, of the second
        weights, bias = np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
    head = nn.Linear(states.shape[1], len(label_names))
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weights / scaler.scale_))
        head.bias.copy_(torch.from_numpy(bias - (weights / scaler.scale_) @ scaler.mean_))
    return head.requires_grad_(False)


def drawn(
    base: LoadedModel,
    label_names: Sequence[str],
    labels: Sequence[int],
    head: nn.Module | None,
    config: ConditionalGenerationConfig,
    *,
    seed: int,
    budget: float,
) -> list[str]:
    """One text for each label from the untrained model, steered where there is a head."""
    steering = config.generate.steering.model_copy(update={"kl_budget": budget or config.generate.steering.kl_budget})
    sized = config.generate.model_copy(update={"steering": steering, "batch_size": 32})
    asked = config.model_copy(update={"public_seed": seed, "generate": sized})
    return generate(_model(base, label_names, head, config), labels, config=asked)


def _model(
    base: LoadedModel, label_names: Sequence[str], head: Any, config: ConditionalGenerationConfig
) -> TrainedModel:
    prompts = build_prompts(base.tokenizer, label_names, config.prompt, about=config.about)
    return TrainedModel(MultitaskModel(base.model, discriminator=head), base.tokenizer, tuple(label_names), prompts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder of Parquet files per table")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--table", default="rotten_tomatoes", choices=list(TABLES))
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.05, 0.1])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--per-label", type=int, default=128)
    parser.add_argument("--rows", type=int, default=500, help="real test rows")
    return parser.parse_args()


if __name__ == "__main__":
    main()

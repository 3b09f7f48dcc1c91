"""Claim: what an exponential average of a DP training's weights is worth (De et al. 2022, arXiv 2204.13650, section 3).

    python benchmarks/weight_averaging.py --data FOLDER --cache out/weight-averaging [--tables NAME ...]
        [--epsilons 3 8] [--seeds 0 1 2] [--epochs 1] [--accuracy]

Each cell is one training of conditional generation at the method's defaults, with public words about the rows. It gives
the last weights and their averages alike, for averaging changes no step: of one training all are compared on the same
held-out rows, in nats per token. A cell is trained with or without linear decay of the learning rate, at the rate that
is chosen before the charge for the last weights (`rate=last`) or for their average (`rate=average`), which noise
harms less. `--accuracy` draws texts from last and averaged weights too, keeps all of them, and trains classifiers on
them, which are tested on the held-out rows. Intervals are 95 %: over seeds by Student's t, of one seed over rows by a
paired bootstrap.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from cells import Benchmark, arguments, complete, parse, settings_from, short_digest
from defaults import TABLES
from evaluation_models import right_by_words
from simulation import charge, register
from tables import interval_text, print_table, write_figures

DECAYS = (0.9, 0.99)
LAST = "last"
DRAWN = (LAST, "0.99")
# Decay under which each learning rate is chosen.
RATES = {"last": 0.0, "average": 0.99}


@dataclass(frozen=True)
class Cell:
    """One training.

    Attributes:
        condition: table of the rows.
        epsilon: of the charge.
        seed: public seed.
        schedule: whether the learning rate falls, `decay`, or stays, `constant`.
        rate: for which weights the learning rate is chosen.
        epochs: expected passes over the rows.
    """

    condition: str
    epsilon: float
    seed: int
    schedule: str
    rate: str
    epochs: float

    @property
    def name(self) -> str:
        """A file name."""
        return (
            f"{self.condition}-eps-{self.epsilon:g}-{self.schedule}-{self.rate}-epochs-{self.epochs:g}-seed-{self.seed}"
        )


@dataclass(frozen=True)
class Settings:
    """What all cells of one run have in common.

    Attributes:
        data: folder with a folder of Parquet files per table.
        cache: folder of finished cells.
        model: base model.
        rows: private rows at most.
        held_out: rows that losses and accuracies are measured on, at most.
        samples: texts that are drawn for a classifier.
        accuracy: whether they are.
    """

    data: Path
    cache: Path
    model: str
    rows: int
    held_out: int
    samples: int
    accuracy: bool


class InMemory:
    """A sink of checkpoints: the newest state of a training, and averages of its weights under every decay."""

    def __init__(
        self,
        *,
        found: tuple[int, dict[str, torch.Tensor]] | None = None,
        start: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Begin with a state to go on from, or with the weights before the first step."""
        self.found = found
        copies = {decay: {name: value.clone() for name, value in start.items()} for decay in DECAYS if start}
        self.averages: dict[float, dict[str, torch.Tensor]] = copies

    def due(self, step: int) -> bool:
        """After every step, where there is something to average."""
        return bool(self.averages)

    def load(self) -> tuple[int, dict[str, torch.Tensor]] | None:
        """The state."""
        return self.found

    def save(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keep the state; the averages are those that the trainer would keep."""
        from understudy.privacy.dpsgd.averaging import decay_at

        for decay, average in self.averages.items():
            for name, value in average.items():
                value.lerp_(tensors[name], 1.0 - decay_at(step - 1, decay))
        self.found = (step, {name: value.clone() for name, value in tensors.items()})


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--tables", nargs="+", default=["rotten_tomatoes", "ag_news"], choices=list(TABLES))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[3.0, 8.0])
    parser.add_argument("--schedules", nargs="+", default=["decay", "constant"], choices=["decay", "constant"])
    parser.add_argument("--rates", nargs="+", default=list(RATES), choices=list(RATES))
    parser.add_argument("--epochs", nargs="+", type=float, default=[1.0])
    parser.add_argument("--rows", type=int, default=8530)
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--accuracy", action="store_true")
    options = parse(parser)
    settings = settings_from(Settings, options)
    benchmark = Benchmark(settings, figures, digest=digest)
    cells = [
        Cell(table, epsilon, seed, schedule, rate, epochs)
        for seed in options.seeds
        for epochs in options.epochs
        for rate in options.rates
        for schedule in options.schedules
        for epsilon in options.epsilons
        for table in options.tables
    ]
    found = complete(benchmark, cells, options)
    losses, accuracies = lines_of(found, "losses"), lines_of(found, "accuracies")
    print_table(losses, "held-out loss, nats per token: last weights, and average minus last")
    print_table(accuracies, "accuracy of a classifier of drawn texts: last weights, and average minus last")
    tables = {"losses": losses, **({"accuracies": accuracies} if accuracies else {}), "cells": cells_of(found)}
    write_figures(options.figures, tables, model=options.model, rows=options.rows, held_out=options.held_out)


def digest(settings: Settings, cell: Cell) -> str:
    """Of what a cell's figures depend on."""
    facts = (settings.model, settings.rows, settings.held_out, settings.samples, settings.accuracy, cell.name, DECAYS)
    return short_digest({"facts": list(map(str, facts))})


def figures(settings: Settings, cell: Cell) -> dict[str, Any]:
    """The losses of every held-out row under the last weights and each average of one training."""
    from understudy.methods.conditional_generation.fitting import train_on_table
    from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
    from understudy.privacy.accounting import default_delta

    private, held_out = rows_of(settings, cell.condition, "train"), rows_of(settings, cell.condition, "test")
    config, n = configured(settings, cell, private), len(private.texts)
    queries = queries_of(config, n=n, epsilon=cell.epsilon, delta=default_delta(n), cache=settings.cache / "noise")
    register(source := f"{cell.condition}-{n}".replace("_", "-"), unit="example", n=n, label_names=private.label_names)
    request = (cell.name, config.model_dump_json())
    mechanisms = charge(source, unit="example", n=n, epsilon=cell.epsilon, queries=queries, request=request)
    # The class means are charged, so the noise is a user's, and not asked for: they choose texts and train nothing.
    asked = Asked(config, schedule_of(queries).model_copy(update={"means_noise": None}), mechanisms)
    kept = InMemory(start=_start(config, private))
    stored = train_on_table(private, asked, checkpoints=lambda _: kept)
    assert kept.found is not None
    steps, state = kept.found
    result: dict[str, Any] = {"rates": list(config.train.rates), "steps": steps, "losses": {}, "accuracies": {}}
    for name in (LAST, *map(str, DECAYS)):
        if name != LAST:
            # A finished training that is found with the average in place of its weights.
            finished = InMemory(found=(steps, {**state, **kept.averages[float(name)]}))
            stored = train_on_table(private, asked, checkpoints=lambda _, sink=finished: sink)
        result["losses"][name] = losses_of(stored.trained, held_out, config).tolist()
        if settings.accuracy and name in DRAWN:
            result["accuracies"][name] = accuracies_of(stored, held_out, config)
    return result


def _start(config: Any, private: Any) -> dict[str, torch.Tensor]:
    """The weights before the first step, by the names of a checkpoint."""
    from understudy.methods.conditional_generation.model import build_model
    from understudy.models.loading import load_base
    from understudy.models.lora import trainable_parameters

    model = build_model(load_base(config).model, label_names=private.label_names, config=config)
    return {f"weight/{name}": value.detach() for name, value in trainable_parameters(model).items()}


def configured(settings: Settings, cell: Cell, private: Any) -> Any:
    """A user's settings; the learning rate is chosen as a run with or without averaging would choose it."""
    from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
    from understudy.methods.conditional_generation.method import resolve

    os.environ["UNDERSTUDY_HOME"] = str((settings.cache / "home").absolute())
    train = {"learning_rate_decay": cell.schedule == "decay", "epochs": cell.epochs, "averaging": RATES[cell.rate]}
    about = TABLES[cell.condition][2]
    given = {"model": settings.model, "about": about, "samples": settings.samples}
    # The choice is made once, for the default seed.
    config = resolve(
        ConditionalGenerationConfig.model_validate({**given, "train": train}),
        len(private.texts),
        private.label_names,
        cell.epsilon,
    )
    plain = config.train.model_copy(update={"averaging": 0.0})
    return config.model_copy(update={"train": plain, "public_seed": cell.seed})


def losses_of(trained: Any, held_out: Any, config: Any) -> np.ndarray[Any, Any]:
    """Nats per token of each held-out row behind its label's prompt."""
    from understudy.methods.conditional_generation.encode import encode
    from understudy.methods.conditional_generation.losses import lm_loss

    rows = encode(held_out, tokenizer=trained.tokenizer, config=config)
    names, found = ("input_ids", "attention_mask", "loss_mask"), []
    with torch.no_grad():
        for start in range(0, len(rows.label), 64):
            batch = {name: getattr(rows, name)[start : start + 64] for name in names}
            found.append(lm_loss(trained.model, batch, prompts=rows.prompts))
    return torch.cat(found).double().numpy()


def accuracies_of(stored: Any, held_out: Any, config: Any) -> dict[str, float]:
    """How often classifiers of drawn texts are right about held-out rows."""
    from understudy.evaluation.texts.encoder import embed, load_encoder
    from understudy.evaluation.utility import accuracy
    from understudy.methods.conditional_generation.synthesis import synthesize_stored

    # Every text is kept: what the class means add to any of them says nothing of the weights.
    plain = config.model_copy(update={"selection": config.selection.model_copy(update={"draws": 1})})
    table = synthesize_stored(stored, plain).table
    texts, labels = table["text"].to_pylist(), table["label"].to_pylist()
    encoder = load_encoder()
    probe = accuracy.fit_probe(embed(texts, encoder), labels)
    right = accuracy.score(probe(embed(list(held_out.texts), encoder)), list(held_out.labels)).accuracy
    words = right_by_words(texts, labels, held_out.texts, held_out.labels).mean()
    return {"embeddings": float(right), "words": float(words)}


def rows_of(settings: Settings, table: str, part: str) -> Any:
    """Rows that are spread evenly over a split."""
    from understudy.data.private_rows import PrivateRows

    split, names, _ = TABLES[table]
    most = settings.rows if part == "train" else settings.held_out
    rows = pq.read_table(settings.data / table / f"{part if part == 'train' else split}.parquet")
    if not pa.types.is_integer(rows["label"].type):
        raise SystemExit(f"{table}: expected labels as numbers, found {rows['label'].type}")
    rows = rows.take(np.linspace(0, rows.num_rows - 1, min(most, rows.num_rows)).astype(int))
    labels = tuple(one.partition("=")[2] for one in names.split(","))
    return PrivateRows(rows["text"].to_pylist(), rows["label"].to_pylist(), labels)


def cells_of(found: Mapping[Cell, dict[str, Any]]) -> list[dict[str, Any]]:
    """Each training's figures, with intervals over held-out rows and no row."""
    lines = []
    for cell, value in found.items():
        line = {"training": cell.name, "rate": value["rates"][0], "steps": value["steps"]}
        losses = {name: np.array(each) for name, each in value["losses"].items()}
        line |= {f"loss of {name}": float(each.mean()) for name, each in losses.items()}
        line |= {f"{decay:g} minus last": _paired(losses[str(decay)], losses[LAST]) for decay in DECAYS}
        lines.append(line | ({"accuracies": value["accuracies"]} if value["accuracies"] else {}))
    return lines


def _paired(one: Any, other: Any) -> list[float]:
    from understudy.evaluation.statistics.paired import mean_difference

    found = mean_difference(one, other, seed=0, replicates=2000, level=0.95)
    return [found.value, found.low, found.high]


def lines_of(found: Mapping[Cell, dict[str, Any]], what: str) -> list[dict[str, str]]:
    """One line per condition: the mean over seeds, with its interval."""
    groups: dict[Cell, list[dict[str, Any]]] = {}
    for cell, value in found.items():
        if value[what]:
            groups.setdefault(replace(cell, seed=0), []).append(value)
    lines = []
    for cell, values in groups.items():
        line = {
            "table": cell.condition,
            "epsilon": f"{cell.epsilon:g}",
            "learning rate": f"{values[0]['rates'][0]:g}, {cell.schedule}, chosen for {cell.rate}",
            "steps": str(values[0]["steps"]),
            "seeds": str(len(values)),
        }
        lines.append(line | (_losses if what == "losses" else _accuracies)(values))
    return lines


def _losses(values: Sequence[dict[str, Any]]) -> dict[str, str]:
    means = {name: np.array([np.mean(value["losses"][name]) for value in values]) for name in values[0]["losses"]}
    line = {LAST: _over_seeds(means[LAST])}
    return line | {f"{name} - last": _over_seeds(means[name] - means[LAST]) for name in map(str, DECAYS)}


def _accuracies(values: Sequence[dict[str, Any]]) -> dict[str, str]:
    line = {}
    for kind in ("embeddings", "words"):
        of = {name: np.array([value["accuracies"][name][kind] for value in values]) for name in DRAWN}
        line[f"{kind}, {LAST}"] = _over_seeds(of[LAST])
        line[f"{kind}, {DRAWN[1]} - last"] = _over_seeds(of[DRAWN[1]] - of[LAST])
    return line


def _over_seeds(values: Any) -> str:
    """Mean with Student's interval; one value has none."""
    from understudy.evaluation.statistics.paired import student_half

    mean = float(values.mean())
    if len(values) < 2:
        return f"{mean:.3f}"
    half = student_half(values)
    return interval_text((mean, mean - half, mean + half))


if __name__ == "__main__":
    main()

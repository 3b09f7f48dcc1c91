"""Claim: swaps lower the matching loss, the language model's projection keeps texts readable, each filter lowers loss.

    python benchmarks/gradient_matching_ablations.py --data ../shared/data --cache out/gradient-matching

Per data set, 50 real rows at epsilon inf and one seed. The variants match as many texts and keep all that are not
empty; accuracy is that of the shipped model after 200 steps on them, the loss 1 - cosine to the exact head gradient of
all training rows, one measure for every variant; log-perplexity, nats per token under the same model, says how it
reads. Then the filters, one more at a time, on the texts that the method's own settings matched: how many are left and
what they are worth. Accuracy reads real rows: internal. Charges are simulations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from cells import Benchmark, Call, Value, arguments, complete, parse, settings_from
from gradient_matching_data import DATASETS, Settings, configure, digest_of, read, subset, taken
from gradient_matching_data import Cell as MatchedCell
from tables import Row, print_table, write_figures

OWN = "as it is"
VARIANTS = {
    OWN: (),
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


@dataclass(frozen=True)
class Cell:
    """A variant on one data set.

    Attributes:
        dataset: of `DATASETS`.
        condition: of `VARIANTS`.
        epsilon: always infinite.
        seed: of everything public, and of which real rows are taken.
    """

    dataset: str
    condition: str
    epsilon: float = math.inf
    seed: int = 0

    @property
    def matched(self) -> MatchedCell:
        """The same as a cell of the benchmark of gradient matching."""
        return MatchedCell(self.dataset, "ablation", 50, target="sketch", seed=self.seed)

    @property
    def name(self) -> str:
        """A file name."""
        words = "-".join("".join(c if c.isalnum() else " " for c in self.condition).split())
        return f"{self.matched.name}-{words}"


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(seeds=[0])
    parser.add_argument("--datasets", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--samples", type=int, default=40, help="texts matched per variant")
    options = parse(parser)
    settings = settings_from(Settings, options, oversample=1.0, models=("tiny-llama",))
    every = [Cell(*chosen, seed=seed) for *chosen, seed in product(options.datasets, options.variants, options.seeds)]
    found = complete(Benchmark(settings, figures, digest=digest, shared=shared), every, options)
    tables = {"variants": variant_rows(found), "filters": filter_rows(found)}
    print_table(tables["variants"])
    print_table(tables["filters"], "Filters, one more at a time")
    write_figures(options.figures, tables)


def of_variant(settings: Settings, cell: Cell) -> Settings:
    """Settings of the method with what the variant changes."""
    return replace(settings, overrides=VARIANTS[cell.condition])


def digest(settings: Settings, cell: Cell) -> str:
    """Of every setting that a variant's figures depend on."""
    return digest_of(of_variant(settings, cell), cell.matched)


def shared(settings: Settings, cells: Sequence[Cell]) -> list[list[Call]]:
    """The exact gradient of every data set, which needs its states."""
    return [[partial(share, settings, name) for name in dict.fromkeys(cell.dataset for cell in cells)]]


def share(settings: Settings, dataset: str) -> None:
    """One data set's exact gradient."""
    from gradient_matching_release import yardstick

    yardstick(settings, MatchedCell(dataset, "shared", None))


def figures(settings: Settings, cell: Cell) -> Value:
    """What a variant's texts are worth and how they read; of the method's own settings also what each filter leaves."""
    from simulation import model_of

    from understudy.evaluation.texts.nearest import log_perplexities

    settings = of_variant(settings, cell)
    began = time.process_time()
    found = matched_texts(settings, cell)
    spent = time.process_time() - began
    rows = [i for i, text in enumerate(found["text"]) if text.strip()]
    result = worth(settings, cell, found, rows) | {"matching_cpu_seconds": spent}
    shown = [found["text"][row] for row in rows]
    result["log_perplexity"] = log_perplexities(model_of(settings.models[0]), {"rows": shown})["rows"]
    if cell.condition == OWN:
        result["filters"] = {name: worth(settings, cell, found, kept(settings, cell, found, name)) for name in FILTERS}
    return result | {"texts": [[label, text] for label, text in zip(found["label"], found["text"], strict=True)]}


def matched_texts(settings: Settings, cell: Cell) -> dict[str, list[Any]]:
    """Matched texts of a variant, with labels and losses to their own target."""
    import pyarrow as pa
    from gradient_matching_release import charged, register_source
    from simulation import model_of

    from understudy.data.private_rows import PrivateRows
    from understudy.methods.gradient_matching.method import charged_settings, queries
    from understudy.methods.gradient_matching.optimise import match_shard
    from understudy.methods.gradient_matching.queries import Asked, schedule_of
    from understudy.methods.gradient_matching.release import release_target
    from understudy.methods.gradient_matching.shards import shards
    from understudy.privacy.accounting import default_delta

    one, config = cell.matched, configure(settings, cell.matched)
    rows = subset(read(settings.data, cell.dataset, "train"), taken(settings, one))
    names, base = DATASETS[cell.dataset].label_names, model_of(config.model)
    asked = queries(config, n=len(rows.texts), epsilon=cell.epsilon, delta=default_delta(len(rows.texts)))
    register_source(settings, one)
    paid = Asked(charged_settings(config), schedule_of(asked), charged(settings, one, config, asked, cell.condition))
    target = release_target(PrivateRows(rows.texts, rows.labels.tolist(), names), paid, base=base)
    parts = [
        match_shard(base, target, config=config, examples=part, public_seed=cell.seed)
        for part in shards(config, len(names))
    ]
    table = pa.concat_tables(parts)
    columns = {"text": "text", "label": "label", "loss": "emitted_loss"}
    return {name: table[column].to_pylist() for name, column in columns.items()}


def kept(settings: Settings, cell: Cell, found: Mapping[str, Any], name: str) -> list[int]:
    """Numbers of the texts that a filter leaves."""
    import numpy as np
    from simulation import model_of

    from understudy.methods.gradient_matching.filters import filter_texts
    from understudy.methods.gradient_matching.verbalizer import build_verbalizer

    config = configure(settings, cell.matched)
    base = model_of(config.model)
    chosen = filter_texts(
        found["text"],
        np.asarray(found["loss"]),
        found["label"],
        base=base,
        verbalizer=build_verbalizer(base.tokenizer, DATASETS[cell.dataset].label_names, config.verbalizer),
        config=config.filter.model_copy(update=FILTERS[name]),
        max_length=config.max_length,
    )
    numbers: list[int] = chosen.rows.tolist()
    return numbers


def worth(settings: Settings, cell: Cell, found: Mapping[str, Any], rows: Sequence[int]) -> Value:
    """Number of some texts, median loss to the common yardstick, accuracy after tuning on them."""
    import numpy as np
    from gradient_matching_measures import losses, tune, verdicts
    from gradient_matching_release import yardstick

    from understudy.evaluation.rows import LabelledTexts

    if not rows:
        return {"rows": 0}
    labels = np.asarray(found["label"], np.int64)[list(rows)]
    chosen = LabelledTexts([found["text"][row] for row in rows], labels, DATASETS[cell.dataset].label_names)
    (model,) = settings.models
    right = verdicts(settings, cell.matched, model, tune(settings, cell.matched, model, chosen)).correct
    return {
        "rows": len(rows),
        "loss": float(np.median(losses(yardstick(settings, cell.matched), chosen))),
        "accuracy": float(right.mean()),
        "standard_error": float((right.mean() * (1 - right.mean()) / len(right)) ** 0.5),
    }


def variant_rows(found: Mapping[Cell, Value]) -> list[Row]:
    """One row per variant."""
    return [
        {
            "data": cell.dataset,
            "variant": cell.condition,
            **worth_text(value),
            "log-perplexity": f"{value['log_perplexity']:.2f}",
            "CPU seconds": f"{value['matching_cpu_seconds']:.0f}",
        }
        for cell, value in found.items()
    ]


def filter_rows(found: Mapping[Cell, Value]) -> list[Row]:
    """One row per filter."""
    return [
        {"data": cell.dataset, "filters": name, **worth_text(left)}
        for cell, value in found.items()
        for name, left in value.get("filters", {}).items()
    ]


def worth_text(found: Mapping[str, Any]) -> Row:
    if not found["rows"]:
        return {"texts": "0"}
    accuracy = f"{found['accuracy']:.3f} ± {found['standard_error']:.3f}"
    return {"texts": str(found["rows"]), "loss": f"{found['loss']:.4f}", "accuracy": accuracy}


if __name__ == "__main__":
    main()

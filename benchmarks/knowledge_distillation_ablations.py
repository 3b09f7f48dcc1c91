"""Ablations of knowledge distillation: the transmitting unit, the ranking by IFD, and how many private pairs there are.

Data, professional model and what is measured are those of `knowledge_distillation.py`; the loss is that of held-out
responses, in nats per token. All cells of a seed read one half of the training set as private pairs.

    eavesdropper, eavesdropper_far
                            both zones first tune the base model on the public half, by the method's own settings (one
                            pass at 2e-4) or, `far`, in five passes at 2e-3; that base is made once.
                            The adapter on its way to the server and the one on its way back are intercepted. Each is
                            put on the base that it was made for, and on the public base, which an eavesdropper has
    distilled, dp_only      the method, and its adapter before the server's part, with each of `--sizes` private pairs
    public_only, base       the method without the private half, and the base model as it is
    ranked, unranked, together
                            the method as it ranks by IFD, without ranking, and with the paper's ranking of all pairs
                            together. They draw six instructions for each wanted pair: of the two that are the default
                            the filters leave hardly more pairs than are wanted, and a ranking has nothing to choose

    python benchmarks/knowledge_distillation_ablations.py --data FOLDER --cache FOLDER --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cells
import knowledge_distillation as whole
import pyarrow as pa
import pyarrow.parquet as pq
from knowledge_distillation_data import ABOUT, Settings, halves
from knowledge_distillation_tables import difference, level
from tables import Row, print_table, write_figures

EAVESDROPPING = ("eavesdropper", "eavesdropper_far")
RANKING = ("ranked", "unranked", "together")
WITHOUT_PRIVATE = ("base", "public_only")
CONDITIONS = (*EAVESDROPPING, "distilled", "dp_only", "public_only", "base", *RANKING)
RANKED_DRAWS = 6.0
# How far the seed set moves the base in `eavesdropper_far`.
FAR_EPOCHS, FAR_RATE = 5, 2e-3
PLACES = {"sent": "on its way to the server", "returned": "on its way back"}


@dataclass(frozen=True)
class Cell:
    """One condition with a number of private pairs."""

    data: str
    condition: str
    epsilon: float
    seed: int
    pairs: int

    @property
    def name(self) -> str:
        """A file name."""
        return f"distillation-ablation-{self.data}-{self.condition}-{self.pairs}-{self.epsilon:g}-{self.seed}"


def figures(settings: Settings, cell: Cell) -> cells.Value:
    """Losses of held-out responses, and accuracy where answers are of a fixed set."""
    sized = replace(settings, pairs=cell.pairs)
    return intercepted(sized, cell) if cell.condition in EAVESDROPPING else by_method(sized, cell)


def by_method(settings: Settings, cell: Cell) -> cells.Value:
    """What a condition's model makes of held-out pairs."""
    from understudy.methods.knowledge_distillation import distil

    config = config_of(settings, cell)
    adapter = None if cell.condition in WITHOUT_PRIVATE else whole.dp_adapter(settings, cell, config)
    facts: cells.Value = {}
    if cell.condition not in ("base", "dp_only"):
        adapter, facts = improved(settings, config, adapter)
    _, _, test = halves(settings, cell)
    model = distil.dp_model(config, adapter)
    return whole.judged_on(test, model, settings=settings, config=config, data=cell.data) | facts


def config_of(settings: Settings, cell: Cell) -> Any:
    """The method's settings of a cell; every condition's adapter is that of the method."""
    config = whole.config_of(replace(settings, only_epochs=settings.epochs), cell)
    if cell.condition not in RANKING:
        return config
    draws = config.instructions.model_copy(update={"draws": RANKED_DRAWS})
    return config.model_copy(update={"instructions": draws})


def improved(settings: Settings, config: Any, adapter: Any) -> tuple[Any, cells.Value]:
    """The server's part: an adapter tuned on the pairs that it wrote, and how many of them there were."""
    from understudy.generation.instructions import pairs_of
    from understudy.methods.knowledge_distillation import distil

    made = distil.synthesise(distil.dp_model(config, adapter), config, answers=settings.cache / "answers")
    pairs = [pair for pair in pairs_of(made.table) if pair is not None]
    facts = {"made": len(pairs), "dropped": made.facts["dropped"][""]}
    return distil.improve(distil.shared_base(config), adapter, pairs, config), facts


def intercepted(settings: Settings, cell: Cell) -> cells.Value:
    """Losses under an intercepted adapter, on the base that it was made for and on the public one."""
    from understudy.methods.knowledge_distillation import distil

    public = config_of(settings, cell)
    transmitted = public.model_copy(update={"model": str(base_folder(settings, cell.data, cell.condition))})
    sent = whole.dp_adapter(settings, cell, transmitted)
    returned, value = improved(settings, transmitted, sent)
    _, _, test = halves(settings, cell)
    for base, config in (("public", public), ("transmitted", transmitted)):
        for name, adapter in (("alone", None), ("sent", sent), ("returned", returned)):
            model = distil.dp_model(config, adapter)
            found = whole.judged_on(test, model, settings=settings, config=config, data=cell.data)
            value[f"{base}_{name}"] = found["losses"]
    return value


def base_folder(settings: Settings, data: str, condition: str) -> Path:
    """Where the base model of the two zones is kept, the public one tuned on the seed set."""
    names = ("model", "public", "characters", "length")
    facts = {name: getattr(settings, name) for name in names} | {"far_epochs": FAR_EPOCHS, "far_rate": FAR_RATE}
    return settings.cache / f"transmitted-{data}-{condition}-{cells.short_digest(facts)}"


def make_base(settings: Settings, data: str, condition: str) -> None:
    """Tune the public base on the seed set as both zones do, if it is not there yet."""
    from understudy.methods.knowledge_distillation.base import shared_base
    from understudy.models.checkpoints import export_model

    folder = base_folder(settings, data, condition)
    if folder.exists():
        return
    config = config_of(settings, Cell(data, condition, math.inf, 0, settings.pairs))
    far = {"epochs": FAR_EPOCHS, "learning_rate": FAR_RATE} if condition == "eavesdropper_far" else {}
    seed = config.seed.model_copy(update={"pairs": str(seed_file(settings, data)), **far})
    base = shared_base(config.model_copy(update={"seed": seed}))
    with cells.temporary(folder, folder=True) as part:
        export_model(base.model, base.tokenizer, part)


def seed_file(settings: Settings, data: str) -> Path:
    """The public half as a table."""
    facts = {name: getattr(settings, name) for name in ("public", "characters")}
    return settings.cache / f"seed-{data}-{cells.short_digest(facts)}.parquet"


def make_seed(settings: Settings, data: str) -> None:
    """Write the seed set, if it is not there yet."""
    path = seed_file(settings, data)
    if path.exists():
        return
    public, _, _ = halves(settings, Cell(data, "base", math.inf, 0, settings.pairs))
    columns = {name: [getattr(pair, name) for pair in public] for name in ("instruction", "response")}
    with cells.temporary(path) as part:
        pq.write_table(pa.table(columns), part)


def shared(settings: Settings, waiting: Sequence[Cell]) -> list[list[Any]]:
    """The professional models of the data sets that wait, and the bases that were tuned on a seed set."""
    sets = sorted({cell.data for cell in waiting})
    bases = sorted({(cell.data, cell.condition) for cell in waiting if cell.condition in EAVESDROPPING})
    first = [partial(make, settings, data) for data in sets for make in (whole.make_professional, make_seed)]
    return [first, [partial(make_base, settings, *names) for names in bases]]


def chains(waiting: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that start from the same adapter, one after the other: the first one trains it."""
    found: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in waiting:
        alone = cell.condition if cell.condition in (*EAVESDROPPING, *WITHOUT_PRIVATE) else ""
        found.setdefault((cell.data, cell.epsilon, cell.seed, cell.pairs, alone), []).append(cell)
    return list(found.values())


def eavesdropper_rows(found: dict[Cell, cells.Value], data: str) -> list[Row]:
    """What an intercepted adapter is worth on either base: one row per seed set, epsilon and way."""
    rows: list[Row] = []
    for condition in EAVESDROPPING:
        for epsilon in sorted({cell.epsilon for cell in found if (cell.data, cell.condition) == (data, condition)}):
            own = {
                c.seed: value
                for c, value in found.items()
                if (c.data, c.condition, c.epsilon) == (data, condition, epsilon)
            }
            rows += [_eavesdropped(own, place) | {"seed set": condition, "epsilon": f"{epsilon:g}"} for place in PLACES]
    leading = ("seed set", "epsilon", "adapter")
    return [{name: row[name] for name in (*leading, *(key for key in row if key not in leading))} for row in rows]


def _eavesdropped(own: dict[int, cells.Value], place: str) -> Row:
    on_public, on_transmitted = f"public_{place}", f"transmitted_{place}"
    return {
        "adapter": PLACES[place],
        "seeds": str(len(own)),
        "public base": level(own, "public_alone"),
        "transmitted base": level(own, "transmitted_alone"),
        "adapter on transmitted base": level(own, on_transmitted),
        "minus transmitted base": between(own, on_transmitted, "transmitted_alone"),
        "adapter on public base": level(own, on_public),
        "minus public base": between(own, on_public, "public_alone"),
    }


def between(own: dict[int, cells.Value], first: str, second: str) -> str:
    """The mean of first minus second over held-out pairs, of the same cells."""
    sides = [{seed: {"losses": value[key]} for seed, value in own.items()} for key in (first, second)]
    return difference(sides[0], sides[1], "losses")


def of(found: dict[Cell, cells.Value], data: str, condition: str, pairs: int | None) -> dict[int, cells.Value]:
    """Cells of a condition with a number of pairs, by seed; None takes any."""
    return {
        c.seed: value
        for c, value in found.items()
        if (c.data, c.condition) == (data, condition) and pairs in (None, c.pairs)
    }


def size_rows(found: dict[Cell, cells.Value], data: str) -> list[Row]:
    """The method and its client half by the number of private pairs, beside the method without them."""
    control, rows = of(found, data, "public_only", None), list[Row]()
    for condition, size in [(condition, None) for condition in WITHOUT_PRIVATE] + [
        (condition, size) for condition in ("dp_only", "distilled") for size in sorted({cell.pairs for cell in found})
    ]:
        if own := of(found, data, condition, size):
            row = {"condition": condition, "private pairs": "" if size is None else str(size), "seeds": str(len(own))}
            row["loss"] = level(own, "losses")
            row["minus public_only"] = "" if condition == "public_only" else difference(own, control, "losses")
            rows.append(row | _accuracy(own))
    return rows


def ranking_rows(found: dict[Cell, cells.Value], data: str, pairs: int) -> list[Row]:
    """The method by how its pairs are ranked."""
    plain, rows = of(found, data, "ranked", pairs), list[Row]()
    for condition in RANKING:
        if own := of(found, data, condition, pairs):
            row = {"ranking": condition, "seeds": str(len(own)), "loss": level(own, "losses")}
            row["minus ranked"] = "" if condition == "ranked" else difference(own, plain, "losses")
            left_out = [value["dropped"]["ranked below"] for value in own.values()]
            row["pairs left out by rank"] = f"{sum(left_out) / len(left_out):.0f}"
            rows.append(row | _accuracy(own))
    return rows


def _accuracy(own: dict[int, cells.Value]) -> Row:
    return {"accuracy": level(own, "correct")} if all("correct" in value for value in own.values()) else {}


def every_cell(options: argparse.Namespace) -> list[Cell]:
    """Cells of the conditions that are asked for; whatever reads no private pair is there once for each seed."""
    sizes, middle = sorted(options.sizes), sorted(options.sizes)[len(options.sizes) // 2]
    found = []
    for seed in options.seeds:
        for data in options.sets:
            for condition in options.conditions:
                own = sizes if condition in ("distilled", "dp_only") and data in options.sized else [middle]
                epsilons = (options.epsilon, math.inf) if condition in EAVESDROPPING else (options.epsilon,)
                if condition in EAVESDROPPING and data not in options.sized:
                    continue
                found += [Cell(data, condition, epsilon, seed, size) for epsilon in epsilons for size in own]
    return found


def digest(settings: Settings, cell: Cell) -> str:
    """Of the settings that a cell depends on; its own number of pairs is in its name."""
    facts = {name: str(value) for name, value in vars(settings).items() if name not in ("data", "cache", "pairs")}
    return cells.short_digest(facts | {"far_epochs": str(FAR_EPOCHS), "far_rate": str(FAR_RATE)})


def main() -> None:
    parser: argparse.ArgumentParser = cells.arguments(__doc__)
    plain = Settings(Path(), Path())
    parser.add_argument("--model", default=plain.model)
    cells.add_numbers(parser, plain, but=("pairs", "only_epochs"))
    parser.add_argument("--sets", nargs="+", default=list(ABOUT), choices=list(ABOUT))
    parser.add_argument("--sized", nargs="+", default=["medical_dialogue"], help="sets with all sizes and adapters")
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=list(CONDITIONS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[225, 450, 900], help="private pairs")
    parser.add_argument("--epsilon", type=float, default=8.0)
    options = cells.parse(parser)
    settings = cells.settings_from(Settings, options, pairs=min(options.sizes))
    benchmark = cells.Benchmark(
        settings, figures, digest=digest, shared=shared, chains=chains, minutes=dict.fromkeys(CONDITIONS, 2.0)
    )
    found = cells.complete(benchmark, every_cell(options), options)
    middle, tables = sorted(options.sizes)[len(options.sizes) // 2], {}
    for data in options.sets:
        tables[f"{data}: eavesdropper"] = eavesdropper_rows(found, data)
        tables[f"{data}: private pairs"] = size_rows(found, data)
        tables[f"{data}: ranking, {middle} private pairs"] = ranking_rows(found, data, middle)
    for title, rows in tables.items():
        if rows:
            print_table(rows, title=title)
    write_figures(options.figures, {title: rows for title, rows in tables.items() if rows})


if __name__ == "__main__":
    main()

"""The tables of the preference-optimisation benchmark, from finished cells alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from preference_optimization_data import Cell, Settings
from tables import Row, print_table, write_figures

Value = dict[str, Any]
Found = Mapping[Cell, Value]
Floats = npt.NDArray[np.float64]

_RECOVERED = {"standardise": "standardised", "none": "raw", "paper": "among 1800 prompts, 20 rounds"}
_REPLICATES = 2000
_ORDER = (
    "epsilon-0",
    "public-seeds",
    "prompt-only",
    "popri",
    "popri-shuffled",
    "pe",
    "pe+sft",
    "real-as-many",
    "real",
)


def print_tables(found: Found, *, settings: Settings, path: Path) -> None:
    """Print as markdown what the cells give, and write it as JSON."""
    said = (
        f"{settings.clients} clients, K {settings.prompts}, J {settings.per_prompt}, T {settings.rounds}, "
        f"rejected rank {settings.rejected_rank}, {settings.tokens} tokens, {settings.samples} texts, downstream model "
        f"{settings.epochs} epochs" + "".join(f", {override}" for override in settings.overrides)
    )
    print(said)
    lines = grouped(found)
    made = {
        "rounds": round_rows(lines),
        "fell": fall_rows(lines),
        "recovery": recovery_rows(lines),
        "next token": token_rows(lines),
    }
    print_table(made["rounds"], "Frechet distance to held-out samples, per round")
    print_table(made["fell"], "Round T against round 1 and against the shuffled control")
    print_table(made["recovery"], "First round's preferences that noise leaves as they are")
    print_table(made["next token"], "Next-token accuracy on held-out clients")
    write_figures(path, made, settings=said)


def grouped(found: Found) -> dict[Cell, list[Value]]:
    """Cells of one line, in the order of their seeds, under the line's cell of seed -1."""
    lines: dict[Cell, list[Value]] = {}
    for cell, value in sorted(found.items(), key=lambda item: item[0].seed):
        lines.setdefault(Cell(cell.condition, cell.epsilon, cell.population, -1), []).append(value)
    return dict(sorted(lines.items(), key=lambda item: place(item[0])))


def place(line: Cell) -> tuple[int, float, int]:
    """Conditions in order, the largest epsilon first, the real clients before simulated ones."""
    return _ORDER.index(line.condition) if line.condition in _ORDER else len(_ORDER), -line.epsilon, line.population


def round_rows(lines: Mapping[Cell, list[Value]]) -> list[Row]:
    """One row per condition with rounds: distance, spread and surviving preferences of every round."""
    rows = []
    for line, values in lines.items():
        if "rounds" not in values[0]:
            continue
        rounds = [[one["rounds"][number] for one in values] for number in range(len(values[0]["rounds"]))]
        row = start(line, values)
        for number, of_round in enumerate(rounds, start=1):
            row[f"round {number}"] = f"{mean(np.mean(one['frechet']) for one in of_round):.4f}"
        row["texts"] = f"{mean(np.mean(value['final']['frechet']) for value in values):.4f}"
        row["real to real"] = f"{mean(np.mean(one['frechet_floor']) for one in rounds[0]):.4f}"
        row["rows per set"] = ", ".join(
            str(rows) for rows in sorted({rows for of in rounds for one in of for rows in one["frechet_rows"]})
        )
        row["distance to medoid"] = ends(rounds, "medoid_distance", ".3f")
        row["recovery"] = ends(rounds, "recovery", ".0%")
        rows.append(row)
    return rows


def fall_rows(lines: Mapping[Cell, list[Value]]) -> list[Row]:
    """Whether the last round's candidates are nearer than the first's, and than the control's: seed by seed."""
    rows = []
    for line, values in lines.items():
        if line.condition != "popri":
            continue
        control = {
            value["seed"]: value for value in lines.get(Cell("popri-shuffled", math.inf, line.population, -1), [])
        }
        falls = [fall(value) for value in values]
        row = start(line, values)
        row["round T minus round 1"] = each(falls)
        row["below round 1"] = f"{sum(one < 0 for one in falls)} of {len(falls)} seeds"
        if line.epsilon == math.inf:
            pairs = [(value, control[value["seed"]]) for value in values if value["seed"] in control]
            differences = [last(value) - last(other) for value, other in pairs]
            row["round T minus shuffled"] = each(differences)
            row["below shuffled"] = f"{sum(one < 0 for one in differences)} of {len(differences)} seeds"
        rows.append(row)
    return rows


def fall(value: Value) -> float:
    return last(value) - float(np.mean(value["rounds"][0]["frechet"]))


def last(value: Value) -> float:
    return float(np.mean(value["rounds"][-1]["frechet"]))


def recovery_rows(lines: Mapping[Cell, list[Value]]) -> list[Row]:
    """One row per epsilon and population; noise alone gives one half. ± is the spread over draws of noise."""
    rows = []
    for line, values in lines.items():
        if line.condition != "recovery":
            continue
        row = {"epsilon": f"{line.epsilon:g}", "clients": f"{line.population:,}", "seeds": seeds_text(values)}
        row["noise multiplier"] = f"{values[0]['noise_multiplier']:.3g}"
        bound = float(values[0]["signal_to_noise_bound"])
        row["SNR bound"] = "infinite" if math.isinf(bound) else f"{bound:.3g}"
        for name, words in _RECOVERED.items():
            rates = [rate for value in values for rate in value[name]["recovery"]]
            row[words] = f"{np.mean(rates):.1%} ± {np.std(rates):.1%}"
        rows.append(row)
    return sorted(rows, key=lambda row: (int(row["clients"].replace(",", "")), -float(row["epsilon"])))


def token_rows(lines: Mapping[Cell, list[Value]]) -> list[Row]:
    """One row per condition: accuracy, difference to Private Evolution at the same epsilon, share of the gap closed."""
    from understudy.evaluation.utility.next_token import share_of_gap_closed

    tuned = {line: values for line, values in lines.items() if "tokens" in values[0]}
    untuned = tuned.get(Cell("epsilon-0", 0.0, next(iter(tuned)).population, -1)) if tuned else None
    ends_of = {
        line.condition: pooled(values).accuracy
        for line, values in tuned.items()
        if line.condition in ("epsilon-0", "real")
    }
    rows = []
    for line, values in tuned.items():
        scores = pooled(values)
        low, high = ends_of_95(drawn_accuracies(values)[0])
        own = [pooled([value]).accuracy for value in values]
        row = start(line, values)
        row["accuracy"] = f"{scores.accuracy:.4f} [{low:.4f}, {high:.4f}]"
        row["lowest, highest seed"] = f"{min(own):.4f}, {max(own):.4f}"
        row["loss per token"] = f"{scores.loss_per_token:.3f}"
        row["minus PE"] = ""
        rival = tuned.get(Cell("pe", line.epsilon, line.population, -1)) or []
        both = sorted({value["seed"] for value in values} & {value["seed"] for value in rival})
        if both and line.condition != "pe" and not line.condition.startswith("real"):
            row["minus PE"] = gain(*([v for v in side if v["seed"] in both] for side in (values, rival)))
        row["minus untuned"] = "" if not untuned or line.condition == "epsilon-0" else gain(values, untuned)
        closed = share_of_gap_closed(scores.accuracy, *ends_of.values()) if len(ends_of) == 2 else None
        row["gap closed"] = "" if closed is None else f"{closed:.0%}"
        row["Frechet (real)"] = frechet_text(values)
        row["minutes"] = f"{mean(value['seconds'] for value in values) / 60:.1f}"
        rows.append(row)
    return rows


def gain(values: Sequence[Value], others: Sequence[Value]) -> str:
    """Accuracy of some seeds minus that of others on the same clients, with its interval."""
    drawn = drawn_accuracies(values, others)
    low, high = ends_of_95(drawn[0] - drawn[1])
    return f"{pooled(values).accuracy - pooled(others).accuracy:+.4f} [{low:+.4f}, {high:+.4f}]"


def drawn_accuracies(*sides: Sequence[Value]) -> Floats:
    """(sides, replicates) accuracies of a bootstrap over clients and seeds.

    Each replicate draws clients, the same for all sides, and seeds, for each side on its own, since seed i of one side
    has nothing to do with seed i of the other. A side of one seed says nothing about seeds.

    Raises:
        ValueError: the cells were not scored on the same clients.
    """
    tokens = np.array(sides[0][0]["tokens"], dtype=np.float64)
    if any(not np.array_equal(tokens, value["tokens"]) for side in sides for value in side):
        raise ValueError(f"expected cells of the same {len(tokens)} clients, found others")
    generator = np.random.default_rng(0)
    clients = drawn_counts(len(tokens), generator)
    correct = [drawn_counts(len(side), generator) @ [value["correct"] for value in side] / len(side) for side in sides]
    found: Floats = np.stack([(clients * each_client).sum(1) for each_client in correct]) / (clients @ tokens)
    return found


def drawn_counts(things: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """(replicates, things): how often each of them is drawn, as many as there are in all."""
    return generator.multinomial(things, np.full(things, 1 / things), size=_REPLICATES)


def ends_of_95(draws: Floats) -> tuple[float, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def frechet_text(values: Sequence[Value]) -> str:
    """Distance of a condition's texts to held-out samples, and of real ones to real ones."""
    if "final" not in values[0]:
        return ""
    own, floor = (mean(np.mean(value["final"][key]) for value in values) for key in ("frechet", "frechet_floor"))
    return f"{own:.3f} ({floor:.3f})"


def pooled(values: Sequence[Value]) -> Any:
    """Scores of several seeds as one: each client's tokens are counted once per seed."""
    from understudy.evaluation.utility.next_token import ClientScores

    return ClientScores(
        tokens=np.sum([value["tokens"] for value in values], axis=0),
        correct=np.sum([value["correct"] for value in values], axis=0),
        loss=np.sum([value["loss"] for value in values], axis=0),
    )


def start(line: Cell, values: Sequence[Value]) -> Row:
    epsilon = "" if line.condition in ("epsilon-0", "prompt-only") else f"{line.epsilon:g}"
    return {
        "condition": line.condition,
        "epsilon": epsilon,
        "clients": f"{line.population:,}",
        "seeds": seeds_text(values),
    }


def seeds_text(values: Sequence[Value]) -> str:
    return ", ".join(str(value["seed"]) for value in values)


def ends(rounds: Sequence[Sequence[Value]], key: str, form: str) -> str:
    """First and last round's mean over seeds; empty where no round has it."""
    if key not in rounds[0][0]:
        return ""
    return ", ".join(f"{mean(one[key] for one in of_round):{form}}" for of_round in (rounds[0], rounds[-1]))


def each(found: Sequence[float]) -> str:
    """Every seed's figure: three are too few for an interval."""
    return ", ".join(f"{one:+.4f}" for one in found)


def mean(found: Iterable[Any]) -> float:
    return float(np.mean([float(one) for one in found]))

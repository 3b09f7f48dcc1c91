"""What a few rows with learned pseudo tokens are worth: ag_news as instructions, the topics as choices.

A cell is one condition with a seed and a way of selecting; the conditions:

- `untuned`: the base model; `full`: tuned on every row, as an expert is;
- `selected`: tuned on the selected rows; `mean_tokens`: on them behind k unlearned mean tokens;
- `nacd`: on them behind learned pseudo tokens; `beta0`: the same without the pull towards real tokens;
- `frozen`: pseudo tokens stay at the mean, the step size is learned: what the matching loss is compared with;
- `transfer_untuned`, `transfer_selected`, `transfer_text`: the other model, on the rows, and behind the tokens' text;
- `dp_carriers`, `dp_mean_tokens`, `dp_nacd`, `dp_conditional`: at `--epsilon`, as trajectory_matching_private.py says.

Experts and distillations are kept in the cache with their checkpoints, so a run that is stopped goes on where it was.
Nothing here is private: ag_news plays the part of the private set, and all other cells are at epsilon infinity.

    python benchmarks/trajectory_matching.py --data DATA --cache CACHE
    python benchmarks/trajectory_matching.py --data DATA --cache CACHE --rows 300 --steps 30 --seeds 0
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from cells import Benchmark, Call, Value, arguments, complete, parse, settings_from, short_digest, write
from tables import Row, interval_text, print_table, write_figures
from trajectory_matching_private import CONDITIONS as PRIVATE_CONDITIONS
from trajectory_matching_private import conditional, noise_of, private_expert, written

from understudy.evaluation.answers.multiple_choice import questions_of, rightly_answered
from understudy.generation.instructions import Pair, PairEncoder
from understudy.methods.trajectory_matching.carriers import choose, encoded
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.distil import Distilled, distil, mean_prompts
from understudy.methods.trajectory_matching.emission import (
    PROMPTS_FILE,
    decoded,
    load_distilled,
    save_distilled,
    with_pseudo_text,
)
from understudy.methods.trajectory_matching.experts import (
    Trajectory,
    adapters_of,
    expert_student,
    load_trajectory,
    save_trajectory,
    train_expert,
)
from understudy.methods.trajectory_matching.student import Student
from understudy.methods.trajectory_matching.training import PacedCheckpoint, Schedule, fine_tune
from understudy.methods.trajectory_matching.unroll import Weights
from understudy.models.loading import LoadedModel, load_model
from understudy.progress import Course

TOPICS = ("World", "Sports", "Business", "Sci/Tech")
QUESTION = "World, Sports, Business or Sci/Tech? "
WITHOUT_SELECTION = ("untuned", "full", "transfer_untuned", *PRIVATE_CONDITIONS)
LEARNT = {"nacd": {}, "beta0": {"beta": 0.0}, "frozen": {"trainable": "step_size"}, "dp_nacd": {}}
CONDITIONS = (
    *WITHOUT_SELECTION,
    "selected",
    "mean_tokens",
    "nacd",
    "beta0",
    "frozen",
    "transfer_selected",
    "transfer_text",
)
UNLEARNT = ("mean_tokens", "dp_mean_tokens")


@dataclass(frozen=True)
class Settings:
    """What all cells have in common."""

    data: Path
    cache: Path
    model: str = "tiny-llama"
    other: str = "tiny-gpt2"
    rows: int = 2700
    test_rows: int = 400
    characters: int = 240
    length: int = 112
    ratio: float = 0.05
    steps: int = 300
    micro_batch: int = 8
    tuning_epochs: int = 10

    def config(self, seed: int, strategy: str, **distilling: Any) -> TrajectoryMatchingConfig:
        """The method's settings of a cell."""
        return TrajectoryMatchingConfig.model_validate(
            {
                "model": self.model,
                "max_length": self.length,
                "public_seed": seed,
                "experts": {"count": 1, "private": False},
                "carrier": "selected",
                "selection": {"strategy": strategy, "ratio": self.ratio},
                "distil": {"steps": self.steps, "micro_batch": self.micro_batch, **distilling},
                "tuning": {"epochs": self.tuning_epochs},
            }
        )


@dataclass(frozen=True)
class Cell:
    """One line of a table."""

    condition: str
    strategy: str
    seed: int
    epsilon: float = field(default=math.inf)

    @property
    def name(self) -> str:
        """A file name."""
        return "-".join(("trajectory", self.condition, self.strategy, str(self.seed)))


def pairs_of_news(settings: Settings, split: str, count: int) -> list[Pair]:
    """The first rows of ag_news as questions about their topic."""
    rows = pq.read_table(settings.data / "ag_news" / f"{split}.parquet").slice(0, count).to_pylist()
    return [Pair(QUESTION + row["text"][: settings.characters], row["label_name"]) for row in rows]


def trajectory(settings: Settings, seed: int) -> Trajectory:
    """The expert of a seed that promises nothing: read, or trained from its last checkpoint."""
    config = settings.config(seed, "random")
    sizes = {name: getattr(settings, name) for name in ("model", "rows", "characters", "length")}
    name = short_digest({**sizes, "config": config.experts.model_dump()})
    folder = settings.cache / f"expert-{seed}-{name}"
    path = folder / "trajectory.safetensors"
    if not path.exists():
        base = load_model(settings.model)
        rows = PairEncoder(base.tokenizer).encode(
            pairs_of_news(settings, "train", settings.rows), max_length=settings.length
        )
        student = expert_student(base.model, config, 0)
        save_trajectory(path, train_expert(student, rows, config, 0, folder=folder / "checkpoints"))
    return load_trajectory(path)


def carriers(settings: Settings, cell: Cell) -> list[Pair]:
    """The rows that a condition tunes on, without pseudo tokens: real ones, or by way of a charge."""
    if cell.condition not in PRIVATE_CONDITIONS:
        return selected(settings, cell)
    config, pairs = settings.config(cell.seed, cell.strategy), pairs_of_news(settings, "train", settings.rows)
    rows = round(settings.ratio * settings.rows)
    if cell.condition == "dp_conditional":
        texts = [pair.instruction.removeprefix(QUESTION) for pair in pairs]
        labels = [TOPICS.index(pair.response) for pair in pairs]
        sizes: dict[str, Any] = {"rows": rows, "epsilon": cell.epsilon, "cache": settings.cache}
        found = conditional(texts, labels, TOPICS, config, **sizes)
    else:
        found = written(config, TOPICS, rows=rows, cache=settings.cache)
    return [Pair(QUESTION + row["text"][: settings.characters], TOPICS[row["label"]]) for row in found.to_pylist()]


def selected(settings: Settings, cell: Cell) -> list[Pair]:
    """The real rows that carry pseudo tokens: read, or chosen."""
    config, pairs = settings.config(cell.seed, cell.strategy), pairs_of_news(settings, "train", settings.rows)
    path = settings.cache / f"selected-{cell.strategy}-{cell.seed}-{digest_without_other(settings, cell)}.rows"
    if not path.exists():
        base = load_model(settings.model)
        student = expert_student(base.model, config, 0)
        write(path, choose(pairs, None, config, student=student, tokenizer=base.tokenizer))
    return [pairs[row] for row in json.loads(path.read_text())]


def distilled(settings: Settings, cell: Cell, condition: str, carriers: Sequence[Pair]) -> tuple[Distilled, list[str]]:
    """The pseudo tokens of a condition and their text: read, or learned from the last checkpoint on."""
    config, base = settings.config(cell.seed, cell.strategy, **LEARNT[condition]), load_model(settings.model)
    folder = settings.cache / f"{condition}-{cell.strategy}-{cell.seed}-{digest_without_other(settings, cell)}"
    student = expert_student(base.model, config, 0)
    if not (folder / PROMPTS_FILE).exists():
        rows = encoded(carriers, base.tokenizer, config)
        course = Course(PacedCheckpoint(folder / "checkpoints", per_epoch=config.distil.steps))
        found = distil(student, rows, [expert_of(settings, cell)], config, course)
        save_distilled(folder, found, decoded(found.prompts, student.vocabulary, base.tokenizer)[0])
    result, tokens = load_distilled(folder)
    return result, [str(base.tokenizer.decode(row)) for row in tokens.tolist()]


def expert_of(settings: Settings, cell: Cell) -> Trajectory:
    """The expert that a condition's tokens follow."""
    if cell.condition not in PRIVATE_CONDITIONS:
        return trajectory(settings, cell.seed)
    pairs, config = pairs_of_news(settings, "train", settings.rows), settings.config(cell.seed, cell.strategy)
    return private_expert(pairs, config, epsilon=cell.epsilon, cache=settings.cache)


def measured(student: Student, base: LoadedModel, weights: Weights, settings: Settings) -> Value:
    """Accuracy among the four topics."""
    questions = questions_of(pairs_of_news(settings, "test", settings.test_rows), candidates=TOPICS)
    with torch.no_grad():
        for name, parameter in adapters_of(student).items():
            parameter.copy_(weights[name])
    right = rightly_answered(student.lm, base.tokenizer, questions, max_length=settings.length)
    return {"accuracy": sum(right) / len(right), "correct": [int(one) for one in right]}


def figures(settings: Settings, cell: Cell) -> Value:
    """The figures of one cell."""
    transfers = cell.condition.startswith("transfer_")
    base = load_model(settings.other if transfers else settings.model)
    config = settings.config(cell.seed, cell.strategy)
    student = expert_student(base.model, config, 0)
    if cell.condition in ("untuned", "transfer_untuned"):
        return measured(student, base, student.start, settings)
    if cell.condition == "full":
        return measured(student, base, trajectory(settings, cell.seed)[-1], settings)
    pairs, prompts, found = carriers(settings, cell), None, {}
    if cell.condition in UNLEARNT:
        prompts = mean_prompts(student.vocabulary, len(pairs), config.distil.tokens)
    elif cell.condition in LEARNT or cell.condition == "transfer_text":
        result, texts = distilled(settings, cell, "nacd" if transfers else cell.condition, pairs)
        found = curve(result)
        if cell.condition in PRIVATE_CONDITIONS:
            found |= noise_of(config, rows=settings.rows, epsilon=cell.epsilon)
        prompts = None if transfers else result.prompts
        if transfers:
            asked = with_pseudo_text([pair.instruction for pair in pairs], texts)
            pairs = [replace(pair, instruction=text) for pair, text in zip(pairs, asked, strict=True)]
    schedule = Schedule(config.tuning.epochs, config.tuning.batch_size, config.tuning.learning_rate, cell.seed)
    tuned = fine_tune(student, encoded(pairs, base.tokenizer, config), schedule, prompts=prompts)
    return measured(student, base, tuned.weights, settings) | found


def curve(result: Distilled) -> Value:
    """How a distillation went: means of its last tenth."""
    tail = max(1, len(result.losses) // 10)
    return {
        "matching_loss": float(result.losses[-tail:].mean()),
        "distance": float(result.distances[-tail:].mean()),
        "step_size": result.step_size,
    }


def digest_without_other(settings: Settings, cell: Cell) -> str:
    """Of what rows and tokens depend on: not of the model that their text is moved to."""
    return digest(replace(settings, other=Settings.other), cell)


def digest(settings: Settings, cell: Cell) -> str:
    """Of everything that a cell's figures depend on."""
    # How many rows pass at a time is memory and rounding only.
    facts = {name: value for name, value in vars(settings).items() if name not in ("data", "cache", "micro_batch")}
    config = settings.config(cell.seed, cell.strategy).model_dump(exclude={"distil": {"micro_batch"}})
    if cell.condition in PRIVATE_CONDITIONS:
        facts["epsilon"] = cell.epsilon
    return short_digest({**facts, "config": config})


def shared(settings: Settings, cells: Sequence[Cell]) -> list[list[Call]]:
    """The experts, which many cells of a seed read."""
    seeds = sorted({cell.seed for cell in cells if reads_trajectory(cell.condition)})
    return [[partial(trajectory, settings, seed) for seed in seeds]]


def reads_trajectory(condition: str) -> bool:
    return condition in ("full", "transfer_text") or (condition in LEARNT and condition not in PRIVATE_CONDITIONS)


def chains(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that read one distillation go one after the other."""
    by_selection: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        by_selection.setdefault((cell.strategy, cell.seed), []).append(cell)
    return list(by_selection.values())


def table(found: dict[Cell, Value]) -> list[Row]:
    """A line per condition and way of selecting: mean over seeds, every seed, and the gain over the selected rows."""
    rows: dict[tuple[str, str], dict[int, Value]] = {}
    for cell, value in found.items():
        rows.setdefault((cell.condition, cell.strategy), {})[cell.seed] = value
    return [
        {
            "condition": condition,
            "selection": "" if condition in WITHOUT_SELECTION else strategy,
            "accuracy": f"{mean_of(values, 'accuracy'):.3f}",
            "each seed": " ".join(f"{value['accuracy']:.3f}" for value in values.values()),
            "minus selected": gain(values, rows.get((baseline_of(condition), strategy), {})),
            **{
                name: f"{mean_of(values, name):.3f}"
                for name in ("matching_loss", "distance", "step_size")
                if all(name in value for value in values.values())
            },
        }
        for (condition, strategy), values in rows.items()
    ]


def mean_of(values: Mapping[int, Value], name: str) -> float:
    return sum(value[name] for value in values.values()) / len(values)


def baseline_of(condition: str) -> str:
    """The condition whose rows carry no pseudo tokens."""
    own = {"transfer": "transfer_selected", "dp": "dp_carriers"}.get(condition.partition("_")[0], "selected")
    return "" if condition == own else own


def gain(values: Mapping[int, Value], others: Mapping[int, Value]) -> str:
    """Accuracy minus that of the others, paired by test row, over the seeds that both have; 95 % bootstrap."""
    from understudy.evaluation.statistics.intervals import paired_bootstrap

    both = sorted(values.keys() & others.keys())
    if not both:
        return ""
    correct = [np.array([side[seed]["correct"] for seed in both], dtype=bool) for side in (values, others)]
    found = paired_bootstrap(*correct, seed=0, replicates=2000, level=0.95)
    return interval_text([found.value, found.low, found.high])


def main() -> None:
    parser = arguments(__doc__)
    plain = Settings(Path(), Path())
    for name in ("rows", "test_rows", "characters", "length", "steps", "micro_batch", "tuning_epochs"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(plain, name))
    for name in ("model", "other"):
        parser.add_argument(f"--{name}", default=getattr(plain, name))
    parser.add_argument("--epsilon", type=float, default=8.0, help="of the private conditions")
    parser.add_argument("--ratio", type=float, default=plain.ratio)
    parser.add_argument("--strategies", nargs="+", default=["random", "less"])
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    options = parse(parser)
    benchmark = Benchmark(settings_from(Settings, options), figures, digest=digest, shared=shared, chains=chains)
    cells = [
        Cell(condition, strategy, seed, options.epsilon if condition in PRIVATE_CONDITIONS else math.inf)
        for seed in options.seeds
        for strategy in options.strategies
        for condition in options.conditions
        if condition not in WITHOUT_SELECTION or strategy == options.strategies[0]
    ]
    rows = table(complete(benchmark, cells, options))
    print_table(rows)
    write_figures(options.figures, {"trajectory matching": rows})


if __name__ == "__main__":
    main()

"""Claim: of gradient matching and trajectory matching the peak of memory is predicted within 25 %.

Each case is a phase of a run on a model and settings: its peak above the loaded model, beside what the method predicts
for that phase. The rows are made up, of the run's public shape: they fill the width. Phases are shortened in time
alone: a few steps, batches as large as in the run. Every figure comes from a process of its own. `smollm2` is the shape
of SmolLM2-135M with random weights (`generation_speed.py`) and the tokenizer of tiny-llama.

    python benchmarks/matching_memory.py --out matching_memory.json
    python benchmarks/matching_memory.py --cases release-head,distil-smollm2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from generation_speed import smollm2_135m
from measuring import peak_memory
from phase_peaks import parse, run

from understudy.compute import ON_CPU, Compute
from understudy.data.private_rows import PrivateRows
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.rows import Conditions, LabelledTexts
from understudy.evaluation.utility.classifier import fit_classifier
from understudy.generation.instructions import Pair, PairEncoder
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.estimate import short_matching
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.methods.gradient_matching.memory import phases as gradient_matching_phases
from understudy.methods.gradient_matching.method import METHOD as GRADIENT_MATCHING
from understudy.methods.gradient_matching.optimise import match_shard
from understudy.methods.gradient_matching.queries import Asked, schedule_of
from understudy.methods.gradient_matching.release import Target, release_target, target_dimension
from understudy.methods.gradient_matching.targets import target_space
from understudy.methods.gradient_matching.transfer import measure_transfer
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.methods.trajectory_matching.carriers import answered, encoded, load_selector
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.distil import Distilled, distil
from understudy.methods.trajectory_matching.evaluation import Emitted, evaluate_tuning
from understudy.methods.trajectory_matching.experts import expert_student, train_expert, train_private_expert
from understudy.methods.trajectory_matching.less import less_scores
from understudy.methods.trajectory_matching.peaks import phases as trajectory_matching_phases
from understudy.methods.trajectory_matching.queries import plan_of_expert, queries_of
from understudy.models.checkpoints import export_model
from understudy.models.loading import load_base, load_model
from understudy.models.room import weights_bytes
from understudy.models.shape import model_shape
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms

LABELS = ("negative", "positive")
WORDS = {"template": " It was", "words": {"negative": "bad", "positive": "great"}}
BFLOAT16 = Compute("cpu", "bfloat16", 0)
Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A phase of a run; `bfloat16` is the precision of the base model."""

    phase: str
    model: str
    settings: Settings = field(default_factory=dict)
    bfloat16: bool = False

    @property
    def compute(self) -> Compute:
        """Of the base model."""
        return BFLOAT16 if self.bfloat16 else ON_CPU


HEAD, FULL, LESS = {"target": {"kind": "head"}}, {"matching": {"gradient": "full"}}, {"selection": {"strategy": "less"}}
CASES = {
    "release-sketch": Case("release", "tiny-gpt2"),
    "release-head": Case("release", "tiny-llama", HEAD),
    "release-smollm2": Case("release", "smollm2"),
    "release-head-smollm2": Case("release", "smollm2", HEAD),
    "release-full": Case("release", "tiny-llama", FULL),
    "release-full-gpt2": Case("release", "tiny-gpt2", FULL),
    "match-gpt2": Case("match", "tiny-gpt2"),
    "match-llama": Case("match", "tiny-llama"),
    "match-head": Case("match", "tiny-llama", HEAD),
    "match-smollm2": Case("match", "smollm2", {"matching": {"batch_size": 16}}),
    "match-smollm2-bfloat16": Case("match", "smollm2", {"matching": {"batch_size": 16}}, bfloat16=True),
    "match-head-smollm2": Case("match", "smollm2", HEAD | {"matching": {"batch_size": 8}, "length": 40}),
    "match-full": Case("match", "tiny-llama", FULL),
    "match-full-8": Case("match", "tiny-gpt2", {"matching": {"gradient": "full", "batch_size": 8}}),
    "tune-llama": Case("tune", "tiny-llama"),
    "tune-gpt2-paper": Case("tune", "tiny-gpt2", {"profile": "paper"}),
    "tune-llama-paper": Case("tune", "tiny-llama", {"profile": "paper"}),
    "tune-smollm2": Case("tune", "smollm2"),
    "tune-smollm2-paper": Case("tune", "smollm2", {"profile": "paper"}),
    "classify-paper": Case("classify", "tiny-llama", {"profile": "paper"}),
    "expert-gpt2": Case("expert", "tiny-gpt2"),
    "expert-llama": Case("expert", "tiny-llama"),
    "expert-smollm2": Case("expert", "smollm2", {"experts": {"batch_size": 4}}),
    "private-gpt2": Case("private", "tiny-gpt2"),
    "private-llama": Case("private", "tiny-llama"),
    "private-smollm2": Case("private", "smollm2", {"experts": {"micro_batch": 8}}),
    "answer-smollm2": Case("answer", "smollm2", {"carrier": "written"}),
    "less-gpt2": Case("less", "tiny-gpt2", LESS),
    "less-smollm2": Case("less", "smollm2", LESS | {"experts": {"batch_size": 4}}),
    "distil-gpt2": Case("distil", "tiny-gpt2"),
    "distil-llama": Case("distil", "tiny-llama"),
    "distil-smollm2": Case("distil", "smollm2", {"distil": {"micro_batch": 2, "batch_size": 2}}),
    "distil-smollm2-bfloat16": Case(
        "distil", "smollm2", {"distil": {"micro_batch": 2, "batch_size": 2}}, bfloat16=True
    ),
    "tuning-gpt2": Case("tuning", "tiny-gpt2"),
    "tuning-transfer": Case("tuning", "tiny-gpt2", {"tuning": {"transfer": "tiny-llama"}}),
    "tuning-smollm2": Case("tuning", "smollm2", {"tuning": {"batch_size": 4}}),
}
OF_GRADIENT_MATCHING = ("release", "match", "tune", "classify")


def place(model: str, models: Path) -> str:
    """The name of a shipped model, or the folder of a random one, which is written once."""
    if model != "smollm2":
        return model
    folder = models / model
    if not folder.exists():
        folder.mkdir(parents=True)
        export_model(smollm2_135m(), load_model("tiny-llama").tokenizer, folder)
    return str(folder)


def gradient_matching(case: Case, models: Path) -> GradientMatchingConfig:
    settings = {"filter": {"label_check": False}, "verbalizer": WORDS} | case.settings
    return GradientMatchingConfig(model=place(case.model, models), **settings)


def trajectory_matching(case: Case, models: Path) -> TrajectoryMatchingConfig:
    settings = {name: dict(value) if isinstance(value, dict) else value for name, value in case.settings.items()}
    settings.setdefault("distil", {}).setdefault("micro_batch", 8)
    settings.setdefault("experts", {}).setdefault("private", case.phase == "private")
    return TrajectoryMatchingConfig(model=place(case.model, models), **settings)


def release(config: GradientMatchingConfig, case: Case) -> Callable[[], object]:
    base, rows = load_base(config, case.compute), 2 * config.target.micro_batch
    queries = GRADIENT_MATCHING.charge.queries(config, n=rows, epsilon=8.0, delta=1e-3)
    mechanisms = Mechanisms.live(KeyMaterial(b"benchmark" * 4, "benchmark", b"benchmark" * 4, queries))
    private = PrivateRows([long_text(config.max_length)] * rows, [row % 2 for row in range(rows)], LABELS)
    return partial(release_target, private, Asked(config, schedule_of(queries), mechanisms), base=base)


def match(config: GradientMatchingConfig, case: Case) -> Callable[[], object]:
    base = load_base(config, case.compute)
    verbalizer = build_verbalizer(base.tokenizer, LABELS, config.verbalizer)
    space = target_space(base.model, verbalizer, config.target, public_seed=config.public_seed)
    full = config.matching.gradient == "full"
    shape = (target_dimension(base.model, space, config),) if full else space.shape
    del space
    texts, short = config.matching.batch_size, config.model_copy(update={"matching": short_matching(config.matching)})

    def work() -> None:
        target = Target({name: torch.randn(shape) for name in LABELS}, int(config.length), base.digest, config)
        match_shard(base, target, config=short, examples=[(row % 2, row) for row in range(texts)], public_seed=0)

    return work


def tune(config: GradientMatchingConfig, case: Case) -> Callable[[], object]:
    base = load_base(config, case.compute)
    sizes = MatchingEvaluationConfig(profile=config.profile)
    few = {"steps": 2, "measure_every": 2, "max_length": min(sizes.max_length, config.max_length)}
    count = 2 * sizes.batch_size
    rows = LabelledTexts([long_text(config.max_length)] * count, [row % 2 for row in range(count)], LABELS)

    def work() -> object:
        found = measure_transfer(
            Conditions(rows, rows, rows),
            rows,
            own=config.model,
            label_words=partial(build_verbalizer, label_names=LABELS, config=config.verbalizer),
            config=sizes.model_copy(update=few),
        )
        return found, base

    return work


def classify(config: GradientMatchingConfig, _case: Case) -> Callable[[], object]:
    sizes = EvaluationConfig(profile=config.profile).classifier.model_copy(update={"epochs": 1})
    rows = LabelledTexts([long_text(sizes.max_length)] * 64, [row % 2 for row in range(64)], LABELS)
    return partial(fit_classifier, rows, config=sizes, seed=0)


def long_text(tokens: int) -> str:
    return "a text of the padded length " * tokens


def long_pairs(count: int, config: TrajectoryMatchingConfig) -> list[Pair]:
    """Different ones: equal prompts would be read once."""
    answer_ = "an answer of it " * config.max_length
    return [Pair(f"{number}: a question of some length " * config.max_length, answer_) for number in range(count)]


def expert(config: TrajectoryMatchingConfig, case: Case) -> Callable[[], object]:
    base = load_base(config, case.compute)
    few = config.model_copy(update={"experts": config.experts.model_copy(update={"epochs": 2})})
    pairs = long_pairs(config.experts.batch_size, config)

    def work() -> None:
        student = expert_student(base.model, few, 0)
        rows = PairEncoder(base.tokenizer, config.template).encode(pairs, max_length=config.max_length)
        with TemporaryDirectory() as folder:
            train_expert(student, rows, few, 0, folder=Path(folder))

    return work


def private(config: TrajectoryMatchingConfig, case: Case) -> Callable[[], object]:
    base, n = load_base(config, case.compute), 4 * config.experts.micro_batch
    few = config.model_copy(update={"experts": config.experts.model_copy(update={"epochs": 1, "batch_size": n})})
    queries = queries_of(few, n=n, epsilon=8.0, delta=1e-3)
    mechanisms = Mechanisms.live(KeyMaterial(b"benchmark" * 4, "benchmark", b"benchmark" * 4, queries))
    pairs, plan = long_pairs(n, config), plan_of_expert(few, queries, 0)

    def work() -> None:
        student = expert_student(base.model, few, 0)
        rows = PairEncoder(base.tokenizer, config.template).encode(pairs, max_length=config.max_length)
        with TemporaryDirectory() as folder:
            train_private_expert(student, rows, few, plan=plan, mechanisms=mechanisms, folder=Path(folder))

    return work


def answer(config: TrajectoryMatchingConfig, case: Case) -> Callable[[], object]:
    base = load_base(config, case.compute)
    return partial(answered, base, long_pairs(16, config), config)


def less(config: TrajectoryMatchingConfig, case: Case) -> Callable[[], object]:
    selector = load_selector(config, case.compute)
    pairs = long_pairs(4 * config.experts.batch_size, config)
    whole = config.model_copy(
        update={"selection": config.selection.model_copy(update={"warmup": 0.5, "warmup_epochs": 1})}
    )

    def work() -> None:
        student = expert_student(selector.model, whole, 0)
        rows = encoded(pairs, selector.tokenizer, whole)
        few = rows[torch.arange(2)]
        less_scores(student, rows, few, whole)

    return work


def distilling(config: TrajectoryMatchingConfig, case: Case) -> Callable[[], object]:
    base = load_base(config, case.compute)
    few = config.model_copy(update={"distil": config.distil.model_copy(update={"steps": 2})})

    def work() -> None:
        student = expert_student(base.model, few, 0)
        rows = encoded(long_pairs(config.distil.batch_size, config), base.tokenizer, config)
        snapshots = range(config.experts.epochs + 1)
        trajectories = [
            [{name: value + 1e-3 * epoch for name, value in student.start.items()} for epoch in snapshots]
            for _ in range(config.experts.count)
        ]
        distil(student, rows, trajectories, few)

    return work


def tuning(config: TrajectoryMatchingConfig, case: Case) -> Callable[[], object]:
    base, pairs = load_base(config, case.compute), long_pairs(config.tuning.batch_size, config)
    student = expert_student(base.model, config, 0)
    start = student.start
    student.adapted.unload()
    name = config.tuning.transfer
    few = config.model_copy(update={"tuning": config.tuning.model_copy(update={"epochs": 2, "questions": 16})})
    width = int(base.model.get_input_embeddings().weight.shape[1])
    prompts = torch.zeros(len(pairs), config.distil.tokens, width)
    distilled = Distilled(prompts, 0.05, torch.ones(8), torch.ones(8))

    def work() -> None:
        other = load_model(name, compute=case.compute) if name else None
        evaluate_tuning(base, Emitted(pairs, distilled, ["a b"] * len(pairs)), start, pairs, few, other=other)

    return work


WORKS: Mapping[str, Callable[..., Callable[[], object]]] = {
    "release": release,
    "match": match,
    "tune": tune,
    "classify": classify,
    "expert": expert,
    "private": private,
    "answer": answer,
    "less": less,
    "distil": distilling,
    "tuning": tuning,
}


def config_of(case: Case, models: Path) -> GradientMatchingConfig | TrajectoryMatchingConfig:
    made = gradient_matching if case.phase in OF_GRADIENT_MATCHING else trajectory_matching
    return made(case, models)


def figure(options: argparse.Namespace) -> float:
    """MiB that a process of its own takes above the loaded model."""
    case = CASES[options.case]
    work = WORKS[case.phase](config_of(case, options.models), case)
    return peak_memory(work)


# What is measured -> the phase as predictions name it.
PHASES = {
    "release": "the released gradient",
    "match": "the matching",
    "tune": "the models fine-tuned to measure",
    "classify": "the classifier that measures",
    "expert": "the experts",
    "private": "the experts",
    "answer": "the written carriers",
    "less": "the selection of rows",
    "distil": "the distillation",
    "tuning": "the tuning that measures",
}


def predicted(case: Case, models: Path) -> float:
    """MiB above the loaded model."""
    config = config_of(case, models)
    shape = model_shape(config.model)
    assert shape is not None
    if isinstance(config, GradientMatchingConfig):
        phases = gradient_matching_phases(config, shape, len(LABELS), compute=case.compute)
    else:
        phases = trajectory_matching_phases(config, shape, compute=case.compute)
    loaded = 0 if case.phase == "classify" else weights_bytes(shape, case.compute)
    return (phases[PHASES[case.phase]] - loaded) / 2**20


def main() -> None:
    run(parse(__doc__, CASES, figure), __file__, CASES, place=place, predicted=predicted)


if __name__ == "__main__":
    main()

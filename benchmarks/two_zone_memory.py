"""Claim: of knowledge distillation and preference optimisation the peak of memory is predicted within 25 %.

Each case is a phase of a run on a model and settings: its peak above the loaded models, beside what the method predicts
for that phase. Rows and texts are made up and fill the width. Phases are shortened in time alone: a few steps, batches
as large as in the run. Every figure comes from a process of its own. `smollm2` is the shape of SmolLM2-135M with
random weights and the tokenizer of tiny-llama, `distilgpt2` that of DistilGPT2.

    python benchmarks/two_zone_memory.py --out two_zone_memory.json
    python benchmarks/two_zone_memory.py --cases train-smollm2,prefer-smollm2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matching_memory import Case, long_text, place
from measuring import peak_memory
from phase_peaks import parse, run

from understudy.evaluation.texts.encoder import load_encoder
from understudy.evaluation.utility.next_token import NextTokenConfig, fine_tune
from understudy.generation.instructions import Pair
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.distil import dp_model, improve, ranked
from understudy.methods.knowledge_distillation.evaluation import EvaluationInputs, evaluate_run
from understudy.methods.knowledge_distillation.filters import judged
from understudy.methods.knowledge_distillation.instructions import draw_instructions
from understudy.methods.knowledge_distillation.peaks import phases as distillation_phases
from understudy.methods.knowledge_distillation.queries import Asked, queries_of, schedule_of
from understudy.methods.knowledge_distillation.responses import load_professional, write_responses
from understudy.methods.knowledge_distillation.train import PrivatePairs, train_on_pairs
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.dpo import train_round
from understudy.methods.preference_optimization.dpo_pairs import Pairs, encode_pairs
from understudy.methods.preference_optimization.method import resolve
from understudy.methods.preference_optimization.peaks import next_token_bytes
from understudy.methods.preference_optimization.peaks import phases as preference_phases
from understudy.methods.preference_optimization.prompts import RoundSeed, round_prompts
from understudy.methods.preference_optimization.rate import chosen_rate
from understudy.methods.preference_optimization.rounds import propose, write_texts
from understudy.methods.preference_optimization.seeds import read_seeds
from understudy.models.adapters import take_adapter, wrap
from understudy.models.checkpoints import export_model
from understudy.models.loading import load_base, load_model
from understudy.models.room import weights_bytes
from understudy.models.shape import model_shape
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms

ALL_LINEAR, SMALL_BATCH = {"lora": {"targets": "all-linear"}}, {"preferences": {"batch_size": 4}}
CASES = {
    "train-gpt2": Case("train", "tiny-gpt2"),
    "train-llama": Case("train", "tiny-llama"),
    "train-llama-all-linear": Case("train", "tiny-llama", ALL_LINEAR),
    "train-smollm2": Case("train", "smollm2"),
    "train-smollm2-bfloat16": Case("train", "smollm2", bfloat16=True),
    "train-smollm2-all-linear": Case("train", "smollm2", ALL_LINEAR | {"train": {"micro_batch": 4}}),
    "pairs-gpt2": Case("pairs", "tiny-gpt2"),
    "pairs-llama": Case("pairs", "tiny-llama"),
    "pairs-smollm2": Case("pairs", "smollm2"),
    "pairs-smollm2-bfloat16": Case("pairs", "smollm2", bfloat16=True),
    "tune-gpt2": Case("tune", "tiny-gpt2"),
    "tune-llama": Case("tune", "tiny-llama"),
    "tune-smollm2": Case("tune", "smollm2"),
    "export-llama": Case("export", "tiny-llama"),
    "export-smollm2": Case("export", "smollm2"),
    "export-smollm2-bfloat16": Case("export", "smollm2", bfloat16=True),
    "measure-llama": Case("measure", "tiny-llama"),
    "measure-smollm2": Case("measure", "smollm2"),
    "rate-llama": Case("rate", "tiny-llama"),
    "propose-gpt2": Case("propose", "tiny-gpt2"),
    "propose-llama": Case("propose", "tiny-llama"),
    "propose-smollm2": Case("propose", "smollm2"),
    "prefer-gpt2": Case("prefer", "tiny-gpt2"),
    "prefer-llama": Case("prefer", "tiny-llama"),
    "prefer-smollm2": Case("prefer", "smollm2", SMALL_BATCH),
    "prefer-smollm2-bfloat16": Case("prefer", "smollm2", SMALL_BATCH, bfloat16=True),
    "write-llama": Case("write", "tiny-llama"),
    "write-smollm2": Case("write", "smollm2"),
    "downstream-gpt2": Case("downstream", "tiny-gpt2"),
    "downstream-distilgpt2": Case("downstream", "distilgpt2"),
}
OF_DISTILLATION = ("train", "pairs", "tune", "export", "measure")
Config = KnowledgeDistillationConfig | PreferenceOptimizationConfig


def placed(model: str, models: Path) -> str:
    """As `place`; the shape of DistilGPT2 as well."""
    if model != "distilgpt2":
        return place(model, models)
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = models / model
    if not folder.exists():
        folder.mkdir(parents=True)
        with torch.random.fork_rng(devices=[]):
            export_model(GPT2LMHeadModel(GPT2Config(n_layer=6)).eval(), load_model("tiny-gpt2").tokenizer, folder)
    return str(folder)


def config_of(case: Case, models: Path) -> Config:
    name = placed(case.model, models)
    if case.phase in OF_DISTILLATION:
        return KnowledgeDistillationConfig(model=name, professional={"model": name}, **case.settings)
    config = resolve(_at_rate(PreferenceOptimizationConfig(model=name, **case.settings), 1e-4), 1)
    return _at_rate(config, "auto") if case.phase == "rate" else config


def _at_rate(config: PreferenceOptimizationConfig, rate: float | str) -> PreferenceOptimizationConfig:
    preferences = config.preferences.model_copy(update={"learning_rate": rate})
    return config.model_copy(update={"preferences": preferences})


def long_pairs(count: int, tokens: int) -> list[Pair]:
    """Different ones, whose instructions and responses take half of the width each."""
    half = "word " * (tokens // 2)
    return [Pair(f"{number}: {half}", half) for number in range(count)]


def material(queries: Any) -> Mechanisms:
    return Mechanisms.live(KeyMaterial(b"benchmark" * 4, "benchmark", b"benchmark" * 4, queries))


def train(config: KnowledgeDistillationConfig, case: Case) -> Callable[[], object]:
    base, n = load_base(config, case.compute), 16
    few = config.model_copy(update={"train": config.train.model_copy(update={"batch_size": n, "epochs": 2.0})})
    queries = queries_of(few, n=n, epsilon=8.0, delta=1e-3)
    asked = Asked(few, schedule_of(queries), material(queries))
    return partial(train_on_pairs, PrivatePairs(long_pairs(n, few.train.max_length)), asked, base=base)


def pairs(config: KnowledgeDistillationConfig, case: Case) -> Callable[[], object]:
    model, professional = load_base(config, case.compute), load_professional(config.professional, case.compute)
    for weights in professional.model.parameters():
        weights.sum()  # of a second copy of files that were found finite nobody has read a page
    asked = [f"{number} {'word ' * (config.instructions.sampling.max_new_tokens // 2)}" for number in range(64)]

    def work() -> None:
        draw_instructions(model, config, count=64)
        judged(asked, professional, config)
        write_responses(asked, professional, config)
        ranked(long_pairs(64, config.tune.max_length), model, config)

    return work


def tune(config: KnowledgeDistillationConfig, case: Case) -> Callable[[], object]:
    base = load_base(config, case.compute)
    few = config.model_copy(update={"tune": config.tune.model_copy(update={"steps": 3})})
    return partial(improve, base, None, long_pairs(config.tune.batch_size, config.tune.max_length), few)


def export(config: KnowledgeDistillationConfig, case: Case) -> Callable[[], object]:
    wrapped = wrap(load_base(config).model, rank=8, alpha=16, seed=0, targets=("q_proj", "k_proj", "v_proj", "o_proj"))
    adapter = take_adapter(wrapped)
    del wrapped

    def work() -> None:
        model = dp_model(config, adapter, case.compute.in_float32)
        with TemporaryDirectory() as folder:
            export_model(model.model, model.tokenizer, Path(folder))

    return work


def measure(config: KnowledgeDistillationConfig, case: Case) -> Callable[[], object]:
    made = long_pairs(64, config.tune.max_length)
    names = ("base", "public_only", "dp_only", "target")
    models = {name: partial(dp_model, config, None, case.compute) for name in names}
    inputs = EvaluationInputs(made, made, made, made, models)

    def work() -> None:
        evaluate_run(inputs, config=config, profile="tiny", embedder=load_encoder().encode, compute=case.compute)

    return work


def rate(config: PreferenceOptimizationConfig, _case: Case) -> Callable[[], object]:
    folder = TemporaryDirectory()
    seeds = read_seeds(config.seeds)
    return lambda: chosen_rate(config, seeds, (), kept_in=Path(folder.name))


def proposing(config: PreferenceOptimizationConfig, case: Case) -> Callable[[], object]:
    policy, seeds = load_base(config, case.compute), read_seeds(config.seeds)

    def work() -> object:
        return propose(policy, seeds, config=config, label_names=(), round=0, encode=load_encoder().encode)

    return work


def writing(config: PreferenceOptimizationConfig, case: Case) -> Callable[[], object]:
    policy, seeds = load_base(config, case.compute), read_seeds(config.seeds)
    return partial(write_texts, policy, seeds, config=config, label_names=(), trained=True)


def prefer(config: PreferenceOptimizationConfig, case: Case) -> Callable[[], object]:
    base = load_base(config, case.compute)
    shape = config.candidates.model_copy(update={"prompts": 2 * config.preferences.batch_size})
    prompts = round_prompts(read_seeds(config.seeds), shape, loaded=base, seed=RoundSeed(0, 0), about=config.about)
    texts = ["word " * (config.candidates.sampling.max_new_tokens - 1) + ending for ending in ("one", "two")]
    rows = encode_pairs(base, Pairs(prompts, texts[:1] * len(prompts), texts[1:] * len(prompts)))
    few = config.preferences.model_copy(update={"epochs": 1})

    def work() -> None:
        with TemporaryDirectory() as folder:
            train_round(base, None, rows=rows, config=few, public_seed=0, round=0, folder=Path(folder))

    return work


def downstream(config: PreferenceOptimizationConfig, case: Case) -> Callable[[], object]:
    few = downstream_config(config, case).model_copy(update={"epochs": 1})
    return partial(fine_tune, [long_text(few.max_length)] * 2 * few.batch_size, config=few, seed=0)


def downstream_config(config: PreferenceOptimizationConfig, case: Case) -> NextTokenConfig:
    """Of the profile tiny; DistilGPT2 with a fifth of the paper's texts per step, with which it would take 16 GiB."""
    batch = 16 if case.model == "tiny-gpt2" else 32
    return NextTokenConfig(base=config.model, batch_size=batch)


WORKS: Mapping[str, Callable[..., Callable[[], object]]] = {
    "train": train,
    "pairs": pairs,
    "tune": tune,
    "export": export,
    "measure": measure,
    "rate": rate,
    "propose": proposing,
    "prefer": prefer,
    "write": writing,
    "downstream": downstream,
}


def figure(options: argparse.Namespace) -> float:
    """MiB that a process of its own takes above the loaded models."""
    case = CASES[options.case]
    return peak_memory(WORKS[case.phase](config_of(case, options.models), case))


# What is measured -> the phase as predictions name it.
PHASES = {
    "train": "the adapter's training",
    "pairs": "the synthetic pairs",
    "tune": "the tuning on the pairs",
    "export": "the export",
    "measure": "the measures",
    "rate": "the search for a learning rate",
    "propose": "the candidates",
    "prefer": "the preferences",
    "write": "the texts",
}


def predicted(case: Case, models: Path) -> float:
    """MiB above the loaded models."""
    config = config_of(case, models)
    shape = model_shape(config.model)
    assert shape is not None
    if case.phase == "downstream":
        return next_token_bytes(downstream_config(config, case), shape) / 2**20
    if isinstance(config, KnowledgeDistillationConfig):
        phases = distillation_phases(config, shape, compute=case.compute, zone="both")
    else:
        phases = preference_phases(config, shape, compute=case.compute, zone="both")
    # Of pairs both models are loaded; what exports, measures and tries learning rates loads its model itself.
    loaded = {"pairs": 2, "export": 0, "measure": 0, "rate": 0}.get(case.phase, 1)
    return (phases[PHASES[case.phase]] - loaded * weights_bytes(shape, case.compute)) / 2**20


def main() -> None:
    run(parse(__doc__, CASES, figure), __file__, CASES, place=placed, predicted=predicted)


if __name__ == "__main__":
    main()

"""One small step of every kind of work that a task computes, on a given device and in a given precision.

Each takes a `Compute` and returns named tensors or texts. They serve three comparisons: nothing is left behind on the
CPU (device `meta`), bfloat16 beside float32, and a GPU beside the CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from one_device import META, on_meta
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from understudy.compute import Compute
from understudy.data.private_rows import PrivateRows
from understudy.evaluation.config import ClassifierConfig
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.texts.encoder import load_encoder
from understudy.evaluation.texts.language_model import language_model_loss_of_texts
from understudy.evaluation.utility.classifier import fit_classifier, predict
from understudy.evaluation.utility.transfer import TransferConfig, fine_tune
from understudy.generation.config import SamplingConfig
from understudy.generation.instructions import Pair
from understudy.generation.prompts import build_prompts
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.fitting import train_on_table
from understudy.methods.conditional_generation.model import Discriminator, MultitaskModel, TrainedModel
from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
from understudy.methods.conditional_generation.storage import StoredModel
from understudy.methods.conditional_generation.synthesis import synthesize_stored
from understudy.methods.gradient_matching.config import GradientMatchingConfig, VerbalizerConfig
from understudy.methods.gradient_matching.optimise import match_shard
from understudy.methods.gradient_matching.queries import Asked as TargetAsked
from understudy.methods.gradient_matching.queries import queries_of as target_queries_of
from understudy.methods.gradient_matching.queries import schedule_of as target_schedule_of
from understudy.methods.gradient_matching.release import Target, release_target
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.methods.preference_optimization.candidates import continue_prompts
from understudy.methods.preference_optimization.config import CandidateConfig, PreferenceConfig
from understudy.methods.preference_optimization.dpo import _as_found, build_trainer
from understudy.methods.preference_optimization.dpo_pairs import Pairs, encode_pairs
from understudy.methods.preference_optimization.prompts import RoundSeed
from understudy.methods.trajectory_matching.carriers import encoded
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.distil import Distilled, distil
from understudy.methods.trajectory_matching.emission import decoded
from understudy.methods.trajectory_matching.less import less_scores
from understudy.methods.trajectory_matching.student import Rows, Student
from understudy.methods.trajectory_matching.training import Schedule
from understudy.methods.trajectory_matching.training import fine_tune as train_student
from understudy.methods.trajectory_matching.unroll import Segment, squared_distance
from understudy.models.adapters import same_weights, take_adapter, with_adapter, wrap
from understudy.models.attention import implementation
from understudy.models.loading import LoadedModel, load_model
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanism_call import Recorder
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Queries

Result = dict[str, Any]
Step = Callable[[Compute], Result]

LABEL_NAMES = ("negative", "positive")
WORDS = ("bad", "good", "film", "plot", "the", "slowly", "never")
TEXTS = [" ".join(WORDS[(i * j) % 7] for j in range(1, 3 + i % 5)) for i in range(12)]
LABELS = [i % 2 for i in range(12)]
PRIVATE = PrivateRows(TEXTS, LABELS, LABEL_NAMES)
ROWS = LabelledTexts(TEXTS, LABELS, LABEL_NAMES)


@cache
def _tokenizer() -> Any:
    return load_model("tiny-llama").tokenizer


def random_base(compute: Compute) -> LoadedModel:
    """Two random layers with a shipped tokenizer, the same on every device."""
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=96,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    dtype = compute.dtype_of(sum(p.numel() for p in model.parameters()))
    model.to(dtype).set_attn_implementation(implementation("sdpa", dtype, compute.device))
    loaded = LoadedModel(model, _tokenizer(), digest="0" * 64, name="random", notes=())
    if compute.device == META:
        return on_meta(loaded)
    model.to(torch.device(compute.device))
    return loaded


def mechanisms(queries: Queries, recorder: Recorder | None = None) -> Mechanisms:
    """Of a charge with fixed keys."""
    return Mechanisms(KeyMaterial(b"k" * 32, "devices", b"s" * 32, queries), recorder)


def conditional_config(**changes: Any) -> ConditionalGenerationConfig:
    """Small settings; sections are merged."""
    data: dict[str, Any] = {
        "lora": {"rank": 2},
        "discriminator": {"width": 8, "representation": "mean"},
        "train": {"max_length": 20, "batch_size": 6, "epochs": 1.0, "micro_batch": 12},
        "generate": {"sampling": {"max_new_tokens": 2, "top_p": 0.9}, "steering": {"steps": 1}},
        "filter": {"enabled": False},
        "selection": {"draws": 1},  # class means embed every row by itself: one step shows it
        "samples": 2,
    }
    for section, value in changes.items():
        known = data.get(section)
        data[section] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return ConditionalGenerationConfig.model_validate(data)


def trained(
    config: ConditionalGenerationConfig,
    compute: Compute,
    *,
    noise: float = 1.0,
    steps: int = 1,
    recorder: Recorder | None = None,
) -> StoredModel:
    """A model after a few steps of DP training."""
    planned = schedule_of(queries_of(config, n=len(TEXTS), epsilon=float("inf"), delta=1e-3))
    trainings = tuple(
        training.model_copy(
            update={
                "steps": steps,
                "streams": tuple(s.model_copy(update={"noise_multiplier": noise}) for s in training.streams),
            }
        )
        for training in planned.trainings
    )
    planned = planned.model_copy(update={"trainings": trainings})
    asked = Asked(config, planned, mechanisms(planned.queries, recorder))
    return train_on_table(PRIVATE, asked, base=random_base(compute))


def _training(**changes: Any) -> Step:
    return lambda compute: dict(trained(conditional_config(**changes), compute).trained.model.state_dict())


def _generation(**steering: Any) -> Step:
    def run(compute: Compute) -> Result:
        config = conditional_config(generate={"sampling": {"max_new_tokens": 2, "top_p": 0.9}, "steering": steering})
        base = random_base(compute)
        head = Discriminator(16, 8, 2, generator=torch.Generator().manual_seed(1)).to(compute.device)
        model = MultitaskModel(base.model, discriminator=head).requires_grad_(False).eval()
        prompts = build_prompts(base.tokenizer, LABEL_NAMES)
        stored = StoredModel(TrainedModel(model, base.tokenizer, LABEL_NAMES, prompts), config, None)
        return {"texts": synthesize_stored(stored, config).table["text"].to_pylist()}

    return run


def matching_config(**changes: Any) -> GradientMatchingConfig:
    """Small settings."""
    data = {
        "target": {"kind": "head", "micro_batch": 12},
        "matching": {"rounds": 1, "inner_steps": 1, "batch_size": 2, "swap_sweeps": 1, "swap_width": 1},
        "length": 3,
        "max_length": 12,
        "samples": 2,
    }
    return GradientMatchingConfig.model_validate({**data, **changes})


def target(
    config: GradientMatchingConfig, compute: Compute, *, noise: float = 1.0, recorder: Recorder | None = None
) -> Target:
    """Noised sums of clipped gradients."""
    planned = target_schedule_of(target_queries_of(config, n=len(TEXTS), epsilon=float("inf"), delta=1e-3))
    planned = planned.model_copy(update={"noise_multiplier": noise})
    asked = TargetAsked(config, planned, mechanisms(planned.queries, recorder))
    return release_target(PRIVATE, asked, base=random_base(compute))


def _release(**changes: Any) -> Step:
    return lambda compute: target(matching_config(**changes), compute).tensors


def _matching(**changes: Any) -> Step:
    def run(compute: Compute) -> Result:
        # What the projection looks up cannot depend on data that are not there.
        k = 1 if compute.device == META else 8
        config = matching_config(**{"projection": {"k": k}, **changes})
        found = match_shard(
            random_base(compute),
            target(config, compute),
            config=config,
            examples=[(0, 0)] if compute.device == META else [(0, 0), (1, 0)],
            public_seed=0,
        )
        return {"texts": found["text"].to_pylist(), "relaxed": torch.tensor(found["relaxed"].to_pylist())}

    return run


PAIRS = Pairs(["Text 1: a cat\n\nText 2:"] * 2, ["the cat was good", "a good cat"], ["a bad cat", "the bad cat slowly"])
PREFERENCES = PreferenceConfig(lora_rank=2, lora_alpha=4, batch_size=2, epochs=1, learning_rate=1e-3, beta=0.3)


def _preferences(compute: Compute) -> Result:
    base = random_base(compute)
    with tempfile.TemporaryDirectory() as folder, _as_found(base.model):
        trainer = build_trainer(
            base, None, encode_pairs(base, PAIRS), config=PREFERENCES, seeds=(0, 1), folder=Path(folder), progress=None
        )
        trainer.train()
        return dict(take_adapter(trainer.model))


def _candidates(compute: Compute) -> Result:
    base = random_base(compute)
    adapter = take_adapter(wrap(same_weights(base.model), rank=2, alpha=4, seed=0))
    texts = continue_prompts(
        with_adapter(base, adapter, alpha=4),
        ["Text 1: a cat\n\nText 2:"],
        CandidateConfig(per_prompt=2, sampling=SamplingConfig(max_new_tokens=3)),
        seed=RoundSeed(0, 0),
    )
    return {"texts": texts}


def trajectory_config(**distilling: Any) -> TrajectoryMatchingConfig:
    """Small settings."""
    sizes = {"steps": 1, "inner_steps": 2, "max_start": 1, "batch_size": 2, "beta": 1.0}
    return TrajectoryMatchingConfig.model_validate(
        {
            "max_length": 64,
            "experts": {"lora_rank": 2, "batch_size": 4},
            "selection": {"projection": 16, "warmup": 0.5, "warmup_epochs": 1},
            "distil": {**sizes, **distilling},
        }
    )


def _student(compute: Compute, config: TrajectoryMatchingConfig) -> tuple[Student, Rows]:
    """The student on its device, and rows as every caller has them."""
    base = random_base(compute)
    rows = encoded([Pair(text, text) for text in TEXTS[:4]], base.tokenizer, config)
    return Student(base.model, rank=2, alpha=4.0, seed=0), rows


def _expert(compute: Compute) -> Result:
    student, rows = _student(compute, trajectory_config())
    return dict(train_student(student, rows, Schedule(1, 4, 0.03, 0, "momentum")).weights)


def _distilled(student: Student, rows: Rows, config: TrajectoryMatchingConfig) -> Distilled:
    end = {name: value + 0.01 for name, value in student.start.items()}
    if student.vocabulary.device.type != META:
        return distil(student, rows, [[student.start, end]] * config.experts.count, config)

    # There every distance reads as 0, and an expert that did not move is refused.
    def length(segment: Segment) -> float:
        return 1 + float(squared_distance(segment.start, segment.target))

    with patch.object(Segment, "length", property(length)):
        return distil(student, rows, [[student.start, end]] * config.experts.count, config)


def _distillation(compute: Compute) -> Result:
    config = trajectory_config()
    found = _distilled(*_student(compute, config), config)
    return {"prompts": found.prompts, "losses": found.losses, "distances": found.distances}


def _pseudo_text(compute: Compute) -> Result:
    config = trajectory_config(trainable="step_size", inner_steps=1)
    student, rows = _student(compute, config)
    found = _distilled(student, rows, config)
    # Tuned behind its pseudo tokens, as `evaluate-tuning` does.
    tuned = train_student(student, rows, Schedule(1, 4, 0.03, 0), prompts=found.prompts)
    tokens, texts = decoded(found.prompts, student.vocabulary, _tokenizer())
    assert tokens.shape == found.prompts.shape[:2]
    return {**tuned.weights, "texts": texts}


def _less(compute: Compute) -> Result:
    config = trajectory_config()
    student, rows = _student(compute, config)
    places = torch.arange(4, device="cpu")
    return {"scores": less_scores(student, rows[places[:2]], rows[places[3:]], config)}


def _classifier(compute: Compute) -> Result:
    config = ClassifierConfig(epochs=1, max_length=8, batch_size=6)
    fitted = fit_classifier(ROWS, config=config, seed=0, device=compute.device)
    return {"weight": fitted.head.weight.detach(), "labels": predict(fitted, TEXTS).tolist()}


def _encoder(compute: Compute) -> Result:
    return {"embeddings": torch.from_numpy(load_encoder(device=compute.device).encode(TEXTS[:2]))}


def _transfer(compute: Compute) -> Result:
    model = fine_tune(
        ROWS,
        label_words=lambda tokenizer: build_verbalizer(tokenizer, LABEL_NAMES, VerbalizerConfig()),
        config=TransferConfig(profile="tiny", steps=2, batch_size=4, max_length=8),
        seed=0,
        device=compute.device,
    )
    return {"weight": next(p.detach() for n, p in model.model.named_parameters() if "layers.3.mlp" in n)}


def _perplexity(compute: Compute) -> Result:
    base = random_base(compute)
    loss = language_model_loss_of_texts(base, TEXTS[:3], max_length=8)
    return {"loss": torch.tensor(loss)}


STEPS: dict[str, Step] = {
    "train-lora": _training(update="alternating", selection={"draws": 2}),
    "train-joint": _training(update="joint"),
    "train-all-weights": _training(lora={"rank": 0}),
    "train-filter": _training(variant="naive_filter"),
    "train-head": _training(variant="naive_pplm"),
    "release-head": _release(),
    "release-sketch": _release(target={"kind": "sketch", "sketch_dimension": 32}),
    "release-full": _release(matching={"gradient": "full"}),
    "match-top-k": _matching(),
    "match-l2": _matching(projection={"kind": "l2"}),
    "match-full": _matching(
        matching={"gradient": "full", "rounds": 1, "inner_steps": 1, "batch_size": 2, "swap_sweeps": 0}
    ),
    "generate-hidden": _generation(steer="hidden", steps=1),
    "generate-key-value": _generation(steer="key_value", steps=1, lookahead=True),
    "dpo": _preferences,
    "candidates": _candidates,
    "expert": _expert,
    "distil": _distillation,
    "pseudo-text": _pseudo_text,
    "less": _less,
    "classifier": _classifier,
    "encoder": _encoder,
    "transfer": _transfer,
    "perplexity": _perplexity,
}


def tensors_of(result: Result) -> dict[str, Tensor]:
    """The tensors among what a step returned."""
    return {name: value for name, value in result.items() if isinstance(value, Tensor)}

"""Expected time and memory of a run: one micro-batch, one step of noise and a few tokens are timed, and multiplied.

The rows are made up, of the run's public shape. Memory is predicted, not measured: what was timed is smaller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from understudy.cores import resident_memory
from understudy.data.private_rows import PrivateRows
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.measure import Conditions, LabelledTexts, evaluate_synthetic
from understudy.evaluation.texts.encoder import embed, load_encoder
from understudy.hardware import chosen
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.conditional_generation.evaluation import MOST_ROWS
from understudy.methods.conditional_generation.fitting import train_on_table
from understudy.methods.conditional_generation.generate import generate
from understudy.methods.conditional_generation.memory import (
    generation_bytes,
    recomputes,
    resolve_for,
    rows_at_a_time,
    rows_per_pass,
    training_bytes,
)
from understudy.methods.conditional_generation.model import TrainedModel
from understudy.methods.conditional_generation.queries import Asked, QuerySchedule, schedule_of
from understudy.methods.conditional_generation.row_losses import losses_of
from understudy.methods.method import Promise
from understudy.models.loading import LoadedModel, load_base
from understudy.models.packed import packed, packed_bytes
from understudy.models.shape import ModelShape
from understudy.privacy.dpsgd.plan import DpSgdPlan
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.settings import settings

# So improbable that no row is drawn: a step of noise alone.
_NOBODY = 1e-12
_TOKENS = 2
_TEXTS = 24
_READ = 8


def expected_cost(config: ConditionalGenerationConfig, promise: Promise) -> dict[str, Any]:
    """Minutes of training, generation and evaluation, and the peak of memory in MiB."""
    base = load_base(config, chosen())
    shape, held = base.shape, _held(base)
    del base
    config, schedule = resolve_for(config, shape), schedule_of(promise.queries)
    rows = rows_per_pass(config, promise.n, shape, device=settings().device_type)
    training, trained = _training_seconds(config, schedule, promise.label_names, rows=rows)
    drawing = _generation_seconds(trained, config)
    if config.selects or config.topics.active:
        each = _reading_seconds()
        # For its topic and for the class means a row is read by itself, once for both.
        training += promise.n * each
        drawing += config.selects * config.samples * config.selection.draws * each
    measuring = _evaluation_seconds(config, promise)
    if config.trains:
        measuring += _loss_seconds(trained, config, promise)
    found: dict[str, Any] = {
        "expected_training_minutes": round(training / 60, 1),
        "expected_generation_minutes": round(drawing / 60, 1),
        "expected_evaluation_minutes": round(measuring / 60, 1),
    }
    if shape is not None:
        found["expected_peak_memory_mib"] = round((held + predicted_bytes(config, promise.n, shape)) / 2**20)
    return found


def _held(base: LoadedModel) -> int:
    """Bytes that are taken before training begins: of this process, or of a GPU by the model."""
    if base.model.device.type == "cpu":
        return resident_memory()
    return sum(p.numel() * p.element_size() for p in base.model.parameters())


def predicted_bytes(config: ConditionalGenerationConfig, n: int, shape: ModelShape) -> int:
    """Peak of training and generation on n rows above the loaded model."""
    rows = rows_per_pass(config, n, shape, device=settings().device_type)
    drawn = rows_at_a_time(config, shape)
    generating = generation_bytes(config, shape, drawn) + packed_bytes(chosen(), shape.parameters)
    if not config.trains:
        return generating
    recompute = recomputes(config, shape, rows)
    training = training_bytes(config, shape, rows, recompute=recompute, device=settings().device_type)
    return max(training, generating)


def _training_seconds(
    config: ConditionalGenerationConfig, schedule: QuerySchedule, label_names: tuple[str, ...], *, rows: int
) -> tuple[float, TrainedModel]:
    """Seconds of all trainings, `rows` a pass, and what the timed steps left."""
    noise, _ = _timed(config, schedule, label_names, rows=rows, probability=_NOBODY)
    both, trained = _timed(config, schedule, label_names, rows=rows, probability=1.0)
    seconds = 0.0
    for plan, of_noise, of_both in zip(schedule.trainings, noise, both, strict=True):
        # The last micro-batch of a step is half full on average.
        passes = plan.expected_batch / rows + 0.5
        seconds += plan.steps * (of_noise + passes * max(of_both - of_noise, 0.0))
    return seconds, trained


def _timed(
    config: ConditionalGenerationConfig,
    schedule: QuerySchedule,
    label_names: tuple[str, ...],
    *,
    rows: int,
    probability: float,
) -> tuple[list[float], TrainedModel]:
    """Seconds of the second step of each training, on `rows` made-up rows; the first also sets things up."""

    def short(plan: DpSgdPlan) -> DpSgdPlan:
        return plan.model_copy(update={"n": rows, "sampling_probability": probability, "steps": 2})

    given = config.model_copy(update={"train": config.train.model_copy(update={"micro_batch": rows})})
    # Class means are timed apart.
    few = schedule.model_copy(
        update={"n": rows, "trainings": tuple(map(short, schedule.trainings)), "means_noise": None}
    )
    # Keys of no charge: what this trains on is made up, and the result is thrown away.
    mechanisms = Mechanisms.live(KeyMaterial(b"estimate" * 4, "estimate", b"estimate" * 4, few.queries))
    marks: list[float] = []
    made_up = PrivateRows(["a text of the padded length " * config.train.max_length] * rows, [0] * rows, label_names)
    stored = train_on_table(
        made_up,
        Asked(given, few, mechanisms),
        base=load_base(config, chosen()),
        progress=lambda _step, _total: marks.append(time.perf_counter()),
    )
    return [second - first for first, second in zip(marks[::2], marks[1::2], strict=True)], stored.trained


def _generation_seconds(trained: TrainedModel, config: ConditionalGenerationConfig) -> float:
    """Seconds for all draws and as many rows of the untrained model, each as long as is allowed."""
    plain = config.model_copy(update={"variant": "naive"})
    return config.selection.draws * _drawing_seconds(trained, config) + _drawing_seconds(trained, plain)


def _reading_seconds() -> float:
    """Seconds in which the sentence encoder reads one text."""
    encoder = load_encoder(device=chosen().device)
    texts = [f"made-up text {i} of a usual length, which says that something was good or bad" for i in range(_TEXTS)]
    return _seconds(lambda: [encoder.encode([text]) for text in texts]) / _TEXTS


def _drawing_seconds(trained: TrainedModel, config: ConditionalGenerationConfig) -> float:
    size, wanted = config.generate.batch_size, config.generate.sampling.max_new_tokens
    assert size != "auto"
    rows = min(size, config.samples)

    def draw(tokens: int) -> float:
        sampling = config.generate.sampling.model_copy(update={"max_new_tokens": tokens})
        few = config.generate.model_copy(update={"redraws": 0, "sampling": sampling})
        return _seconds(lambda: generate(trained, [0] * rows, config=config.model_copy(update={"generate": few})))

    # As a longer generation does from its first token on.
    with packed(trained.model.lm):
        first = draw(1)
        each = max(draw(1 + _TOKENS) - first, 0.0) / _TOKENS
    return math.ceil(config.samples / rows) * (first + each * (wanted - 1))


def _evaluation_seconds(config: ConditionalGenerationConfig, promise: Promise) -> float:
    """Seconds of everything for a few texts, and of embedding as many as are read, each as long as training has it."""
    names = promise.label_names
    made = [f"made-up text {i} about {names[i % len(names)]}, {i * i} of many" for i in range(_TEXTS)]
    rows = LabelledTexts(made, [i % len(names) for i in range(_TEXTS)], names)
    embedder = partial(embed, encoder=load_encoder(device=chosen().device))
    measuring = EvaluationConfig(profile=config.profile)
    probe = measuring.model_copy(update={"headline": "probe"})
    alike = Conditions(rows, rows, rows)
    whole = _seconds(lambda: evaluate_synthetic(alike, rows, config=probe, embedder=embedder))
    long = [f"{text}{' more' * config.train.max_length}" for text in made]
    each = _seconds(lambda: embedder(long)) / _TEXTS
    # What the class means were made of is embedded by then.
    trained_on = 0 if config.selects else min(promise.n, measuring.most_rows)
    return whole + each * (trained_on + min(_test_rows(promise), measuring.most_rows) + 2 * config.samples)


def _test_rows(promise: Promise) -> float:
    """About how many rows are held out, where no file of them is named."""
    return 0.2 * promise.n


def _loss_seconds(trained: TrainedModel, config: ConditionalGenerationConfig, promise: Promise) -> float:
    """Seconds in which two language models read held-out rows."""
    text = "a text of the padded length " * config.train.max_length
    made_up = PrivateRows([text] * _READ, [0] * _READ, promise.label_names)
    reading = losses_of(trained.model.lm, encode(made_up, tokenizer=trained.tokenizer, config=config))
    reading.values()  # the first also sets things up
    return 2 * min(_test_rows(promise), MOST_ROWS) * _seconds(reading.values) / _READ


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

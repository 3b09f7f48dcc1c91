"""Clip norm and learning rate for a model that nobody tuned for, found on its own texts before the charge.

*Clip norm.* Adam divides by the size of what it sees, so a clip norm below every per-example gradient changes the
update by nothing but the last bits: every row counts alike. One that is above some of them makes those rows count
less. So the norm is 0.1, as in the paper, halved until nine of ten of the model's own texts have a larger gradient.

*Learning rate.* Each coordinate of the noised sum is mostly noise at the sizes that DP runs have, and Adam makes a step
of the learning rate out of it. So the training is run on noise alone: the same steps, through the same mechanism, with
no row drawn. The largest rate of a short ladder is taken that raises the model's loss on its own texts by no more than
`MOST_DAMAGE`. Neither choice reads a private row, and both are made once for a model, its labels and its public words.

At epsilon inf there is no noise, and steps along one gradient add up where steps of noise undo each other. There the
training is run on half of the model's own texts, without noise and with all of them in every step, and the other half
must not lose more than `MOST_DRIFT`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from understudy.data.private_rows import PrivateRows
from understudy.generation.own_texts import write_own_texts
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import EncodedRows, encode
from understudy.methods.conditional_generation.fitting import check_model, train_on_table
from understudy.methods.conditional_generation.losses import lm_loss
from understudy.methods.conditional_generation.memory import rows_per_pass
from understudy.methods.conditional_generation.model import MultitaskModel, build_model
from understudy.methods.conditional_generation.queries import Asked, QuerySchedule, trainings_of
from understudy.methods.conditional_generation.train import objectives_of
from understudy.models.choices import question_of, remembered
from understudy.models.loading import LoadedModel
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms

# Loss in nats per token: what a run gives up at most where the rows have nothing to teach. Where they have much, a rate
# this large is worth more: with tiny-llama on 2,400 made-up notes at epsilon 8 (batch 128, 38 steps) the held-out loss
# fell by 0.81 nats at 2e-3, 1.25 at 4e-3 and 2.07 at 8e-3, where noise alone costs 0.07.
MOST_DAMAGE: Final = 0.1
# The same without noise: a larger bound, for some of the way is learnt (docs/results/untuned.md).
MOST_DRIFT: Final = 0.3
RATES: Final = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)
_FIRST: Final = 5  # of `RATES`, where the search begins
_LARGEST_NORM: Final = 0.1
_VERSION: Final = 2  # of the way these are chosen; what was remembered by another is not taken
_TEXTS: Final = 32
_GRADIENTS: Final = 12
_TOKENS: Final = 32
_STEPS: Final = 48
_STEPS_WITHOUT_NOISE: Final = 12
Harm = Callable[["Twin", float], float]
# So improbable that no row is drawn: steps of noise alone.
_NOBODY: Final = 1e-12


@dataclass(frozen=True)
class Twin:
    """The model's own texts, encoded as private rows would be.

    Attributes:
        base: loads the public model anew, for training changes it.
        rows: the texts with the labels they were asked for.
        config: of the run.
        steps: of the run's first training.
        untrained: number of texts -> loss of the public model on them, which every rate is compared with.
    """

    base: Callable[[], LoadedModel]
    rows: PrivateRows
    config: ConditionalGenerationConfig
    steps: int
    untrained: dict[int, float] = field(default_factory=dict)


def resolve_for(
    config: ConditionalGenerationConfig,
    n: int,
    label_names: Sequence[str],
    *,
    base: Callable[[], LoadedModel],
    kept_in: Path,
    epsilon: float,
) -> ConditionalGenerationConfig:
    """The settings with numbers for the clip norm and the learning rate that are `auto`.

    Args:
        config: `model_digest` may be empty.
        n: slots, public.
        label_names: every label, public.
        base: loads the public model; called only where nothing is remembered.
        kept_in: folder of earlier choices.
        epsilon: of the run; at infinity another rule gives the learning rate.

    Raises:
        InputError: as `check_model`.
    """
    train = config.train
    wanted = [name for name in ("l2_clip_norm", "learning_rate") if getattr(train, name) == "auto"]
    if not wanted:
        return config
    steps = trainings_of(config, n, noise_multiplier=1.0)[0].steps
    question = {
        **question_of(config, label_names, of="clip norm and learning rate", version=_VERSION),
        "prompt": config.prompt.model_dump(mode="json"),
        "steps": steps,
        "trained": [config.lora.model_dump(mode="json"), train.frozen_layers, train.learning_rate_decay],
        "stream": [config.variant, config.update, config.discriminator.model_dump(mode="json")],
        "max_length": train.max_length,
        **({} if math.isfinite(epsilon) else {"noise": "none"}),
        **({"averaging": train.averaging} if train.averaging else {}),
        **({"topics": list(map(list, config.topics.found))} if config.topics.active else {}),
    }
    harm = (damage, MOST_DAMAGE) if math.isfinite(epsilon) else (drift, MOST_DRIFT)

    def choose() -> dict[str, Any]:
        check_model(config, label_names)
        twin = Twin(base, own_rows(base(), label_names, config), config, steps)
        choices: dict[str, Callable[[Twin], float]] = {
            "l2_clip_norm": clip_norm,
            "learning_rate": partial(learning_rate, harm=harm),
        }
        return {name: choices[name](twin) for name in wanted}

    chosen = remembered({**question, "wanted": wanted}, choose, folder=kept_in)
    return config.model_copy(update={"train": train.model_copy(update=chosen)})


def own_rows(base: LoadedModel, label_names: Sequence[str], config: ConditionalGenerationConfig) -> PrivateRows:
    """Texts that the public model writes for each label, in the place of private rows."""
    texts, labels = write_own_texts(
        base,
        label_names,
        about=config.about,
        per_label=math.ceil(_TEXTS / len(label_names)),
        tokens=min(_TOKENS, config.train.max_length - 1),
        public_seed=config.public_seed,
        prompt=config.prompt,
    )
    return PrivateRows(texts, labels, tuple(label_names))


def clip_norm(twin: Twin) -> float:
    """0.1, halved until nine of ten texts have a larger gradient of the run's first stream."""
    base = twin.base()
    model = build_model(base.model, label_names=twin.rows.label_names, config=twin.config)
    rows = encode(twin.rows, tokenizer=base.tokenizer, config=twin.config)
    stream = trainings_of(twin.config, len(rows.label), noise_multiplier=1.0)[0].streams[0].name
    objective = objectives_of(model, rows, twin.config)[stream]
    spread = range(0, len(rows.label), math.ceil(len(rows.label) / _GRADIENTS))
    parameters = list(objective.parameters.values())
    norms = sorted(_gradient_norm(model, objective.loss, parameters, rows, row) for row in spread)
    tenth, norm = norms[len(norms) // 10], _LARGEST_NORM
    while norm > tenth > 0:
        norm /= 2
    return norm


def _gradient_norm(
    model: nn.Module, loss: Callable[..., torch.Tensor], parameters: list[nn.Parameter], rows: EncodedRows, row: int
) -> float:
    fields = ("input_ids", "attention_mask", "loss_mask", "label", "valid")
    batch = _cut({name: getattr(rows, name)[row : row + 1] for name in fields})
    batch = {**batch, "slot": torch.tensor([row], device="cpu"), "step": torch.tensor(0, device="cpu")}
    slopes = torch.autograd.grad(loss(model, batch).sum(), parameters, allow_unused=True)
    return math.sqrt(sum(float(slope.double().square().sum()) for slope in slopes if slope is not None))


def learning_rate(twin: Twin, harm: tuple[Harm, float]) -> float:
    """The largest rate of the ladder that does at most so much harm."""
    at, (done, most) = _FIRST, harm
    if done(twin, RATES[at]) <= most:
        while at + 1 < len(RATES) and done(twin, RATES[at + 1]) <= most:
            at += 1
        return RATES[at]
    while at > 0:
        at -= 1
        if done(twin, RATES[at]) <= most:
            break
    return RATES[at]


def damage(twin: Twin, rate: float) -> float:
    """Rise of the loss on the model's own texts, in nats per token, after the run's steps on noise alone.

    A random walk's distance grows with the square root of its steps: of long trainings a part is run, at a larger rate.
    """
    steps = min(twin.steps, _STEPS)
    scaled = rate * math.sqrt(twin.steps / steps)
    return _rise(twin, scaled, trained_on=twin.rows, tested_on=twin.rows, steps=steps, noise=1.0, drawn=_NOBODY)


def drift(twin: Twin, rate: float) -> float:
    """Rise of the loss on half of the model's own texts, in nats per token, after the run's steps on the other half.

    Nothing is noised, and every step sees all of that half: no steps add up more than these do. Their way grows with
    their number: of long trainings a part is run, at a larger rate.
    """
    steps = min(twin.steps, _STEPS_WITHOUT_NOISE)
    half, other = (
        PrivateRows(twin.rows.texts[start::2], twin.rows.labels[start::2], twin.rows.label_names) for start in (0, 1)
    )
    scaled = rate * twin.steps / steps
    return _rise(twin, scaled, trained_on=half, tested_on=other, steps=steps, noise=0.0, drawn=1.0)


def _rise(
    twin: Twin, rate: float, *, trained_on: PrivateRows, tested_on: PrivateRows, steps: int, noise: float, drawn: float
) -> float:
    base, train = twin.base(), twin.config.train
    # As many rows a pass as in the run, whose steps are larger.
    rows_of_run = rows_per_pass(twin.config, train.batch_size, base.shape)
    rates = {"learning_rate": rate, "discriminator_learning_rate": rate}
    train = train.model_copy(update={**rates, "micro_batch": rows_of_run})
    config = twin.config.model_copy(update={"train": train, "class_sizes": "balanced"})
    plans = trainings_of(config, len(trained_on.texts), noise_multiplier=noise)[:1]
    plan = plans[0].model_copy(update={"sampling_probability": drawn, "steps": steps})
    schedule = QuerySchedule(n=plan.n, trainings=(plan,))
    # Keys of no charge: no private row is there.
    mechanisms = Mechanisms.live(KeyMaterial(b"own-text" * 4, "own-text", b"own-text" * 4, schedule.queries))
    rows = encode(tested_on, tokenizer=base.tokenizer, config=config)
    # All of the texts, or the second half of them: the same ones for the same number.
    if len(tested_on.texts) not in twin.untrained:
        twin.untrained[len(tested_on.texts)] = _loss(MultitaskModel(base.model), rows)
    trained = train_on_table(trained_on, Asked(config, schedule, mechanisms), base=base).trained
    return _loss(trained.model, rows) - twin.untrained[len(tested_on.texts)]


def _loss(model: MultitaskModel, rows: EncodedRows) -> float:
    fields, losses = ("input_ids", "attention_mask", "loss_mask"), []
    device = next(model.parameters()).device
    with torch.no_grad():
        for some in torch.split(rows.attention_mask.sum(1).argsort(), 8):
            batch = _cut({name: getattr(rows, name)[some].to(device) for name in fields})
            losses.append(lm_loss(model, batch, prompts=rows.prompts))
    return float(torch.cat(losses).mean())


def _cut(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without the last columns, which nothing attends to: the texts are the model's own, their lengths public."""
    used = int(batch["attention_mask"].any(0).nonzero().max()) + 1
    return {name: values[:, :used] if values.ndim == 2 else values for name, values in batch.items()}

"""Everything of this method that private rows meet: tokens, clipped gradients, two Gaussian queries at most.

What goes in is private rows and a charged mechanism interface, what comes out is a function of the mechanisms' outputs
and public values: one target per label, released once and reused for every synthetic text. The record-and-replay proof
wraps this.

Deviations from GRADMM (section 4.5): the sum is noised, not the mean, so no class size is needed; noise is drawn once;
the texts' mean length is public or paid for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from understudy.compute import copied_to, widened_weights
from understudy.data.private_rows import PrivateRows
from understudy.durable import write_atomically
from understudy.errors import ArtifactDamaged, InputError
from understudy.frozen import Frozen
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.full_gradient import all_parameters, full_clipped_sum
from understudy.methods.gradient_matching.loss import row_states
from understudy.methods.gradient_matching.queries import LENGTH, LENGTH_SENSITIVITY, TARGET, Asked, QuerySchedule
from understudy.methods.gradient_matching.targets import TargetSpace, clipped_sum, factors, target_space
from understudy.methods.gradient_matching.verbalizer import RowTokens, Verbalizer, build_verbalizer, encode_rows
from understudy.models.loading import LoadedModel, load_base
from understudy.privacy.grid_sum import GridSum
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.naming import without_model_place
from understudy.progress import Progress
from understudy.tensor_files import load_tensors, save_tensors

# Rows whose sum is held in float64 before it is rounded to the grid.
_ROWS_IN_FLOATS = 1 << 15

TARGET_FILE = "target.safetensors"
FACTS_FILE = "target.json"
FULL = "full"


class _Facts(Frozen):
    label_names: tuple[str, ...]
    length: int
    model_digest: str
    settings: GradientMatchingConfig


@dataclass(frozen=True)
class Target:
    """What synthetic texts are matched to: released if the schedule has noise, else private.

    Attributes:
        tensors: Label name -> float32 of the shape of one gradient, in the order of the labels.
        length: Tokens of a synthetic text.
        model_digest: Of the base model whose gradient it is.
        settings: The charged settings; sketch and verbaliser follow from them. Once stored, without the place of the
            base model, which is known again by its digest.
    """

    tensors: dict[str, Tensor]
    length: int
    model_digest: str
    settings: GradientMatchingConfig

    @property
    def kind(self) -> str:
        """The space that the tensors live in: head, label_rows, sketch, or full."""
        return FULL if self.settings.matching.gradient == FULL else self.settings.target.kind

    @property
    def label_names(self) -> tuple[str, ...]:
        """Every label."""
        return tuple(self.tensors)

    @property
    def stacked(self) -> Tensor:
        """`(K, *shape)`, as the objectives take it."""
        return torch.stack(list(self.tensors.values()))


def release_target(
    private: PrivateRows, asked: Asked, *, base: LoadedModel | None = None, progress: Progress | None = None
) -> Target:
    """Sum the clipped gradients of the private rows per label and release the sums.

    *Guarantee*: that of the charge (`privacy.charged`); unit example, relation replace_special.

    Args:
        private: Rows of the source.
        asked: What was charged.
        base: Public base model, on the device to be used; None loads `config.model` to the CPU.
        progress: Called with (rows done, rows in all).

    Raises:
        InputError: The model cannot be matched, labels collide, or the schedule is for other settings.
    """
    config, schedule, mechanisms = asked.config, asked.schedule, asked.mechanisms
    label_names = private.label_names
    _check_schedule(config, schedule, rows=len(private))
    loaded = base or load_base(config)
    if config.matching.gradient == FULL:
        widened_weights(loaded.model)  # gradients by a weight are taken of no narrower one
    verbalizer = build_verbalizer(loaded.tokenizer, label_names, config.verbalizer)
    space = target_space(loaded.model, verbalizer, config.target, public_seed=config.public_seed)
    check_context(loaded, verbalizer, config)
    labels = torch.tensor(private.label_indices, dtype=torch.long, device="cpu")
    valid = torch.tensor(private.valid, dtype=torch.bool, device="cpu")
    rows = encode_rows(
        private.valid_texts, tokenizer=loaded.tokenizer, verbalizer=verbalizer, max_length=config.max_length
    )
    sums = _class_sums(loaded, space, rows, labels, valid, config=config, progress=progress)
    released = mechanisms.gaussian_sum(
        {f"label-{index:04d}": sums[index] for index in range(len(label_names))},
        sensitivity=schedule.l2_clip_norm,
        noise_multiplier=schedule.noise_multiplier,
        step=0,
        purpose=TARGET,
        once=True,
    )
    return Target(
        tensors={name: released[f"label-{index:04d}"] for index, name in enumerate(label_names)},
        length=_release_length(rows.text_tokens, valid, config=config, schedule=schedule, mechanisms=mechanisms),
        model_digest=loaded.digest,
        settings=config,
    )


def target_dimension(model: object, space: TargetSpace, config: GradientMatchingConfig) -> int:
    """Numbers in one label's target, for the signal-to-noise bound."""
    if config.matching.gradient == FULL:
        return sum(parameter.numel() for parameter in all_parameters(model).values())
    return space.dimension


def check_context(base: LoadedModel, verbalizer: Verbalizer, config: GradientMatchingConfig) -> None:
    """Refuse a text length that the model's context cannot hold.

    Raises:
        InputError: Prefix, longest text and template are more tokens than the model has positions.
    """
    positions = getattr(base.model.config, "max_position_embeddings", None)
    around = len(verbalizer.prefix_ids) + len(verbalizer.template_ids)
    if positions is not None and config.max_length + around > positions:
        raise InputError(
            f"max_length={config.max_length}: the model has {positions} positions, of which {around} are the beginning "
            f"and the template; expected at most {positions - around}, lower max_length"
        )


def save_target(target: Target, folder: Path) -> None:
    """Write a target into a folder; the same target gives the same bytes."""
    numbered = enumerate(target.tensors.values())
    save_tensors(folder / TARGET_FILE, {f"label-{index:04d}": tensor for index, tensor in numbered})
    facts = _Facts(
        label_names=target.label_names,
        length=target.length,
        model_digest=target.model_digest,
        settings=without_model_place(target.settings),
    )
    write_atomically(folder / FACTS_FILE, (facts.model_dump_json(indent=2) + "\n").encode())


def load_target(folder: Path) -> Target:
    """Read a target that `save_target` wrote, to the CPU.

    Raises:
        ArtifactDamaged: The folder holds no whole target.
    """
    tensors = load_tensors(folder / TARGET_FILE)
    try:
        facts = _Facts.model_validate_json((folder / FACTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise ArtifactDamaged(f"{folder / FACTS_FILE}: expected the facts of a target; run again") from error
    if len(tensors) != len(facts.label_names):
        raise ArtifactDamaged(f"{folder}: expected {len(facts.label_names)} targets, found {len(tensors)}; run again")
    return Target(
        tensors={name: tensors[key] for name, key in zip(facts.label_names, sorted(tensors), strict=True)},
        length=facts.length,
        model_digest=facts.model_digest,
        settings=facts.settings,
    )


def _check_schedule(config: GradientMatchingConfig, schedule: QuerySchedule, *, rows: int) -> None:
    """The sensitivity is the clip norm, so both must come from one config."""
    length_is_charged = schedule.length_noise_multiplier is not None
    if schedule.l2_clip_norm != config.target.l2_clip_norm or length_is_charged != (config.length == "as_in_data"):
        raise InputError("expected the queries of this config: clip norm or length differ; make them again")
    if schedule.n != rows:
        raise InputError(f"schedule.n={schedule.n}: expected as many slots, found {rows}; null rows keep their slots")


def _class_sums(
    base: LoadedModel,
    space: TargetSpace,
    rows: RowTokens,
    labels: Tensor,
    valid: Tensor,
    *,
    config: GradientMatchingConfig,
    progress: Progress | None,
) -> Tensor:
    """Sums `(K, *shape)` over all rows in int64 steps of the clip norm's grid, some rows at a time: private."""
    clip, device = config.target.l2_clip_norm, space.token_ids.device
    exact, some, held = GridSum(sensitivity=clip), None, 0
    for start in range(0, len(labels), config.target.micro_batch):
        batch = slice(start, start + config.target.micro_batch)
        ids, last = rows.input_ids[batch], rows.last[batch]
        y, counted = copied_to(labels[batch], device), copied_to(valid[batch], device)
        held += len(y)
        if config.matching.gradient == FULL:
            some = full_clipped_sum(base.model, space, ids, last, y, counted, clip, into=some)
        else:
            left, right = factors(space, *row_states(base.model, ids, last), y)
            some = clipped_sum(space, left, right, y, counted, clip, into=some)
        if batch.stop >= len(labels) or batch.stop % _ROWS_IN_FLOATS < config.target.micro_batch:
            # The sum may be large: it is rounded to the grid when many rows are in it, not after every few.
            exact.add({"sums": some}, units=held)
            some, held = None, 0
        if progress is not None:
            progress(min(batch.stop, len(labels)), len(labels))
    return exact.steps()["sums"]


def _release_length(
    text_tokens: Tensor,
    valid: Tensor,
    *,
    config: GradientMatchingConfig,
    schedule: QuerySchedule,
    mechanisms: Mechanisms,
) -> int:
    """Tokens of a synthetic text: as configured, or the noised mean of the real ones.

    *Guarantee*: one Gaussian query of two numbers, the rows' summed length as a share of `max_length` and their count;
    replacing one row by null moves each by at most 1, hence both by sqrt(2) in L2 norm.
    """
    if config.length != "as_in_data":
        return config.length
    assert schedule.length_noise_multiplier is not None
    counted = valid.double()
    query = {
        "length": (text_tokens.double() * counted).sum()[None] / config.max_length,
        "count": counted.sum()[None],
    }
    released = mechanisms.gaussian_sum(
        query,
        sensitivity=LENGTH_SENSITIVITY,
        noise_multiplier=schedule.length_noise_multiplier,
        step=0,
        purpose=LENGTH,
        once=True,
    )
    mean = float(released["length"]) / max(1.0, float(released["count"])) * config.max_length
    return max(1, min(config.max_length, round(mean)))

"""What is left of the released target for whoever knows all rows but the canaries of an audit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import torch
from torch import Tensor

from understudy.auditing.known_rows import LeftOver
from understudy.compute import copied_to
from understudy.data.private_rows import private_rows
from understudy.methods.gradient_matching import targets
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.loss import row_states
from understudy.methods.gradient_matching.queries import schedule_of
from understudy.methods.gradient_matching.release import FULL, load_target
from understudy.methods.gradient_matching.verbalizer import Verbalizer, build_verbalizer, encode_rows
from understudy.methods.reading import SumsToRead
from understudy.models.loading import LoadedModel, load_base
from understudy.privacy.grid import charged_sensitivity

_BATCH = 32


@dataclass(frozen=True)
class _Reader:
    """The public model, and where its gradients live."""

    base: LoadedModel
    verbalizer: Verbalizer
    space: targets.TargetSpace
    config: GradientMatchingConfig


@dataclass(frozen=True)
class _Factors:
    """Gradients of some rows, by their factors, float64."""

    left: Tensor = field(repr=False)
    right: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    valid: Tensor = field(repr=False)


def left_over(asked: SumsToRead) -> LeftOver | None:
    """By inner products of the factors: no gradient is formed. None where all weights' gradients were released.

    Raises:
        ArtifactDamaged: the folder holds no whole target.
    """
    config, schedule = asked.settings(GradientMatchingConfig), schedule_of(asked.queries)
    target = load_target(asked.released.folder)
    if target.kind == FULL:
        return None
    base = load_base(config, asked.compute)
    verbalizer = build_verbalizer(base.tokenizer, asked.label_names, config.verbalizer)
    space = targets.target_space(base.model, verbalizer, config.target, public_seed=config.public_seed)
    reader, clip = _Reader(base, verbalizer, space, config), config.target.l2_clip_norm
    left = target.stacked.double().to(space.token_ids.device)
    added = torch.zeros_like(left)
    for some in _parts(reader, asked.others, asked.label_names):
        targets.clipped_sum(space, some.left, some.right, some.labels, some.valid, clip, into=added)
    canaries = _clipped(space, _joined(_parts(reader, asked.canaries, asked.label_names)), clip)
    left = left - added - _sum(space, canaries, clip) / 2
    return LeftOver(
        gram=_products(space, canaries).cpu(),
        against=targets.inner(space, canaries.left, canaries.right, left, canaries.labels).cpu(),
        deviation=schedule.noise_multiplier * charged_sensitivity(clip),
    )


def _parts(reader: _Reader, table: pa.Table, label_names: tuple[str, ...]) -> Iterator[_Factors]:
    """A few rows at a time: a left factor may be as long as the vocabulary."""
    private = private_rows(table, label_names)
    device = reader.space.token_ids.device
    rows = encode_rows(
        private.valid_texts,
        tokenizer=reader.base.tokenizer,
        verbalizer=reader.verbalizer,
        max_length=reader.config.max_length,
    )
    labels = copied_to(torch.tensor(private.label_indices, dtype=torch.long, device="cpu"), device)
    valid = copied_to(torch.tensor(private.valid, dtype=torch.bool, device="cpu"), device)
    for start in range(0, len(labels), _BATCH):
        some = slice(start, start + _BATCH)
        states = row_states(reader.base.model, rows.input_ids[some], rows.last[some])
        left, right = targets.factors(reader.space, *states, labels[some])
        yield _Factors(left.double(), right.double(), labels[some], valid[some])


def _joined(parts: Iterable[_Factors]) -> _Factors:
    columns = zip(*((part.left, part.right, part.labels, part.valid) for part in parts), strict=True)
    return _Factors(*(torch.cat(column) for column in columns))


def _clipped(space: targets.TargetSpace, rows: _Factors, clip: float) -> _Factors:
    """The same with the clip in the left factor."""
    norms = targets.gradient_norm(space, rows.left, rows.right)
    return _Factors(rows.left * (clip / norms).clamp(max=1.0)[:, None], rows.right, rows.labels, rows.valid)


def _sum(space: targets.TargetSpace, rows: _Factors, clip: float) -> Tensor:
    return targets.clipped_sum(space, rows.left, rows.right, rows.labels, rows.valid, clip)


def _products(space: targets.TargetSpace, rows: _Factors) -> Tensor:
    """(m, m) inner products of the rows' gradients; those of two labels are 0, for they add to different sums."""
    if space.sketch is not None:
        whole = rows.left * rows.right / math.sqrt(rows.left.shape[1])
        products = whole @ whole.T
    else:
        products = (rows.left @ rows.left.T) * (rows.right @ rows.right.T)
    return torch.where(rows.labels[:, None] == rows.labels[None], products, 0.0)

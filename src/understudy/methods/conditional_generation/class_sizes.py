"""How many rows of each label to draw (METHODS: class sizes).

The sizes are given, equal, or as in the data. The last is a look at private labels: the histogram goes through the
mechanism interface's discrete Gaussian and belongs to the run's one charge.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from understudy.errors import InputError
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig


def count_labels(label: Tensor, valid: Tensor, labels: int) -> Tensor:
    """Exact class counts `(labels,)` int64 of the rows that are not null: private."""
    return torch.bincount(label[valid], minlength=labels)


def public_sizes(config: ConditionalGenerationConfig, label_names: Sequence[str]) -> dict[str, int] | None:
    """Class sizes that need no private row; None for `as_in_data`.

    Raises:
        InputError: Sizes are given for labels that are not declared, or nothing is asked for.
    """
    if config.class_sizes == "as_in_data":
        return None
    if config.class_sizes == "balanced":
        return share_out([1.0] * len(label_names), label_names, total=config.samples)
    unknown = sorted(set(config.class_sizes) - set(label_names))
    if unknown:
        raise InputError(f"class_sizes names {unknown}: expected labels among {list(label_names)}")
    sizes = {name: config.class_sizes.get(name, 0) for name in label_names}
    if sum(sizes.values()) == 0:
        raise InputError(f"class_sizes={config.class_sizes}: expected at least one row")
    return sizes


def sizes_of(
    config: ConditionalGenerationConfig, label_names: Sequence[str], counts: Sequence[int] | None
) -> dict[str, int]:
    """Rows wanted of each label: as `public_sizes`, or by the noised histogram of the release.

    Args:
        config: asks for them.
        label_names: every label.
        counts: the histogram; read for `as_in_data` only.

    Raises:
        InputError: as `public_sizes`, or a histogram is needed and there is none.
    """
    sizes = public_sizes(config, label_names)
    if sizes is None and counts is None:
        raise InputError("class_sizes=as_in_data: expected a model released with class counts; train it with them")
    return released_sizes(counts or (), label_names, samples=config.samples) if sizes is None else sizes


def released_sizes(noisy_counts: Sequence[int], label_names: Sequence[str], *, samples: int) -> dict[str, int]:
    """Scale a noised histogram to the number of samples; negative counts become 0. Post-processing."""
    counts = [float(max(count, 0)) for count in noisy_counts]
    return share_out(counts if sum(counts) > 0 else [1.0] * len(counts), label_names, total=samples)


def share_out(weights: Sequence[float], label_names: Sequence[str], *, total: int) -> dict[str, int]:
    """Split `total` in proportion to the weights by largest remainders; ties go to the earlier label.

    >>> share_out([2, 1], ["a", "b"], total=4)
    {'a': 3, 'b': 1}
    """
    exact = [weight * total / sum(weights) for weight in weights]
    sizes = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: sizes[i] - exact[i])
    for i in by_remainder[: total - sum(sizes)]:
        sizes[i] += 1
    return dict(zip(label_names, sizes, strict=True))

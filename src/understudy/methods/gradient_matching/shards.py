"""Which texts are matched, and in which parts: read by the flow, which loads no torch for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.quantities import rounded_up

Example = tuple[int, int]  # label index, number of the text among those of its label


def wanted(config: GradientMatchingConfig, labels: int) -> list[int]:
    """Rows wanted of each label: equal shares, the first labels get what is left over."""
    return [config.samples // labels + (label < config.samples % labels) for label in range(labels)]


def shards(config: GradientMatchingConfig, labels: int) -> list[list[Example]]:
    """The texts to match, in parts of `matching.shard_size`; which text is in which part changes nothing."""
    return _in_shards(
        config,
        [
            (label, number)
            for label, rows in enumerate(wanted(config, labels))
            for number in range(rounded_up(rows * config.filter.oversample))
        ],
    )


def further_shards(
    config: GradientMatchingConfig, report: Mapping[str, Any], label_names: Sequence[str]
) -> list[list[Example]]:
    """The texts of the next wave: what each label lacks over its share of kept texts so far; empty when there is none.

    Rows that balancing dropped count as lacking: of more texts, more have a loss that it keeps.

    Args:
        config: filters and rows wanted.
        report: of the selection among all texts so far, as `Selection.report`.
        label_names: every label, public.
    """
    examples = []
    for label, (name, rows) in enumerate(zip(label_names, wanted(config, len(label_names)), strict=True)):
        missing, tried = report["shortfall"].get(name, 0) + report["unbalanced"].get(name, 0), report["drawn"][name]
        left = rounded_up(rows * config.filter.max_draws) - tried
        more = min(left, math.ceil(missing * tried / max(rows - missing, 1)))
        examples += [(label, tried + number) for number in range(more)]
    return _in_shards(config, examples)


def _in_shards(config: GradientMatchingConfig, examples: list[Example]) -> list[list[Example]]:
    size = config.matching.shard_size
    return [examples[start : start + size] for start in range(0, len(examples), size)]


def matching_settings(config: GradientMatchingConfig) -> GradientMatchingConfig:
    """The settings that matching reads: filters and the number of rows at their defaults.

    A shard that was matched before is then found again when only these change.
    """
    plain = GradientMatchingConfig(profile=config.profile)
    return config.model_copy(update={"filter": plain.filter, "samples": plain.samples})

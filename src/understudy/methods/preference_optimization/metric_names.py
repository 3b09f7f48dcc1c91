"""The metrics that only preference optimisation shows: how its rounds went."""

from __future__ import annotations

from understudy.evaluation.names import MetricName

METRIC_NAMES: tuple[MetricName, ...] = (
    MetricName(
        "rounds.frechet.round_{i}",
        "Frechet distance of the candidates of round {i} to held-out samples, sets of equal size",
        "distance",
        "lower",
    ),
    MetricName("rounds.frechet_floor", "The same of real samples to real samples", "distance", "context"),
    MetricName(
        "rounds.medoid_distance.round_{i}",
        "Median distance of the candidates of round {i} to their medoid, in the sentence embedding",
        "distance",
        "context",
    ),
    MetricName(
        "rounds.recovery.round_{i}",
        "Share of the preferences of round {i} that hold without noise and clipping too",
        "share",
        "higher",
    ),
    MetricName(
        "cut.train.clients",
        "How many clients had the end of a document left out, as a sample too short to count",
        "rows",
        "lower",
    ),
)

"""The metrics that only preference optimisation shows: how its rounds went, and what one costs a client."""

from __future__ import annotations

from understudy.evaluation.metric_name import Better, MetricName

_TRANSFER: tuple[tuple[str, str, str, Better], ...] = (
    ("floats", "Numbers", "numbers", "lower"),
    ("seconds", "Seconds at the assumed rate for the numbers", "seconds", "lower"),
    ("mbit_per_second", "Assumed rate for the numbers", "Mbit/s", "context"),
)

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
    *(
        MetricName(f"costs.{way}.{figure}", f"{meaning}, {whose}", unit, better)
        for way, whose in (("download", "that a client receives in a round"), ("upload", "that it sends"))
        for figure, meaning, unit, better in _TRANSFER
    ),
    MetricName(
        "costs.scoring.seconds",
        "Processor time in which a made-up client of one sample scores the candidates of a round",
        "seconds",
        "lower",
    ),
    MetricName(
        "cut.train.clients",
        "How many clients had the end of a document left out, as a sample too short to count",
        "rows",
        "lower",
    ),
)

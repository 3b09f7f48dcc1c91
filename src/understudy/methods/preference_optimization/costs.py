"""What a round costs one client: numbers received and sent, and seconds (POPri, section 5.1 and Table 2).

The numbers follow from the settings: the embeddings of all candidates come down, one score of each goes up. Seconds of
transfer are computed from them at the bandwidth that the settings declare, for there is no network to measure. The
paper names none.

Seconds of scoring are measured: processor time of the run's own code for one client. That client is made up, of one
sample, and scores the real candidates, which are as released as the round's model. What a real client takes depends on
its texts, with the histogram on how many there are. An average over all slots would still be one client's own where the
others are null. So no clock runs over private rows, not even for a figure that stays in `internal/`.

*Deviations*: processor seconds, where the paper has seconds of a GPU. A client's own samples are embedded once for all
rounds, which is in neither. Under masked aggregation keys and shares are exchanged as well, which is not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from understudy.evaluation.metrics import Metrics
from understudy.methods.preference_optimization.clients import client_means
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.metric_names import METRIC_NAMES
from understudy.methods.preference_optimization.pool import ClientPool
from understudy.methods.preference_optimization.release import every_vector
from understudy.methods.preference_optimization.stored import Candidates

# Bytes of a number: float32, and the longest word of a masked sum.
_FLOAT, _WORD = 4, 8
_REPEATS = 5


def measure_costs(
    candidates: Candidates, config: PreferenceOptimizationConfig, *, clock: Callable[[], float] = time.process_time
) -> Metrics:
    """Numbers, seconds of transfer and seconds of scoring of one client in one round.

    Args:
        candidates: of a round; public or released.
        config: the scorer, how sums are protected, and the bandwidth.
        clock: seconds of this process.
    """
    count, dimension = candidates.embeddings.shape
    width = _WORD if config.scoring.aggregation == "masked" else _FLOAT
    costs = config.costs
    return Metrics(
        values={
            "costs.download.floats": float(count * dimension),
            "costs.upload.floats": float(count),
            "costs.download.seconds": seconds_of(count * dimension, _FLOAT, costs.download_mbit_per_second),
            "costs.upload.seconds": seconds_of(count, width, costs.upload_mbit_per_second),
            "costs.download.mbit_per_second": costs.download_mbit_per_second,
            "costs.upload.mbit_per_second": costs.upload_mbit_per_second,
            "costs.scoring.seconds": seconds_of_scoring(candidates, config, clock=clock),
        },
        declared=METRIC_NAMES,
    )


def seconds_of(numbers: int, width: int, mbit_per_second: float) -> float:
    """Seconds in which so many numbers of `width` bytes pass.

    >>> seconds_of(18_000 * 384, 4, 50.0)
    4.42368
    """
    return 8 * width * numbers / (1e6 * mbit_per_second)


def seconds_of_scoring(
    candidates: Candidates, config: PreferenceOptimizationConfig, *, clock: Callable[[], float]
) -> float:
    """The median of a few times in which the made-up client scores all candidates, after one that warms up."""
    pool = made_up_client(candidates, config)
    marks = []
    for _ in range(_REPEATS + 1):
        began = clock()
        every_vector(pool, candidates.embeddings, labels=candidates.labels, config=config)
        marks.append(clock() - began)
    return statistics.median(marks[1:])


def made_up_client(candidates: Candidates, config: PreferenceOptimizationConfig) -> ClientPool:
    """A client of one random sample, of the first label where there are labels; it follows from the public seed."""
    random = np.random.default_rng(config.public_seed)
    embeddings = random.normal(size=(1, candidates.embeddings.shape[1])).astype(np.float32)
    owner = np.zeros(1, dtype=np.int64)
    labels = None if candidates.labels is None else np.zeros(1, dtype=np.int64)
    classes = 1 if candidates.labels is None else int(candidates.labels.max()) + 1
    return ClientPool(
        client_means(embeddings, owner, slots=1, labels=labels, classes=classes), embeddings, owner, labels
    )

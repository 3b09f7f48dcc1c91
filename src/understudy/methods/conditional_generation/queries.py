"""Everything that a run asks of the private rows, fixed before the first of them is read; public values only.

One calibration covers the whole event: every stream of the fine-tuning, the head on frozen features, the histograms of
classes and of topics, and the class means.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from understudy.errors import InputError, UnderstudyError
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.privacy.calibration import analytic_gaussian_sigma, calibrate_noise_multiplier
from understudy.privacy.charged import Charged
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream, plans_in
from understudy.privacy.queries import Queries, Query, event_of

LM, DISCRIMINATOR, FILTER, JOINT = "lm", "discriminator", "filter", "joint"
FINE_TUNING, HEAD = "fine-tuning", "head"
CLASS_SIZES, TOPICS, CLASS_MEANS = "class-sizes", "topics", "class-means"

# Noise of a histogram: the distribution of the loss of discrete noise is as long as its noise is wide, and with so much
# accounting takes minutes.
_MOST_OF_COUNTS: Final = 1 << 17

# Names of the trainings of every variant, with those of their streams.
_TRAINED: Final = (
    (),
    ((FINE_TUNING, (LM,)),),
    ((FINE_TUNING, (LM,)), (HEAD, (DISCRIMINATOR,))),
    ((FINE_TUNING, (LM, DISCRIMINATOR)),),
    ((FINE_TUNING, (LM, FILTER)),),
    ((FINE_TUNING, (JOINT,)),),
)


class QuerySchedule(BaseModel):
    """The run's list of queries as the training reads it.

    Attributes:
        n: Slots, public.
        trainings: In order; the fine-tuning first. None for the untrained variant.
        histogram_sigma: Noise of the class histogram; None if class sizes are public.
        means_noise: Noise multiplier of the class means; None if texts are not selected by them.
        topics_sigma: Noise of the histogram over labels and topics; None without topics.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: int = Field(ge=1)
    trainings: tuple[DpSgdPlan, ...] = ()
    histogram_sigma: float | None = None
    means_noise: float | None = None
    topics_sigma: float | None = None

    @property
    def queries(self) -> Queries:
        """Everything that the rows are asked, to be charged once."""
        return _queries(self.n, self.trainings, self.histogram_sigma, self.means_noise, self.topics_sigma)

    @property
    def steps(self) -> int:
        """Steps of all trainings together."""
        return sum(training.steps for training in self.trainings)


def schedule_of(queries: Queries) -> QuerySchedule:
    """The schedule behind a list of queries, `schedule_of(schedule.queries) == schedule`.

    Raises:
        UnderstudyError: the list is not one of this method.
    """
    noise = {query.name: query.noise_multiplier for query in queries}
    trainings = plans_in(queries)
    sigma, topics, means = (noise.get(name) for name in (CLASS_SIZES, TOPICS, CLASS_MEANS))
    n = queries[0].units if queries else 0
    named = tuple((training.name, tuple(stream.name for stream in training.streams)) for training in trainings)
    is_own = named in _TRAINED and (trainings or means is not None)
    if not is_own or _queries(n, trainings, sigma, means, topics) != queries:
        raise UnderstudyError(
            "expected the queries of a training, of class means or of both, and at most histograms of classes and of "
            "topics beside them; found others"
        )
    return QuerySchedule(n=n, trainings=trainings, histogram_sigma=sigma, means_noise=means, topics_sigma=topics)


Asked = Charged[ConditionalGenerationConfig, QuerySchedule]


def queries_of(
    config: ConditionalGenerationConfig, *, n: int, epsilon: float, delta: float, cache: Path | None = None
) -> Queries:
    """Calibrate the noise of all parts to one (epsilon, delta), by PLD.

    *Guarantee*: the queries together are (epsilon, delta)-DP (unit example, relation replace_special, n public).

    Its arguments are those of `methods.method.QueriesOf`; `cache` is the folder of earlier calibrations.

    Raises:
        InputError: a share is so small that its counts would be noise, or the shares leave nothing for the rest.
    """
    sigma = topics = means = None
    if config.class_sizes == "as_in_data":
        sigma = _noise_of_counts("class_sizes_share", config.class_sizes_share, epsilon=epsilon, delta=delta)
    if config.topics.active:
        topics = _noise_of_counts("topics.share", config.topics.share, epsilon=epsilon, delta=delta)
    if config.selects and config.trains:
        means = _noise_for(config.selection.share, epsilon=epsilon, delta=delta)

    def asked(z: float) -> Queries:
        """Whatever has no share of its own gets what is left: the trainings, or the class means without any."""
        return _queries(n, trainings_of(config, n, z), sigma, means if config.trains else z, topics)

    noise = calibrate_noise_multiplier(lambda z: event_of(asked(z)), epsilon=epsilon, delta=delta, cache=cache)
    return asked(noise)


def _queries(
    n: int,
    trainings: tuple[DpSgdPlan, ...],
    histogram_sigma: float | None,
    means_noise: float | None,
    topics_sigma: float | None,
) -> Queries:
    one = partial(Query, units=n, sensitivity=1.0)
    asked = [query for training in trainings for query in training.queries]
    if means_noise is not None:
        asked.insert(0, one(kind="gaussian_sum", name=CLASS_MEANS, noise_multiplier=means_noise))
    if topics_sigma is not None:
        asked.insert(0, one(kind="histogram", name=TOPICS, noise_multiplier=topics_sigma))
    if histogram_sigma is not None:
        asked.insert(0, one(kind="histogram", name=CLASS_SIZES, noise_multiplier=histogram_sigma))
    return tuple(asked)


def _noise_for(share: float, *, epsilon: float, delta: float) -> float:
    """Noise at which a query of sensitivity 1 alone would cost its share of epsilon and delta."""
    if math.isinf(epsilon):
        return 0.0
    return analytic_gaussian_sigma(epsilon=epsilon * share, delta=delta * share, sensitivity=1.0)


def _noise_of_counts(setting: str, share: float, *, epsilon: float, delta: float) -> float:
    """As `_noise_for`, of a histogram.

    Raises:
        InputError: naming the setting of the share; it is so small that the counts would say nothing of the rows.
    """
    sigma = _noise_for(share, epsilon=epsilon, delta=delta)
    if sigma > _MOST_OF_COUNTS:
        raise InputError(
            f"{setting}={share:g}: expected a share of epsilon={epsilon:g} and delta={delta:g} for which counts get "
            f"noise of at most {_MOST_OF_COUNTS}, found {sigma:.3g}, which hides all of them; raise {setting} or "
            "--epsilon"
        )
    return sigma


def trainings_of(config: ConditionalGenerationConfig, n: int, noise_multiplier: float) -> tuple[DpSgdPlan, ...]:
    """The trainings of a variant at one common noise level."""
    if not config.trains:
        return ()
    z, ratio = noise_multiplier, config.train.noise_ratio
    one_of_two = z * math.sqrt(1 + ratio**-2)  # (z1^-2 + (ratio z1)^-2)^-1/2 = z
    if config.variant == "naive":
        return (_training(config, n, FINE_TUNING, {LM: z}),)
    if config.variant == "naive_pplm":
        return (
            _training(config, n, FINE_TUNING, {LM: z}),
            _training(config, n, HEAD, {DISCRIMINATOR: ratio * z}),
        )
    if config.variant == "multitask" and config.update == "joint":
        return (_training(config, n, FINE_TUNING, {JOINT: z}),)
    second = FILTER if config.variant == "naive_filter" else DISCRIMINATOR
    return (_training(config, n, FINE_TUNING, {LM: one_of_two, second: ratio * one_of_two}),)


def _training(config: ConditionalGenerationConfig, n: int, name: str, noise: dict[str, float]) -> DpSgdPlan:
    streams = [Stream(name=stream, l2_clip_norm=config.train.clip, noise_multiplier=z) for stream, z in noise.items()]
    return DpSgdPlan.of_epochs(config.train.epochs, config.train.batch_size, n=n, name=name, streams=streams)

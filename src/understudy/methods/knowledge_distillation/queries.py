"""Everything that a run asks of the private pairs, fixed before the first of them is read; public values only."""

from __future__ import annotations

from pathlib import Path

from understudy.errors import UnderstudyError
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.privacy.calibration import calibrate_noise_multiplier
from understudy.privacy.charged import Charged
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream, plans_in
from understudy.privacy.queries import Queries

FINE_TUNING, RESPONSES = "fine-tuning", "responses"

Asked = Charged[KnowledgeDistillationConfig, DpSgdPlan]


def queries_of(
    config: KnowledgeDistillationConfig, *, n: int, epsilon: float, delta: float, cache: Path | None = None
) -> Queries:
    """Calibrate the noise of the fine-tuning to (epsilon, delta), by PLD.

    *Guarantee*: the queries together are (epsilon, delta)-DP (unit example, relation replace_special, n public).

    Its arguments are those of `methods.method.QueriesOf`; `cache` is the folder of earlier calibrations.
    """
    noise = calibrate_noise_multiplier(lambda z: _plan(config, n, z).event, epsilon=epsilon, delta=delta, cache=cache)
    return _plan(config, n, noise).queries


def schedule_of(queries: Queries) -> DpSgdPlan:
    """The training behind a list of queries, `schedule_of(plan.queries) == plan`.

    Raises:
        UnderstudyError: the list is not one of this method.
    """
    plans = plans_in(queries) if len(queries) == 1 else ()
    if [stream.name for plan in plans for stream in plan.streams] == [RESPONSES] and plans[0].queries == queries:
        return plans[0]
    raise UnderstudyError(f"expected the one query of a fine-tuning, found {len(queries)} others")


def _plan(config: KnowledgeDistillationConfig, n: int, noise: float) -> DpSgdPlan:
    stream = Stream(name=RESPONSES, l2_clip_norm=config.train.l2_clip_norm, noise_multiplier=noise)
    return DpSgdPlan.of_epochs(config.train.epochs, config.train.batch_size, n=n, name=FINE_TUNING, streams=[stream])

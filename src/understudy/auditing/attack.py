"""What an attack on a run with canaries reaches, from its scores and the coins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from understudy.auditing.membership import MembershipScores, loss_attack
from understudy.auditing.one_run import Bools, Floats, bound
from understudy.auditing.reconstruction import clopper_pearson
from understudy.evaluation.statistics.intervals import Interval
from understudy.frozen import Frozen

RATES = (0.001, 0.01)


class Rate(Frozen):
    """The share of the canaries in the rows that are found at a rate of false alarms.

    Attributes:
        false_alarms: the greatest share of those left out that may be called put in.
        found: the share of those put in that are.
        interval: Clopper-Pearson, of `found`.
    """

    false_alarms: float
    found: float
    interval: tuple[float, float]


class AttackFigures(Frozen):
    """What an attack reaches.

    Attributes:
        epsilon: lower bound on the run's epsilon; 0 is guessing.
        guesses: coins that were guessed for it.
        right: how many of them rightly.
        auc: chance that a canary in the rows scores higher than one left out; 0.5 is guessing.
        auc_interval: by a bootstrap.
        rates: at `RATES`.
    """

    epsilon: float
    guesses: int
    right: int
    auc: float
    auc_interval: tuple[float, float]
    rates: tuple[Rate, ...]

    @property
    def finds(self) -> bool:
        """Whether the run is told from one that none of the canaries moves, at the bound's confidence."""
        return self.epsilon > 0


def surprises(before: Floats, after: Floats) -> Floats:
    """How much likelier each canary became than its likelihood before lets expect, `(m,)`; higher looks trained on.

    Training on other rows moves the loss of a canary too, and the more, the higher it was: a straight line through all
    canaries, those left out among them, says how much. The coins have no part in it.

    Args:
        before: (m,) losses under the public model.
        after: (m,) losses under what the run released.
    """
    line = np.stack([np.ones_like(before), before], axis=1)
    drop = before - after
    found: Floats = drop - line @ np.linalg.lstsq(line, drop, rcond=None)[0]
    return found


def together(scores: Sequence[Floats]) -> Floats:
    """The sum of several scores of each canary, each brought to mean 0 and standard deviation 1.

    Args:
        scores: each (m,); one that is the same for all canaries adds nothing.
    """
    return sum(
        ((one - one.mean()) / one.std() for one in scores if one.std() > 0), start=np.zeros_like(scores[0], np.float64)
    )


def figures_of(scores: Floats, included: Bools, *, delta: float, confidence: float, seed: int) -> AttackFigures:
    """Bound, area under the curve and rates of an attack.

    Args:
        scores: (m,) of the canaries; higher looks more like one in the rows.
        included: (m,) the coins; at least two of each.
        delta: of the run.
        confidence: of the bound and of the intervals.
        seed: of the bootstrap; public.

    Raises:
        ValueError: a side has fewer than two canaries, or a score is not finite.
    """
    found = bound(scores, included, delta=delta, confidence=confidence)
    sides = MembershipScores(members=-scores[included], others=-scores[~included])
    area: Interval = loss_attack(sides, seed=seed, level=confidence).auc
    return AttackFigures(
        epsilon=found.epsilon,
        guesses=found.guesses,
        right=found.right,
        auc=area.value,
        auc_interval=(area.low, area.high),
        rates=tuple(_rate(scores, included, most, confidence) for most in RATES),
    )


def _rate(scores: npt.NDArray[np.float64], included: Bools, most: float, confidence: float) -> Rate:
    """At the lowest threshold above which at most this share of those left out lies."""
    others = np.sort(scores[~included])[::-1]
    threshold = others[int(most * others.size)]
    hits, count = int((scores[included] > threshold).sum()), int(included.sum())
    return Rate(false_alarms=most, found=hits / count, interval=clopper_pearson(hits, count, level=confidence))

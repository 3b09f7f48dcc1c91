"""Loss-based membership inference against the model that is fine-tuned on synthetic text.

Paper: GRADMM, section 5.3, after Shokri et al. 2017 in the form of Yeom et al. 2018: a row is
called a member when its loss lies at or below a threshold; the advantage is 2 (accuracy - 1/2) on as many members as
non-members, that is TPR - FPR.

As in the paper the threshold is chosen on one half of the rows and the advantage measured on the other: measured where
it was chosen, the best of many thresholds, it is above 0 for scores that know nothing. *Deviations*: the halves then
swap roles, so that each row counts once per split; the mean is over `splits` random splits (the paper's 10 runs); the
interval is a bootstrap over rows that resamples each half on its own, so that no row is ever on both sides.

Each interval is the wider, at each end, of a bootstrap, which has no width where all members lie below all others or
all above them, and of a closed form. That of the advantage is Newcombe's of the difference of two shares (1998, Stat.
Med. 17:873, method 10). That of the area under the curve is Wilson's with the rows of the smaller side:
whatever the scores, the area's variance is at most that of a share of so many rows (van Dantzig 1951; Birnbaum & Klose
1957).

Beside the paper, always: the same attack on a model fine-tuned on the members themselves. An attack that finds nothing
there is too weak to say anything about the synthetic text (`MembershipReport.can_detect`).

*A lower bound on what leaks, not a privacy proof*: this attacker sees one loss per row and nothing else. Scores and
report are computed on private rows and are internal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.statistics.intervals import Interval, difference_of_shares, wilson
from understudy.evaluation.utility.label_model import LabelModel, label_losses
from understudy.evaluation.utility.transfer import TransferConfig, WordsOf, fine_tune

Losses = npt.NDArray[np.float64]
Weights = npt.NDArray[np.int64]  # (replicates, rows): how often each row was drawn

# Rows of a side below which chance alone looks like an attack that works: of two, in one audit of ten.
FEWEST_ROWS: Final = 4


@dataclass(frozen=True)
class MembershipScores:
    """Losses under one model; lower looks more like a member.

    Attributes:
        members: (n,) of rows that the data were made from.
        others: (m,) of rows of the same origin that were never used.
    """

    members: Losses
    others: Losses


@dataclass(frozen=True)
class Attack:
    """What the attack reaches on one model.

    Attributes:
        advantage: TPR - FPR on rows that did not choose the threshold; 0 is guessing, 1 perfect, below 0 is chance.
        auc: chance that a member's loss is below a non-member's; 0.5 is guessing.
    """

    advantage: Interval
    auc: Interval


@dataclass(frozen=True)
class MembershipReport:
    """The attack on the model tuned on synthetic rows, never without its positive control.

    Attributes:
        synthetic: attack on the model tuned on synthetic rows.
        positive_control: attack on the model tuned on the members themselves.
        members: member rows that were scored.
        others: non-member rows that were scored.
    """

    synthetic: Attack
    positive_control: Attack
    members: int
    others: int

    @property
    def can_detect(self) -> bool:
        """Whether the attack finds members where they certainly are; if not, `synthetic` says nothing."""
        return self.positive_control.advantage.low > 0


def membership_audit(
    synthetic: LabelledTexts,
    members: LabelledTexts,
    others: LabelledTexts,
    *,
    label_words: WordsOf,
    config: TransferConfig,
    seed: int,
    device: str = "cpu",
) -> MembershipReport:
    """Fine-tune on the synthetic rows and on the members, attack both; internal.

    Args:
        synthetic: labelled synthetic rows.
        members: rows that the synthetic ones were made from, at least 4; at most about steps * batch / 10 of them, or
            the control sees each too seldom to show anything.
        others: rows of the same origin that no training has seen, at least 4, best as many.
        label_words: builds the verbaliser for the target model's tokenizer.
        config: target model and fine-tuning.
        seed: of the order of rows, the splits and the bootstrap; public.
        device: torch device.

    Raises:
        InputError: as `transfer.fine_tune`.
        ValueError: when a side has fewer than 4 rows.
    """
    rows_each = (len(members.texts), len(others.texts))
    if min(rows_each) < FEWEST_ROWS:
        raise ValueError(f"expected at least {FEWEST_ROWS} members and as many others, found {rows_each}")
    attacks = []
    for rows in (synthetic, members):
        tuned = fine_tune(rows, label_words=label_words, config=config, seed=seed, device=device)
        scores = membership_scores(tuned, members, others)
        attacks.append(loss_attack(scores, seed=seed))
    return MembershipReport(attacks[0], attacks[1], len(members.texts), len(others.texts))


def membership_scores(tuned: LabelModel, members: LabelledTexts, others: LabelledTexts) -> MembershipScores:
    """Loss of each row's own label under a tuned model; private."""
    return MembershipScores(*(label_losses(tuned, rows.texts, rows.labels) for rows in (members, others)))


def loss_attack(
    scores: MembershipScores, *, seed: int, splits: int = 10, replicates: int = 1000, level: float = 0.95
) -> Attack:
    """Advantage and AUC of the loss threshold, with intervals.

    Args:
        scores: losses of members and non-members, finite, at least 2 of each.
        seed: of splits and bootstrap; public.
        splits: random halvings to average over.
        replicates: bootstrap replicates over all splits.
        level: confidence.

    Raises:
        ValueError: when a side has fewer than 2 losses or one that is not finite.
    """
    for side in (scores.members, scores.others):
        if side.size < 2 or not np.isfinite(side).all():
            raise ValueError(f"expected at least 2 finite losses per side, found {side.size}")
    generator = np.random.default_rng(seed)
    per_split = -(-replicates // splits)
    rates, draws = [], []
    for _ in range(splits):
        halves = _halve(scores, generator)
        rates.append(_swapped(halves, [_once(half) for half in halves])[:, 0])
        draws.append(np.subtract(*_swapped(halves, [_drawn(half, per_split, generator) for half in halves])))
    areas = _areas(scores, _drawn(scores, replicates, generator))
    tails = [(1 - level) / 2, (1 + level) / 2]
    drawn = np.quantile(np.concatenate(draws), tails)
    return Attack(
        advantage=_advantage_interval(scores, np.mean(rates, 0), drawn, level=level),
        auc=_area_interval(scores, np.quantile(areas, tails), level=level),
    )


def advantage(scores: MembershipScores, threshold: float) -> float:
    """TPR - FPR of calling every row of loss <= threshold a member."""
    true, false = _rates(scores, _once(scores), np.array([threshold]))
    return float(true[0] - false[0])


def best_threshold(scores: MembershipScores) -> float:
    """The threshold of the greatest advantage on these very scores, half-way to the next loss above it.

    Measured on the same scores its advantage is never negative: biased upwards. Measure it on other ones.
    """
    return float(_best_thresholds(scores, _once(scores))[0])


def area_under_curve(scores: MembershipScores) -> float:
    """Chance that a random member's loss is below a random non-member's, ties counting half."""
    return float(_areas(scores, _once(scores))[0])


def _advantage_interval(scores: MembershipScores, rates: Losses, drawn: Losses, *, level: float) -> Interval:
    """The difference of two rates, with the wider interval of a bootstrap's ends and of Newcombe's."""
    true, false = (float(rate) for rate in rates)
    below, above = difference_of_shares((true, scores.members.size), (false, scores.others.size), level)
    return Interval(true - false, min(float(drawn[0]), below), max(float(drawn[1]), above))


def _area_interval(scores: MembershipScores, drawn: Losses, *, level: float) -> Interval:
    """The area under the curve, with the wider interval of a bootstrap's ends and of Wilson's."""
    area = area_under_curve(scores)
    below, above = wilson(area, min(scores.members.size, scores.others.size), level)
    low, high = min(float(drawn[0]), below), max(float(drawn[1]), above)
    return Interval(area, max(0.0, low), min(1.0, high))


def _halve(scores: MembershipScores, generator: np.random.Generator) -> tuple[MembershipScores, MembershipScores]:
    """Two random halves of the rows, members and non-members each."""
    orders = [generator.permutation(side) for side in (scores.members, scores.others)]
    first, second = ([side[part::2] for side in orders] for part in (0, 1))
    return MembershipScores(*first), MembershipScores(*second)


def _once(scores: MembershipScores) -> tuple[Weights, Weights]:
    """Every row once: one replicate that is the sample itself."""
    return np.ones((1, scores.members.size), np.int64), np.ones((1, scores.others.size), np.int64)


def _drawn(scores: MembershipScores, replicates: int, generator: np.random.Generator) -> tuple[Weights, Weights]:
    """How often a bootstrap draws each member and each non-member."""
    sizes = (scores.members.size, scores.others.size)
    members, others = (generator.multinomial(size, np.full(size, 1 / size), size=replicates) for size in sizes)
    return members, others


def _swapped(halves: Sequence[MembershipScores], weights: Sequence[tuple[Weights, Weights]]) -> Losses:
    """Rates on each half at the other half's best threshold, mean of both; (2, replicates)."""
    thresholds = [_best_thresholds(half, drawn) for half, drawn in zip(halves, weights, strict=True)]
    first, second = (
        _rates(half, drawn, chosen) for half, drawn, chosen in zip(halves, weights, reversed(thresholds), strict=True)
    )
    mean: Losses = (first + second) / 2
    return mean


def _best_thresholds(scores: MembershipScores, weights: tuple[Weights, Weights]) -> Losses:
    """The threshold of the greatest advantage in each replicate, the lowest of equals; (replicates,)."""
    candidates = np.concatenate([[-np.inf], np.unique(np.concatenate([scores.members, scores.others]))])
    everywhere = np.broadcast_to(candidates, (len(weights[0]), candidates.size))
    gains = _share_at_most(scores.members, weights[0], everywhere) - _share_at_most(
        scores.others, weights[1], everywhere
    )
    best = gains.argmax(1)
    # The advantage stays at its best up to the next loss that was drawn; without one, up to the last.
    worse = (gains < gains.max(1, keepdims=True)) & (np.arange(candidates.size) > best[:, None])
    above = np.where(worse.any(1), worse.argmax(1), candidates.size - 1)
    return np.where(best == 0, -np.inf, (candidates[best] + candidates[above]) / 2)


def _rates(scores: MembershipScores, weights: tuple[Weights, Weights], thresholds: Losses) -> Losses:
    """TPR and FPR of each replicate at its own threshold; (2, replicates)."""
    column = thresholds[:, None]
    sides = zip((scores.members, scores.others), weights, strict=True)
    return np.stack([_share_at_most(losses, drawn, column)[:, 0] for losses, drawn in sides])


def _areas(scores: MembershipScores, weights: tuple[Weights, Weights]) -> Losses:
    """Area under the curve of each replicate; (replicates,)."""
    wanted = np.broadcast_to(scores.members, weights[0].shape)
    below = _share_at_most(scores.others, weights[1], np.nextafter(wanted, -np.inf))
    up_to = _share_at_most(scores.others, weights[1], wanted)
    areas: Losses = (weights[0] * (1 - (below + up_to) / 2)).sum(1) / weights[0].sum(1)
    return areas


def _share_at_most(losses: Losses, weights: Weights, thresholds: Losses) -> Losses:
    """Weighted share of losses <= threshold.

    Args:
        losses: (rows,).
        weights: (replicates, rows).
        thresholds: (replicates, thresholds).

    Returns:
        (replicates, thresholds).
    """
    order = np.argsort(losses, kind="stable")
    counted = np.pad(weights[:, order].cumsum(1), ((0, 0), (1, 0)))
    places = np.searchsorted(losses[order], thresholds, side="right")
    share: Losses = np.take_along_axis(counted, places, axis=1) / counted[:, -1:]
    return share

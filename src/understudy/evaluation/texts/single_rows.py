"""What a single real row holds and the synthetic text holds too: words, or identifiers.

A thing that one row alone holds is what a reader could know that row by. Synthetic text may hold it by chance; how
often is told by the rows that the generator never saw, for if nothing was memorised, a thing of one private row and a
thing of one unseen row are as likely to come up. Alone means alone among private and unseen rows together, so the two
sides need not have equally many rows.

*A diagnostic, not a privacy proof*, as everything in `memorization` is, and internal as that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from understudy.evaluation.statistics.intervals import Interval, difference_of_shares
from understudy.evaluation.texts.words import Ints, TokenizedTexts, join

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Replay:
    """Things of single rows of one side.

    Attributes:
        held: how many.
        replayed: how many of these the synthetic text holds.
    """

    held: int
    replayed: int

    @property
    def share(self) -> float:
        """Replayed over held; 0 where none is held."""
        return self.replayed / self.held if self.held else 0.0


@dataclass(frozen=True)
class KindReplay(Replay):
    """Identifiers of one kind in all private rows.

    Attributes:
        held: how many different ones.
        replayed: how many of these the synthetic text holds.
        replayed_alone: how many of the replayed ones stand in one private row alone.
    """

    replayed_alone: int


@dataclass(frozen=True)
class ReplayBeside:
    """Things of single private rows beside those of single rows that the generator never saw.

    Attributes:
        private: of private rows.
        holdout: of rows never seen.
        difference: of the two shares, private less holdout; None where a side holds none.
    """

    private: Replay
    holdout: Replay
    difference: Interval | None


def replay_beside(
    made: TokenizedTexts, private: TokenizedTexts, holdout: TokenizedTexts, *, level: float
) -> ReplayBeside:
    """How much of what single rows hold the synthetic text holds, of private and of unseen rows.

    The interval of the difference is, at each end, the wider of Newcombe's for two shares, which keeps its width where
    nothing is replayed, and of a normal one whose variance takes a row's things together, for they may come together.

    Args:
        made: the synthetic texts; all three tokenised by one call, of `words.tokenize` or `identifiers.identify`.
        private: the rows they were made from.
        holdout: real rows of the same origin that the generator never saw.
        level: confidence.
    """
    both = join(private, holdout)
    owners, replayed = _alone(made, both)
    held = np.bincount(owners, minlength=len(both))
    hits = np.bincount(owners[replayed], minlength=len(both))
    sides = (slice(len(private)), slice(len(private), None))
    ours, theirs = (Replay(int(held[side].sum()), int(hits[side].sum())) for side in sides)
    if not (ours.held and theirs.held):
        return ReplayBeside(ours, theirs, None)
    value = ours.share - theirs.share
    spread = math.sqrt(sum(_variance(held[side], hits[side]) for side in sides)) * _quantile(level)
    low, high = difference_of_shares((ours.share, ours.held), (theirs.share, theirs.held), level)
    interval = Interval(value, max(-1.0, min(low, value - spread)), min(1.0, max(high, value + spread)))
    return ReplayBeside(ours, theirs, interval)


def replay_by_kind(made: TokenizedTexts, private: TokenizedTexts) -> dict[str, KindReplay]:
    """Per kind of identifier that the private rows hold: how many different ones, and which of them are replayed.

    Args:
        made: the synthetic texts; both from one call of `identifiers.identify`.
        private: the rows they were made from.
    """
    present, alone = _presence(made), np.zeros(len(private.vocabulary), np.bool_)
    alone[_things_alone(private)[0]] = True
    things: dict[str, list[int]] = {}
    held = _presence(private)
    for thing, name in enumerate(private.vocabulary):
        if held[thing]:
            things.setdefault(name.split(" ", 1)[0], []).append(thing)
    return {
        kind: KindReplay(len(own), int(present[own].sum()), int((present & alone)[own].sum()))
        for kind, own in things.items()
    }


def _alone(made: TokenizedTexts, rows: TokenizedTexts) -> tuple[Ints, Bools]:
    """Of each thing that one row alone holds: that row, and whether the synthetic texts hold it."""
    things, owners = _things_alone(rows)
    return owners, _presence(made)[things]


def _things_alone(rows: TokenizedTexts) -> tuple[Ints, Ints]:
    """The things that one row alone holds, and that row of each."""
    row = np.repeat(np.arange(len(rows)), rows.lengths)
    pairs = np.unique(rows.ids * max(len(rows), 1) + row)
    things, owners = np.divmod(pairs, max(len(rows), 1))
    once = np.bincount(things, minlength=len(rows.vocabulary))[things] == 1
    return things[once], owners[once]


def _presence(texts: TokenizedTexts) -> Bools:
    """(vocabulary,) bool."""
    found: Bools = np.bincount(texts.ids, minlength=len(texts.vocabulary)) > 0
    return found


def _variance(held: Ints, hits: Ints) -> float:
    """Of the share hits / held over rows, each row's things taken together (a ratio of sums, linearised)."""
    total = float(held.sum())
    return float(((hits - held * (hits.sum() / total)) ** 2).sum()) / total**2


def _quantile(level: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf((1 + level) / 2))

"""Which of 64 names stood in a training text: reconstruction of personal names by a model's loss.

Source: Lukas et al. 2023 (arXiv 2302.00539), PII reconstruction with candidates; KnowledgeSG, section 4.6.
*Deviation*: before training, each text's name is replaced by one drawn at random from the text's own candidates. So a
model that never saw the text names it with probability 1 / candidates, whatever it thinks of names, and the comparison
with chance is exact. Ties go to the attacker by their share. KnowledgeSG draws from the model with top-k 40; nothing is
drawn here, since the attacker has the model and reads every candidate, so there is no k.

A rate near chance does not prove privacy: it says that this attack did not work. Beside it always stands the rate of a
model that was trained without privacy, which must be far above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from understudy.frozen import Frozen

Floats = npt.NDArray[np.float64]
Losses = Callable[[Sequence[str]], Floats]

CANDIDATES = 64


@dataclass(frozen=True)
class Planted:
    """A text with one of its candidates in the place of a name.

    Attributes:
        template: the text with `{name}` where the name stood.
        candidates: names that it could have been, all different.
        place: of the one that it is.
    """

    template: str = field(repr=False)
    candidates: tuple[str, ...] = field(repr=False)
    place: int = field(repr=False)

    @property
    def text(self) -> str:
        """What is trained on."""
        return self.with_name(self.candidates[self.place])

    def with_name(self, name: str) -> str:
        """The text with another name."""
        return self.template.replace("{name}", name)


class Reconstruction(Frozen):
    """How often the right candidate had the lowest loss.

    Attributes:
        hits: expected number of right guesses.
        texts: how many were guessed.
        chance: of a right guess without the text.
        interval: Clopper-Pearson at 95 %, of the share of right guesses.
    """

    hits: float
    texts: int
    chance: float
    interval: tuple[float, float]

    @property
    def rate(self) -> float:
        """Share of right guesses."""
        return self.hits / self.texts


def plant_names(
    templates: Sequence[str], names: Sequence[str], *, seed: int, candidates: int = CANDIDATES
) -> list[Planted]:
    """Give each text a name of its own candidates.

    Args:
        templates: texts with `{name}` in them.
        names: at least as many different ones as there are candidates.
        seed: of the choice.
        candidates: names a text could have had.

    Raises:
        ValueError: there are too few names, or a text has no place for one.
    """
    pool = sorted(set(names))
    if len(pool) < candidates or not all("{name}" in template for template in templates):
        raise ValueError(
            f"expected a place for a name in each text and at least {candidates} names, found {len(pool)} names"
        )
    random = np.random.default_rng(seed)
    planted = []
    for template in templates:
        chosen = random.choice(len(pool), size=candidates, replace=False)
        place = int(random.integers(candidates))
        planted.append(Planted(template, tuple(pool[row] for row in chosen), place))
    return planted


def reconstruct(planted: Sequence[Planted], losses: Losses) -> Reconstruction:
    """Guess each text's name: the candidate with which the whole text is most likely.

    Args:
        planted: texts that the model was trained on, at least one.
        losses: texts -> loss of each by the model under attack.
    """
    read = [losses([one.with_name(name) for name in one.candidates]) for one in planted]
    return guessed(np.stack(read), [one.place for one in planted])


def guessed(losses: Floats, places: Sequence[int]) -> Reconstruction:
    """How often the right candidate has the lowest loss; of several lowest ones it has its share.

    Args:
        losses: (texts, candidates), at least one text.
        places: (texts,) of the right ones.

    >>> guessed(np.array([[0.0, 1.0], [2.0, 2.0]]), [0, 1]).hits
    1.5
    """
    lowest = losses == losses.min(axis=1, keepdims=True)
    count, candidates = losses.shape
    hits = float((lowest[np.arange(count), places] / lowest.sum(axis=1)).sum())
    interval = clopper_pearson(round(hits), count)
    return Reconstruction(hits=hits, texts=count, chance=1.0 / candidates, interval=interval)


def least_rate(texts: int, *, chance: float, power: float = 0.8) -> float:
    """The smallest share of right guesses that is told from chance in `power` of all attacks; 1 where none is.

    Told is a share whose interval at 95 % lies above chance. The chance of so many hits is a beta function of their
    rate, so the rate is one of its quantiles, as in Clopper and Pearson's interval.

    >>> least_rate(10, chance=1 / 64) > least_rate(100, chance=1 / 64) > 1 / 64
    True
    """
    from scipy.stats import beta

    hits = next((hits for hits in range(texts + 1) if clopper_pearson(hits, texts)[0] > chance), None)
    return 1.0 if hits is None else float(beta.ppf(power, hits, texts - hits + 1))


def clopper_pearson(hits: int, count: int, *, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper and Pearson 1934).

    >>> [round(end, 4) for end in clopper_pearson(0, 10)]
    [0.0, 0.3085]
    """
    from scipy.stats import beta

    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, count - hits + 1))
    high = 1.0 if hits == count else float(beta.ppf(1 - tail, hits + 1, count - hits))
    return low, high

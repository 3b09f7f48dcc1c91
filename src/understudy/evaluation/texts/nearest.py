"""How near synthetic texts come to real ones, and how likely a public language model finds them.

Paper: GRADMM, Figures 2(b) and 10 (histogram of the L2 distance from each synthetic text to the
nearest real training text), Tables 1 and 4 (log-perplexity).
*Deviation*: of more than 2,000 synthetic or 2,000 holdout texts a random 2,000 are compared, each with all real
training texts, so that time is linear in the number of rows. Median and share keep their meaning; the least distance is
that of the texts compared, and a copy among the others is not seen here (`memorization` looks at every text).
How many were compared is reported.
Beside the paper: the same histogram for a holdout that the method never saw. Short texts of one task lie close to each
other whether or not anything was copied, so a distance says something only next to that. The paper does not name its
embedding; here it is the evaluation's sentence encoder.

*A diagnostic, not a privacy proof*: a text far away in the embedding may still hold a secret word for word. The
figures are computed on real rows and are internal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from understudy.evaluation.texts.language_model import language_model_loss_of_texts
from understudy.models.loading import LoadedModel

Features = npt.NDArray[np.floating[Any]]
Distances = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

MOST_COMPARED = 2000

_CHUNK = 512
_REFERENCES = 8192  # at a time, to bound memory


@dataclass(frozen=True)
class NearestDistances:
    """Distances to the nearest real row, of synthetic rows and of a holdout, in one histogram; internal.

    Attributes:
        edges: (bins + 1,) from 0 to the greatest distance of either side.
        synthetic_counts: (bins,).
        holdout_counts: (bins,).
        synthetic: (n,) distances, n at most `MOST_COMPARED`.
        holdout: (m,) distances, m at most `MOST_COMPARED`.
    """

    edges: Distances
    synthetic_counts: Counts
    holdout_counts: Counts
    synthetic: Distances
    holdout: Distances

    @property
    def median(self) -> tuple[float, float]:
        """Median distance: (synthetic, holdout)."""
        return float(np.median(self.synthetic)), float(np.median(self.holdout))

    @property
    def closest(self) -> tuple[float, float]:
        """Smallest distance: (synthetic, holdout); of the larger set it is the smaller by chance alone."""
        return float(self.synthetic.min()), float(self.holdout.min())

    def closer_than_holdout(self, quantile: float = 0.05) -> float:
        """Share of synthetic rows nearer than this quantile of the holdout's.

        About `quantile` where nothing is copied and the texts are as varied as real ones.
        """
        return float((self.synthetic < np.quantile(self.holdout, quantile)).mean())


def distances_to_nearest(rows: Features, reference: Features) -> Distances:
    """L2 distance from each row to its nearest reference row.

    Args:
        rows: (n, d) embeddings.
        reference: (m, d) embeddings, m >= 1.

    Returns:
        (n,) float64; copies get 0 up to rounding (about 1e-8 for unit-length embeddings).

    Raises:
        ValueError: when the dimensions differ or there is no reference row.
    """
    if rows.ndim != 2 or reference.ndim != 2 or rows.shape[1] != reference.shape[1] or len(reference) == 0:
        raise ValueError(f"expected (n, d) rows and (m >= 1, d) references, found {rows.shape} and {reference.shape}")
    least = np.full(len(rows), np.inf)
    for first in range(0, len(reference), _REFERENCES):
        known = reference[first : first + _REFERENCES].astype(np.float64)
        norms = np.square(known).sum(1)
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK].astype(np.float64)
            squared = np.square(part).sum(1)[:, None] + norms - 2 * part @ known.T
            least[start : start + _CHUNK] = np.minimum(least[start : start + _CHUNK], squared.min(1))
    distances: Distances = np.sqrt(np.maximum(least, 0.0))
    return distances


def nearest_real(
    synthetic: Features, real: Features, holdout: Features, *, bins: int = 30, seed: int = 0
) -> NearestDistances:
    """Histogram of the distances to the nearest real row, beside that of a holdout's rows.

    Args:
        synthetic: (n, d) embeddings of synthetic texts, n >= 1.
        real: (m, d) of the rows they were made from, private; the same for both sides, as the distance falls with m.
        holdout: (h, d) of real rows that the method never saw, h >= 1.
        bins: of the histogram.
        seed: of the choice of rows that are compared; public.

    Raises:
        ValueError: when a side is empty or the dimensions differ.
    """
    if min(len(synthetic), len(holdout)) == 0:
        raise ValueError(f"expected rows on both sides, found {len(synthetic)} synthetic and {len(holdout)} holdout")
    made, held = (distances_to_nearest(_compared(side, seed), real) for side in (synthetic, holdout))
    top = float(max(made.max(), held.max()))
    edges = np.linspace(0.0, top if top > 0 else 1.0, bins + 1)
    counts = [np.histogram(side, edges)[0].astype(np.int64) for side in (made, held)]
    return NearestDistances(edges, counts[0], counts[1], made, held)


def _compared(rows: Features, seed: int) -> Features:
    """The rows themselves, or `MOST_COMPARED` random ones of them in their order."""
    if len(rows) <= MOST_COMPARED:
        return rows
    chosen = np.random.default_rng(seed).permutation(len(rows))[:MOST_COMPARED]
    return rows[np.sort(chosen)]


def log_perplexities(
    base: LoadedModel, sets: Mapping[str, Sequence[str]], *, max_length: int = 128
) -> dict[str, float]:
    """Mean negative log-likelihood per token of each set of texts under a public model, in nats.

    Args:
        base: the public model, not the tuned one.
        sets: name -> at least one text; real ones make the figure internal.
        max_length: tokens kept per text.

    Raises:
        ValueError: when a set is empty.
    """
    return {name: language_model_loss_of_texts(base, texts, max_length=max_length) for name, texts in sets.items()}

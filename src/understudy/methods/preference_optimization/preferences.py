"""Noisy scores to preference pairs (POPri, algorithm 1, lines 21 to 26), and how many of them noise has turned.

Per prompt the text of the highest score is chosen and the one of rank l rejected. Post-processing of the noised sum:
scores, ranks and texts are all that is read. Where the paper is silent: of equal scores the lower index ranks first,
and a prompt whose two texts are the same string teaches nothing and is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from understudy.errors import InputError

Scores = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Preferences:
    """Pairs of different texts.

    Attributes:
        prompts: (p,) int64 prompts that have a pair, ascending.
        pairs: (p, 2) int64 candidates (chosen, rejected) of these prompts.
        identical: prompts dropped since both texts were the same.
    """

    prompts: IntArray
    pairs: IntArray
    identical: int


def preference_pairs(scores: Scores, *, per_prompt: int, rejected_rank: int) -> IntArray:
    """The first and the `rejected_rank`-th text of every prompt.

    >>> preference_pairs(np.array([0.1, 0.9, 0.5, 2.0, 2.0, 1.0]), per_prompt=3, rejected_rank=2).tolist()
    [[1, 2], [3, 4]]

    Args:
        scores: (K * J,) noised, candidate j of prompt k at k * J + j.
        per_prompt: J.
        rejected_rank: l, 2 to J.

    Returns:
        (K, 2) int64 candidates: chosen, rejected.

    Raises:
        InputError: J < l or l < 2.
        ValueError: the scores are not whole prompts, or not finite.
    """
    if not 2 <= rejected_rank <= per_prompt:
        raise InputError(
            f"rejected_rank={rejected_rank}: expected 2 to per_prompt={per_prompt}; lower the rank or draw more texts"
        )
    if scores.ndim != 1 or len(scores) % per_prompt or not np.isfinite(scores).all():
        raise ValueError(f"expected finite scores of whole prompts of {per_prompt}, found {scores.shape}")
    by_prompt = scores.reshape(-1, per_prompt)
    ranked = np.argsort(-by_prompt, axis=1, kind="stable")
    first = per_prompt * np.arange(len(by_prompt), dtype=np.int64)
    return np.stack([first + ranked[:, 0], first + ranked[:, rejected_rank - 1]], axis=1).astype(np.int64)


def drop_identical(pairs: IntArray, texts: Sequence[str]) -> Preferences:
    """Leave out the prompts whose chosen and rejected texts are the same string.

    Args:
        pairs: (K, 2) candidates.
        texts: (K * J,) candidates' texts.
    """
    differ = np.array([texts[chosen] != texts[rejected] for chosen, rejected in pairs], dtype=bool)
    kept = np.flatnonzero(differ).astype(np.int64)
    return Preferences(prompts=kept, pairs=pairs[kept], identical=len(pairs) - len(kept))


def recovery_rate(pairs: IntArray, noiseless: Scores) -> float:
    """Share of pairs whose chosen text scores higher without noise too (POPri, Figure 6, right); internal.

    Args:
        pairs: (p, 2) candidates, from noised scores.
        noiseless: (K * J,) scores without noise of the same scorer (the paper's without clipping too), private.

    Returns:
        0 to 1; equal noiseless scores count as not recovered, no pairs as 0.
    """
    if len(pairs) == 0:
        return 0.0
    return float((noiseless[pairs[:, 0]] > noiseless[pairs[:, 1]]).mean())

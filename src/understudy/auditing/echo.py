"""How much of a text echoes in synthetic ones: the attack of somebody who sees nothing but the synthetic table.

Paper: Meeus et al. 2025, "The Canary's Echo" (arXiv 2502.14921), section 3: a language model of two words at a time
is fitted to the synthetic texts, and a canary that was trained on is the likelier under it.
*Deviation*: counts of pairs and of single words are mixed half and half, so that a canary of words that are rare in the
synthetic texts has a likelihood that tells something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from understudy.evaluation.texts.words import words

Floats = npt.NDArray[np.float64]


def echoes(synthetic: Sequence[str], texts: Sequence[str]) -> Floats:
    """Mean log-likelihood per word of each text, `(n,)`, under a model of the synthetic texts; higher echoes more.

    >>> low, high = echoes(["a b c", "b c d"], ["c a", "b c"])
    >>> bool(low < high)
    True
    """
    read = [words(text) for text in synthetic]
    asked = [words(text) for text in texts]
    single = Counter(word for text in read for word in text)
    pairs = Counter(pair for text in read for pair in pairwise(("", *text)))
    before = Counter(first for text in read for first in ("", *text[:-1]))
    total = single.total() + len({*single, *(word for text in asked for word in text)})

    def likelihood(first: str, word: str) -> float:
        alone = (single[word] + 1) / max(total, 1)
        behind = pairs[first, word] / before[first] if before[first] else alone
        return float(np.log((alone + behind) / 2))

    means = [np.mean([likelihood(*pair) for pair in pairwise(("", *text))]) if text else 0.0 for text in asked]
    return np.array(means, dtype=np.float64)

"""Texts as TF-IDF weights on few axes (latent semantic analysis, Deerwester et al. 1990): an encoder without weights.

Fitted on one set of texts, which gives the terms and the axes; further texts are projected on these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from understudy.evaluation.encoder import FloatArray


def term_vectors(fitted: Sequence[str], *, dimensions: int) -> Callable[[Sequence[str]], FloatArray]:
    """An encoder that is fitted on texts: texts -> `(n, d)` float32, d at most `dimensions`.

    Args:
        fitted: at least two texts.
        dimensions: most axes; fewer where there are fewer texts or terms.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    weights = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    counts = weights.fit_transform(fitted)
    axes = max(1, min(dimensions, min(counts.shape) - 1))
    svd = TruncatedSVD(n_components=axes, algorithm="randomized", random_state=0).fit(counts)

    def encode(texts: Sequence[str]) -> FloatArray:
        return np.asarray(svd.transform(weights.transform(texts)), dtype=np.float32)

    return encode

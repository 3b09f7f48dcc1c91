"""Texts as TF-IDF weights on few axes (latent semantic analysis, Deerwester et al. 1990): an encoder without weights.

Fitted on one set of texts, which gives the terms and the axes; further texts are projected on these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from understudy.evaluation.texts.encoder import FloatArray


def term_vectors(fitted: Sequence[str], *, dimensions: int) -> Callable[[Sequence[str]], FloatArray]:
    """An encoder that is fitted on texts: texts -> `(n, d)` float32, d at most `dimensions`.

    Args:
        fitted: at least one text; without a word in any of them, every vector is zero.
        dimensions: most axes; fewer where there are fewer texts or terms.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    weights = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    words = weights.build_analyzer()
    terms = {word for text in fitted for word in words(text)}
    if not terms:
        return lambda texts: np.zeros((len(texts), 1), dtype=np.float32)
    counts = weights.fit_transform(fitted)
    if len(terms) == 1:
        return lambda texts: np.asarray(weights.transform(texts).toarray(), dtype=np.float32)
    axes = max(1, min(dimensions, min(counts.shape) - 1))
    # Where all texts are one, numpy would warn of it, and a log would keep that of private rows.
    with np.errstate(invalid="ignore"):
        svd = TruncatedSVD(n_components=axes, algorithm="randomized", random_state=0).fit(counts)

    def encode(texts: Sequence[str]) -> FloatArray:
        return np.asarray(svd.transform(weights.transform(texts)), dtype=np.float32)

    return encode

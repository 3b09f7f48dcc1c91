"""Instruction-following difficulty (Li et al. 2023, arXiv 2308.12032): how much the instruction helps the response.

IFD = ppl(response | instruction) / ppl(response), both by the DP model, perplexities as exp of the mean negative
log-likelihood per token. Low scores first (paper, section 3.3).
*Deviation*: which model scores is not said in the paper; it is the one that is to be tuned, as in the source of IFD.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.scoring import Floats, mean_response_losses
from understudy.models.loading import LoadedModel


def ifd_scores(
    pairs: Sequence[Pair], model: LoadedModel, *, encoder: PairEncoder, max_length: int, batch_size: int = 32
) -> Floats:
    """The score of each pair, `(n,)`; a response that is cut is cut alike in both.

    Args:
        pairs: instructions with responses.
        model: scores them.
        encoder: writes them for it.
        max_length: tokens of a pair.
        batch_size: pairs per pass.
    """
    behind = mean_response_losses(model.model, encoder.encode(pairs, max_length=max_length), batch_size=batch_size)
    alone = mean_response_losses(model.model, encoder.alone(pairs, max_length=max_length), batch_size=batch_size)
    return ratio(behind, alone)


def ratio(behind: Floats, alone: Floats) -> Floats:
    """ppl(response | instruction) / ppl(response) from mean losses in nats.

    >>> [round(float(score), 3) for score in ratio(np.log([2.0, 9.0]), np.log([8.0, 3.0]))]
    [0.25, 3.0]
    """
    return np.asarray(np.exp(behind - alone), dtype=np.float64)


def best_first(scores: Floats) -> list[int]:
    """Places from the lowest score on; equal ones in their order."""
    return [int(place) for place in np.argsort(scores, kind="stable")]

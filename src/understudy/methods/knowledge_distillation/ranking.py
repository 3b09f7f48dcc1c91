"""Instruction-following difficulty (Li et al. 2023, arXiv 2308.12032): how much the instruction helps the response.

IFD = ppl(response | instruction) / ppl(response), both by the DP model, perplexities as exp of the mean negative
log-likelihood per token. Low scores first (paper, section 3.3).
*Deviations*: the paper does not say which model scores. Here it is the model that is to be tuned, as in the source of
IFD. Pairs are ranked within equal responses unless `filters.rank_within=all`. IFD should say how much an instruction
helps. Where there are few different answers, it compares the answers instead, and the answer that is least likely by
itself would take every place. Among the kept pairs each repeated response therefore has the share that the professional
model gave it. Responses that occur once are ranked together, so where all differ this is the paper's ranking.
"""

from __future__ import annotations

from collections import Counter
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


def best_first_within(scores: Floats, responses: Sequence[str]) -> list[int]:
    """Places from the best rank within equal responses on; however many are taken, each response keeps its share.

    The rank of the k-th lowest score of m is (k - 1/2) / m. So the first places go to the responses as the seats of a
    parliament do by the method of Sainte-Laguë. Responses that occur once are ranked together.

    Args:
        scores: `(n,)`; of equal ranks the lower score is first.
        responses: of the n pairs.

    >>> best_first_within(np.array([0.1, 0.2, 0.3, 0.4, 0.9, 0.8]), ["no", "no", "no", "no", "yes", "yes"])
    [0, 5, 1, 2, 4, 3]
    """
    often = Counter(responses)
    equals = [response if often[response] > 1 else None for response in responses]
    sizes, seen = Counter(equals), Counter[str | None]()
    ranks = np.zeros(len(responses))
    lowest = best_first(scores)
    for place in lowest:
        ranks[place] = (seen[equals[place]] + 0.5) / sizes[equals[place]]
        seen[equals[place]] += 1
    return sorted(lowest, key=lambda place: float(ranks[place]))

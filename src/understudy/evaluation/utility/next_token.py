"""How useful text is for a small language model: fine-tune it, then predict the next token of held-out clients.

Paper: POPri, section 4 and appendix B.1: DistilGPT2, 64 tokens, AdamW, accuracy of the next
token. Its epsilon 0 is the public model as it is, its epsilon infinity the same model tuned on all clients' text.

*Deviations*. The LAST weights are evaluated; the paper picks the best checkpoint on a validation set, which is a look
at private text wherever that set is private. The begin token opens every text, so that its first token is predicted
too; no end token is added, for a sample is a piece of a longer document. A constant learning rate; the weight decay is
that of torch's AdamW, of which the paper says nothing.

Scores are computed on real text: they are internal and choose nothing that is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from understudy.errors import InputError, RowError
from understudy.evaluation.statistics.intervals import FEWEST_RESAMPLED, Interval
from understudy.evaluation.texts.language_model import encode_texts, pad, pad_token_of
from understudy.frozen import Profile, Profiled, Profiles
from understudy.models.loading import LoadedModel, load_model
from understudy.quantities import CountOrZero, LearningRate, NonEmpty, Size, setting

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_CHUNK = 256  # bootstrap replicates at a time, to bound memory
_PROFILES: Profiles = {
    "tiny": {},
    "paper": {"base": "distilbert/distilgpt2", "epochs": 80, "batch_size": 160, "learning_rate": 2e-4},
}


class NextTokenConfig(Profiled):
    """The downstream model and how it is fine-tuned; public values only."""

    profiles: ClassVar[Profiles] = _PROFILES

    profile: Profile = "tiny"
    base: NonEmpty = setting(
        "tiny-gpt2", "Downstream model: shipped name, local folder or hub id. tiny tiny-gpt2, paper DistilGPT2."
    )
    max_length: int = setting(
        64, "Tokens of a text that are read, the begin token included; paper 64.", ge=2, le=100_000_000
    )
    epochs: CountOrZero = setting(2, "Passes over the texts; 0: none. tiny 2, paper 80.")
    batch_size: Size = setting(16, "Texts per step. tiny 16, paper 160.")
    learning_rate: LearningRate = setting(5e-4, "AdamW, constant. tiny 5e-4, paper 2e-4.")
    weight_decay: float = setting(0.01, "AdamW; 0.01 is torch's own.", ge=0, le=1)


@dataclass(frozen=True, eq=False)
class ClientScores:
    """What a model predicts of each client's text; internal.

    Attributes:
        tokens: (clients,) int64, predicted tokens.
        correct: (clients,) int64, those whose likeliest prediction is right.
        loss: (clients,) float64, summed negative log-likelihood in nats.
    """

    tokens: Counts
    correct: Counts
    loss: Floats

    @property
    def accuracy(self) -> float:
        """Share of all tokens that are predicted right."""
        return float(self.correct.sum() / self.tokens.sum())

    @property
    def loss_per_token(self) -> float:
        """Mean over all tokens, in nats."""
        return float(self.loss.sum() / self.tokens.sum())


def next_token_loss(model: torch.nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Mean negative log-likelihood of the counted tokens, differentiable; 0 where none counts.

    Args:
        model: a causal language model.
        ids: (rows, length) int64, padded on the right.
        mask: (rows, length), 1 at tokens whose prediction counts. The first column never counts.

    Returns:
        Scalar, float32.
    """
    losses = _losses(_logits(model, ids), ids)
    counted = mask[:, 1:].to(losses.dtype)
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def descend(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Sequence[int]],
    *,
    batch_of: Callable[[Sequence[int]], tuple[Tensor, Tensor]],
    taken: Callable[[int], None] | None = None,
) -> None:
    """Take one step of next-token loss per batch.

    Args:
        model: a causal language model, changed in place.
        optimizer: of what is trained of it.
        batches: rows of each step.
        batch_of: rows -> ids and mask, as `next_token_loss`.
        taken: called with the number of steps taken, after each.
    """
    for done, rows in enumerate(batches):
        ids, mask = batch_of(rows)
        optimizer.zero_grad()
        torch.autograd.backward(next_token_loss(model, ids, mask))
        optimizer.step()
        if taken is not None:
            taken(done + 1)
    optimizer.zero_grad()


def fine_tune(texts: Sequence[str], *, config: NextTokenConfig, seed: int, device: str = "cpu") -> LoadedModel:
    """Fine-tune a fresh copy of the downstream model on texts by next-token loss.

    Args:
        texts: (n,) synthetic, public or real texts.
        config: model and constants.
        seed: of the order of texts, the only random choice.
        device: torch device.

    Returns:
        The tuned model in eval mode. It carries the label of `texts`.

    Raises:
        InputError: when the model is unknown, its context too short, or no text has a token.
    """
    loaded = load_model(config.base)
    _check_context(loaded, config.max_length)
    encoded = [ids for ids in encode_texts(loaded.tokenizer, texts, max_length=config.max_length) if len(ids) > 1]
    if not encoded:
        raise RowError(f"expected texts to fine-tune on, found {len(texts)} without a single token")
    model: Any = loaded.model.requires_grad_(True).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    filler = pad_token_of(loaded.tokenizer)

    def batch_of(rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        return pad([encoded[row] for row in rows], pad_id=filler, device=torch.device(device))

    batches = _epochs(len(encoded), config, torch.Generator().manual_seed(seed))
    descend(model, optimizer, batches, batch_of=batch_of)
    return replace(loaded, model=model.requires_grad_(False))


def score_clients(
    loaded: LoadedModel, clients: Sequence[Sequence[str]], *, max_length: int = 64, batch_size: int = 32
) -> ClientScores:
    """Predict the next token throughout each client's samples.

    Args:
        loaded: model, in eval mode, and tokenizer.
        clients: (clients,) lists of samples; held out, private.
        max_length: as in training.
        batch_size: samples per forward pass.

    Raises:
        InputError: when there is no token to predict, or the context is too short.
    """
    _check_context(loaded, max_length)
    owners = np.repeat(np.arange(len(clients)), [len(samples) for samples in clients])
    texts = [text for samples in clients for text in samples]
    encoded = encode_texts(loaded.tokenizer, texts, max_length=max_length)
    tokens = np.array([len(ids) - 1 for ids in encoded], dtype=np.int64)
    if not tokens.sum():
        raise RowError(f"expected text of held-out clients, found {len(clients)} clients without a token to predict")
    correct, loss = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts))
    # Samples of like length share a batch: less padding, and no other effect.
    order = np.argsort(tokens, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        correct[rows], loss[rows] = _score(loaded, [encoded[row] for row in rows])
    return ClientScores(
        tokens=_sum_by(owners, tokens, len(clients)).astype(np.int64),
        correct=_sum_by(owners, correct, len(clients)).astype(np.int64),
        loss=_sum_by(owners, loss, len(clients)),
    )


def accuracy_interval(scores: ClientScores, *, seed: int, replicates: int = 2000, level: float = 0.95) -> Interval:
    """Accuracy over all tokens, with a percentile interval from a bootstrap over clients.

    With fewer than `FEWEST_RESAMPLED` clients that have a token, the interval is all that an accuracy can be.

    Args:
        scores: from `score_clients`.
        seed: of the bootstrap; public.
        replicates: bootstrap replicates.
        level: confidence.
    """
    draws = _drawn_accuracies([scores], seed=seed, replicates=replicates)[0]
    low, high = _limits(scores, draws, level, least=0.0)
    return Interval(scores.accuracy, low, high)


def accuracy_difference(
    a: ClientScores, b: ClientScores, *, seed: int, replicates: int = 2000, level: float = 0.95
) -> Interval:
    """Accuracy of a minus that of b on the same clients, each replicate drawing the same clients for both.

    With fewer than `FEWEST_RESAMPLED` clients that have a token, the interval is all that a difference can be.

    Raises:
        ValueError: when the two were not scored on the same clients.
    """
    if not np.array_equal(a.tokens, b.tokens):
        raise ValueError(f"expected the same clients on both sides, found {len(a.tokens)} and {len(b.tokens)}")
    drawn = _drawn_accuracies([a, b], seed=seed, replicates=replicates)
    low, high = _limits(a, drawn[0] - drawn[1], level, least=-1.0)
    return Interval(a.accuracy - b.accuracy, low, high)


def share_of_gap_closed(value: float, at_zero: float, at_inf: float) -> float | None:
    """How far `value` lies on the way from epsilon 0 to epsilon infinity; None where there is no gap to close.

    >>> share_of_gap_closed(0.375, 0.25, 0.75)
    0.25
    >>> share_of_gap_closed(0.375, 0.25, 0.25) is None
    True

    Args:
        value: accuracy after training on the texts in question.
        at_zero: of the public model as it is.
        at_inf: after training on the clients' own text without privacy.

    Returns:
        Below 0 for worse than the public model, above 1 for better than the real text.
    """
    return (value - at_zero) / (at_inf - at_zero) if at_inf > at_zero else None


def _check_context(loaded: LoadedModel, max_length: int) -> None:
    context = getattr(loaded.model.config, "max_position_embeddings", None)
    if context is not None and max_length > context:
        raise InputError(
            f"max_length={max_length}: the context of {loaded.name!r} holds {context} tokens; expected at most those"
        )


def _epochs(n: int, config: NextTokenConfig, generator: torch.Generator) -> Iterator[list[int]]:
    for _ in range(config.epochs):
        for batch in torch.split(torch.randperm(n, generator=generator), config.batch_size):
            yield batch.tolist()


def _logits(model: Any, ids: Tensor) -> Tensor:
    """(rows, length - 1, vocabulary) predictions of every token but the first.

    Padding is on the right, where causal attention never looks: leaving out its mask takes the faster kernel. A mask
    of ones is given all the same, for transformers warns without one.
    """
    logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    return logits[:, :-1]


def _losses(logits: Tensor, ids: Tensor) -> Tensor:
    """(rows, length - 1) negative log-likelihoods, float32."""
    flat = functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return flat.view(len(ids), -1)


def _score(loaded: LoadedModel, encoded: Sequence[Sequence[int]]) -> tuple[Counts, Floats]:
    """Right predictions and summed losses of each sequence."""
    device = next(loaded.model.parameters()).device
    ids, mask = pad(encoded, pad_id=pad_token_of(loaded.tokenizer), device=device)
    if ids.shape[1] == 1:
        return np.zeros(len(encoded), dtype=np.int64), np.zeros(len(encoded))
    with torch.no_grad():
        logits = _logits(loaded.model, ids)
        counted = mask[:, 1:].bool()
        right = (logits.argmax(-1) == ids[:, 1:]) & counted
        losses = (_losses(logits, ids).double() * counted).sum(1)
    return right.sum(1).cpu().numpy(), losses.cpu().numpy()


def _sum_by(owners: npt.NDArray[np.intp], values: npt.NDArray[Any], clients: int) -> Floats:
    return np.bincount(owners, weights=values, minlength=clients).astype(np.float64)


def _drawn_accuracies(sides: Sequence[ClientScores], *, seed: int, replicates: int) -> Floats:
    """(sides, replicates) accuracies over drawn clients; clients without a token stay out."""
    generator = np.random.default_rng(seed)
    kept = sides[0].tokens > 0
    tokens = sides[0].tokens[kept].astype(np.float64)
    correct = np.stack([side.correct[kept] for side in sides]).astype(np.float64)
    drawn = []
    for start in range(0, replicates, _CHUNK):
        size = min(_CHUNK, replicates - start)
        counts = generator.multinomial(len(tokens), np.full(len(tokens), 1 / len(tokens)), size=size)
        drawn.append(correct @ counts.T / (counts @ tokens))
    return np.concatenate(drawn, axis=1)


def _limits(scores: ClientScores, draws: Floats, level: float, *, least: float) -> tuple[float, float]:
    """Percentiles of the replicates; everything from `least` to 1 where too few clients have a token."""
    if np.count_nonzero(scores.tokens) < FEWEST_RESAMPLED:
        return least, 1.0
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

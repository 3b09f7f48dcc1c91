"""Which matched texts are kept (GRADMM, section 4.4, Algorithm 1 lines 14 to 16; prompt after appendix B.2, Figure 6).

Few-shot label check, then the r lowest matching losses of each label, then dropping the highest losses of labels whose
mean loss exceeds the others'. All of it is post-processing of the noised target: texts, losses and the public model
are all that is read, never a real row.

*Guarantee*: none of its own; what comes out carries the guarantee of the target that the texts were matched to.

Where the paper is silent, or we deviate:
- The check may read the texts of some labels only: of those that the model can tell (`filter.label_check`).
- A text that is empty after decoding is dropped before everything else.
- The check asks as training does, `text + template`, and takes the likeliest of the label words; the paper prompts with
  "Label:". Examples are public and come from the config; without any the model is asked directly.
- The paper's r is for all labels together (100 of 200); here it counts per label, as METHODS has it, or is a share.
- "Exceeds the others'" means the lowest of the mean losses when the step begins: that label loses nothing, every other
  one its highest losses until its mean is no higher. A label whose losses all lie above that mean could not be
  balanced but by losing everything; at least a quarter of a label's texts stay (the paper's own run kept 18 of 50 or
  more).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from understudy.errors import InputError
from understudy.evaluation.utility.label_model import LabelModel, encode_row, predict_encoded
from understudy.methods.gradient_matching.config import FilterConfig
from understudy.methods.gradient_matching.verbalizer import Verbalizer
from understudy.models.loading import LoadedModel
from understudy.quantities import rounded_up

Reason = Literal["empty", "wrong_label", "high_loss", "unbalanced"]
Rows = npt.NDArray[np.int64]
Losses = npt.NDArray[np.floating]
Exemplar = tuple[str, int]  # public text, index of its label

LEAST_SHARE = 0.25  # of a label's texts that balancing leaves
_BETWEEN = "\n\n"


@dataclass(frozen=True)
class Kept:
    """What one step kept and why the others went.

    Attributes:
        rows: (m,) positions in the arrays handed in, ascending.
        reason: why the others were dropped.
        dropped: (K,) how many, per label.
    """

    rows: Rows
    reason: Reason
    dropped: tuple[int, ...]


@dataclass(frozen=True)
class Filtered:
    """What all steps together kept.

    Attributes:
        rows: (m,) positions in what was handed in, ascending.
        steps: the steps taken, in order; their `rows` are positions in what the step before left.
        spare: (s,) positions of what balancing alone dropped.
        checked: (K,) texts that the label check read, per label.
    """

    rows: Rows
    steps: tuple[Kept, ...]
    spare: Rows
    checked: tuple[int, ...]

    def report(self, label_names: Sequence[str]) -> dict[str, dict[str, int]]:
        """Reason -> label name -> texts dropped, in the order of the steps."""
        return {step.reason: dict(zip(label_names, step.dropped, strict=True)) for step in self.steps}


def filter_texts(
    texts: Sequence[str],
    losses: Losses,
    labels: Sequence[int] | Rows,
    *,
    base: LoadedModel,
    verbalizer: Verbalizer,
    config: FilterConfig,
    max_length: int,
) -> Filtered:
    """Take the steps that the config asks for, in the paper's order.

    Args:
        texts: (n,) matched texts.
        losses: (n,) their matching losses.
        labels: (n,) label indices.
        base: public language model.
        verbalizer: its label words and template.
        config: which steps, public examples and r.
        max_length: tokens of a text that the label check reads.

    Raises:
        InputError: examples or the check name an unknown label, or examples do not fit the model's context.
        ValueError: the lengths differ, a label is out of range or a loss is not finite.
    """
    truth, classes = np.asarray(labels, np.int64), len(verbalizer.label_names)
    _check(losses, truth, classes=classes, texts=len(texts))
    steps = [keep_where(np.array([bool(t.strip()) for t in texts], bool), truth, reason="empty", classes=classes)]
    rows = steps[0].rows
    reads = np.array([name in checked_labels(config, verbalizer.label_names) for name in verbalizer.label_names], bool)
    read = rows[reads[truth[rows]]]
    if reads.any():
        exemplars = exemplars_of(config, verbalizer.label_names)
        said = truth.copy()
        said[read] = few_shot_labels(
            [texts[row] for row in read],
            base=base,
            verbalizer=verbalizer,
            exemplars=exemplars,
            max_length=max_length,
            prior=[config.prior.get(name, 0.0) for name in verbalizer.label_names],
        )
        steps.append(keep_where(said[rows] == truth[rows], truth[rows], reason="wrong_label", classes=classes))
        rows = rows[steps[-1].rows]
    steps.append(keep_lowest_losses(losses[rows], truth[rows], keep=config.keep_lowest, classes=classes))
    rows = rows[steps[-1].rows]
    unbalanced = rows
    if config.balance:
        steps.append(balance_mean_losses(losses[rows], truth[rows], classes=classes))
        rows = rows[steps[-1].rows]
    spare = np.setdiff1d(unbalanced, rows)
    return Filtered(rows, tuple(steps), spare, tuple(np.bincount(truth[read], minlength=classes).tolist()))


def keep_where(keep: npt.NDArray[np.bool_], labels: Rows, *, reason: Reason, classes: int) -> Kept:
    """Keep the rows where `keep` (n,) is true."""
    return _kept(np.flatnonzero(keep), labels, reason=reason, classes=classes)


def keep_lowest_losses(losses: Losses, labels: Rows, *, keep: int | float, classes: int) -> Kept:
    """The lowest losses of each label (Algorithm 1, line 15); ties go to the earlier row.

    Args:
        losses: (n,) finite matching losses.
        labels: (n,) label indices.
        keep: an int: the paper's r, rows per label; a float: share of the label's rows, rounded up.
        classes: number of labels.

    Raises:
        ValueError: as `filter_texts`, or when `keep` is neither >= 1 nor a share in (0, 1].
    """
    _check(losses, labels, classes=classes)
    if not (keep >= 1 if isinstance(keep, int) else 0 < keep <= 1):
        raise ValueError(f"keep={keep!r}: expected a whole number >= 1 or a share above 0 and at most 1.0")
    chosen = []
    for ranked in _ranked(losses, labels, classes=classes):
        count = keep if isinstance(keep, int) else rounded_up(keep * len(ranked))
        chosen.append(ranked[:count])
    return _kept(np.concatenate(chosen), labels, reason="high_loss", classes=classes)


def balance_mean_losses(losses: Losses, labels: Rows, *, classes: int, least_share: float = LEAST_SHARE) -> Kept:
    """Drop the highest losses of labels whose mean exceeds the lowest mean (Algorithm 1, line 16).

    Every label keeps the longest run of its lowest losses whose mean is at most the lowest of the labels' means, but
    never less than `least_share` of its rows, rounded up. Labels without a row do not count.

    Args:
        losses: (n,) finite matching losses.
        labels: (n,) label indices.
        classes: number of labels.
        least_share: above 0, at most 1.

    Raises:
        ValueError: as `filter_texts`.
    """
    _check(losses, labels, classes=classes)
    ranked = [rows for rows in _ranked(losses, labels, classes=classes) if len(rows)]
    # Means of growing runs of the lowest losses never fall, so the last one is the label's own.
    means = [np.cumsum(losses[rows], dtype=np.float64) / np.arange(1, len(rows) + 1) for rows in ranked]
    reference = min((float(mean[-1]) for mean in means), default=0.0)
    chosen = [np.zeros(0, np.int64)]
    for rows, mean in zip(ranked, means, strict=True):
        below = len(rows) if mean[-1] <= reference else int((mean <= reference).sum())
        chosen.append(rows[: max(below, rounded_up(least_share * len(rows)))])
    return _kept(np.concatenate(chosen), labels, reason="unbalanced", classes=classes)


def exemplars_of(config: FilterConfig, label_names: Sequence[str]) -> list[Exemplar]:
    """The config's public examples, the labels in turn: first each label's first, then each one's second.

    Raises:
        InputError: Examples are given for a label that is not declared.
    """
    unknown = sorted(set(config.examples) - set(label_names))
    if unknown:
        raise InputError(f"filter.examples names {unknown}: expected labels among {list(label_names)}")
    texts = [config.examples.get(name, ()) for name in label_names]
    rounds = max(map(len, texts), default=0)
    return [(own[turn], label) for turn in range(rounds) for label, own in enumerate(texts) if turn < len(own)]


def checked_labels(config: FilterConfig, label_names: Sequence[str]) -> tuple[str, ...]:
    """The labels whose texts the label check reads; none while it is `auto`.

    Raises:
        InputError: a label that is not declared.
    """
    if not isinstance(config.label_check, tuple):
        return tuple(label_names) if config.label_check is True else ()
    unknown = sorted(set(config.label_check) - set(label_names))
    if unknown:
        raise InputError(f"filter.label_check names {unknown}: expected labels among {list(label_names)}")
    return config.label_check


def few_shot_labels(
    texts: Sequence[str],
    *,
    base: LoadedModel,
    verbalizer: Verbalizer,
    exemplars: Sequence[Exemplar],
    max_length: int,
    prior: Sequence[float] = (),
) -> Rows:
    """The label that the public model gives each text after public examples; batched and padded.

    Reads `BOS (example template word)* text template` and takes the likeliest of the K label words.

    Args:
        texts: (n,) synthetic texts.
        base: public language model.
        verbalizer: its label words and template.
        exemplars: public texts with their label indices; may be empty.
        max_length: tokens of a text, and of each example, that are read.
        prior: (K,) taken off the words' log-probabilities; of a prompt without examples.

    Returns:
        (n,) int64.

    Raises:
        InputError: Examples and text do not fit the model's context.
    """
    target = LabelModel(base.model, base.tokenizer, verbalizer, max_length, prior=() if exemplars else tuple(prior))
    between = base.tokenizer.encode(_BETWEEN, add_special_tokens=False, verbose=False)
    bos = encode_row(target, "")[:1]
    shown = list(bos)
    for text, label in exemplars:
        shown += [*encode_row(target, text)[1:], int(verbalizer.token_ids[label]), *between]
    longest = len(shown) + max_length + len(verbalizer.template_ids)
    context = getattr(base.model.config, "max_position_embeddings", None)
    if context is not None and longest > context:
        raise InputError(
            f"filter.examples: {len(exemplars)} examples and a text of {max_length} tokens take {longest} tokens, the "
            f"model's context holds {context}; give fewer or shorter examples"
        )
    return predict_encoded(target, [shown + encode_row(target, text)[1:] for text in texts])


def _ranked(losses: Losses, labels: Rows, *, classes: int) -> list[Rows]:
    """Rows of each label from low to high loss."""
    order = np.argsort(losses, kind="stable")
    return [order[labels[order] == label] for label in range(classes)]


def _kept(rows: Rows, labels: Rows, *, reason: Reason, classes: int) -> Kept:
    dropped = np.bincount(labels, minlength=classes) - np.bincount(labels[rows], minlength=classes)
    return Kept(np.sort(rows), reason, tuple(dropped.tolist()))


def _check(losses: Losses, labels: Rows, *, classes: int, texts: int | None = None) -> None:
    if losses.shape != labels.shape or losses.ndim != 1 or texts not in (None, len(losses)):
        raise ValueError(f"expected one loss and one label per text, found {losses.shape} and {labels.shape}")
    if not np.isfinite(losses).all() or ((labels < 0) | (labels >= classes)).any():
        raise ValueError(f"expected finite losses and labels in 0..{classes - 1}")

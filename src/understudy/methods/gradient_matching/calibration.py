"""Words and a template that nobody chose: calibrated on texts that the public model wrote, before the charge.

The paper writes words and templates by hand for each data set (GRADMM, appendix B). Here a user gives label names only.
Candidates for a label's word are its name, a few synonyms, and the words that the model itself finds likelier after its
texts of this label than after the others'. Words are scored by the cross-entropy of the right label on half of the
model's own texts, labels balanced, with the prior over words removed: the mean log-probability after texts that say
nothing (contextual calibration, Zhao et al. 2021, arXiv 2102.09690). The other half says how often the choice is right.
There synonyms must have a lower loss than the names, and the model's own words must be right clearly more often: a
small model finds some word for every few texts. The same half says of which labels the model can tell a text: the label
check reads those only, because it would drop the others' texts at random.

No private row is read: everything here is a function of the model's files and of public words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from scipy.stats import binomtest, fisher_exact
from torch import Tensor

from understudy.errors import InputError
from understudy.generation.own_texts import write_own_texts
from understudy.generation.prompts import encode_text, position_ids, special_ids
from understudy.generation.step import backbone, next_logits
from understudy.methods.gradient_matching.config import GradientMatchingConfig, VerbalizerConfig
from understudy.methods.gradient_matching.verbalizer import build_verbalizer, check_words, first_token
from understudy.models.choices import question_of, remembered
from understudy.models.loading import LoadedModel

TEMPLATES: Final = (" It was", " Label:", " Category:", " This is about", " The feeling is")
SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    "positive": ("good", "great", "wonderful"),
    "negative": ("bad", "terrible", "awful"),
    "neutral": ("okay", "ordinary", "average"),
    "joy": ("happy", "glad", "joyful"),
    "anger": ("angry", "furious", "mad"),
    "sadness": ("sad", "depressed", "unhappy"),
    "fear": ("afraid", "scared", "worried"),
    "optimism": ("hopeful", "optimistic", "confident"),
    "love": ("lovely", "loving", "dear"),
    "surprise": ("surprised", "amazed", "unexpected"),
    "world": ("international", "politics", "countries"),
    "sports": ("sport", "game", "football"),
    "business": ("economy", "money", "companies"),
    "sci/tech": ("technology", "science", "computers"),
    "yes": ("right", "true"),
    "no": ("wrong", "false"),
    "spam": ("advertising", "junk"),
    "ham": ("personal", "normal"),
}
_VERSION: Final = 2  # of the way words are chosen; what was remembered by another is not taken
_PER_LABEL: Final = 24
_TOKENS: Final = 24
_OWN_WORDS: Final = 4
_SAYING_NOTHING: Final = ("", "N/A", "...")
_ROWS: Final = 32


@dataclass(frozen=True)
class Calibration:
    """What was chosen, and what it is worth on the model's own texts; public.

    Attributes:
        template: text between a text and its label's word.
        words: label name -> word.
        prior: label name -> log-probability of its word after texts that say nothing, the labels' mean subtracted.
        accuracy: share of the other half of the own texts whose label is told.
        told: labels whose word is likeliest more often after their own texts than after the others', of that half.
    """

    template: str
    words: dict[str, str]
    prior: dict[str, float]
    accuracy: float
    told: tuple[str, ...]

    @property
    def label_check(self) -> bool | tuple[str, ...]:
        """Which labels' texts the label check reads: all, none, or those that are told."""
        return self.told if 0 < len(self.told) < len(self.words) else bool(self.told)


def calibrate(base: LoadedModel, label_names: Sequence[str], config: GradientMatchingConfig) -> Calibration:
    """Choose template and words where they are `auto`, and say what they are worth.

    Args:
        base: public model.
        label_names: every label, public.
        config: gives the words about the rows, the public seed, and what is chosen already.
    """
    texts, labels = write_own_texts(
        base, label_names, about=config.about, per_label=_PER_LABEL, tokens=_TOKENS, public_seed=config.public_seed
    )
    told = torch.tensor(labels, device="cpu")
    first_half = torch.arange(len(labels), device="cpu") % 2 == 0
    templates = TEMPLATES if config.verbalizer.template == "auto" else (config.verbalizer.template,)
    answers = [
        _Answers(
            template,
            raw=_last_log_probabilities(base, template, texts),
            prior=_last_log_probabilities(base, template, _SAYING_NOTHING).mean(0),
        )
        for template in templates
    ]
    written = _written(label_names, config.verbalizer)
    choice = _best([names[:1] for names in written], answers, base.tokenizer, told, first_half)
    if config.verbalizer.words == "auto":
        synonyms = _best(written, answers, base.tokenizer, told, first_half)
        if choice is None or (synonyms and synonyms.loss(told, ~first_half) < choice.loss(told, ~first_half)):
            choice = synonyms
        own = _best(written, answers, base.tokenizer, told, first_half, own=True)
        if choice is None or (own and _clearly_better(own, choice, told, ~first_half)):
            choice = own
    if choice is None:
        raise InputError(
            f"label names {list(label_names)} begin with the same tokens, and no other word tells them apart: give a "
            "word for each label with verbalizer.words"
        )
    return _calibration(choice, label_names, told, ~first_half)


@dataclass(frozen=True)
class _Word:
    text: str
    token: int


@dataclass(frozen=True)
class _Answers:
    """Log-probabilities of the next token after each text and a template.

    Attributes:
        template: public.
        raw: `(texts, vocab)` float32.
        prior: `(vocab,)` mean after texts that say nothing.
    """

    template: str
    raw: Tensor
    prior: Tensor

    def scores(self, words: Sequence[_Word]) -> Tensor:
        """`(texts, K)` log-probabilities of the words, the prior removed."""
        tokens = [word.token for word in words]
        return self.raw[:, tokens] - self.prior[tokens]

    def loss(self, words: Sequence[_Word], labels: Tensor, rows: Tensor) -> float:
        """Mean cross-entropy of the right label among the words, in nats."""
        return float(torch.nn.functional.cross_entropy(self.scores(words)[rows], labels[rows]))


def _last_log_probabilities(base: LoadedModel, template: str, texts: Sequence[str]) -> Tensor:
    """`(texts, vocab)` after `BOS text template`, float32 on the CPU."""
    tokenizer: Any = base.tokenizer
    bos, _, pad = special_ids(tokenizer)
    after = tokenizer.encode(template, add_special_tokens=False, verbose=False)
    device = next(base.model.parameters()).device
    found = []
    for start in range(0, len(texts), _ROWS):
        rows = [[bos, *encode_text(tokenizer, text), *after] for text in texts[start : start + _ROWS]]
        width = max(map(len, rows))
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        with torch.no_grad():
            outputs = backbone(base.model)(input_ids=ids, attention_mask=mask, position_ids=position_ids(mask))
            logits = next_logits(base.model, outputs.last_hidden_state[:, -1])
        found.append(logits.log_softmax(-1).float().cpu())
    return torch.cat(found)


@dataclass(frozen=True)
class _Choice:
    """A template, by its answers, with a word for each label."""

    answers: _Answers
    words: tuple[_Word, ...]

    def loss(self, labels: Tensor, rows: Tensor) -> float:
        return self.answers.loss(self.words, labels, rows)

    def right(self, labels: Tensor, rows: Tensor) -> Tensor:
        """`(rows,)` bool, whether the likeliest word is the label's."""
        return self.answers.scores(self.words)[rows].argmax(-1) == labels[rows]


def _written(label_names: Sequence[str], settings: VerbalizerConfig) -> list[tuple[str, ...]]:
    """For each label the words that may stand for it: the one that is given, or its name and synonyms."""
    if isinstance(settings.words, dict):
        return [(settings.words[name],) for name in label_names]
    return [(name, *SYNONYMS.get(name.lower(), ())) for name in label_names]


def _best(
    written: Sequence[Sequence[str]],
    answers: Sequence[_Answers],
    tokenizer: Any,
    labels: Tensor,
    rows: Tensor,
    *,
    own: bool = False,
) -> _Choice | None:
    """The template and words of least loss on some rows; None where no words have tokens that differ.

    Args:
        written: words that may stand for each label.
        answers: of each template.
        tokenizer: of the model.
        labels: `(texts,)` labels of the model's own texts.
        rows: `(texts,)` which of them decide.
        own: whether the model's own words may stand for a label too.
    """
    found = []
    for each in answers:
        further = _own_words(tokenizer, each, labels, len(written), rows) if own else [()] * len(written)
        candidates = [
            [*(_Word(text, token) for text in texts if (token := first_token(tokenizer, each.template, text))), *more]
            for texts, more in zip(written, further, strict=True)
        ]
        words = _choose(each, candidates, labels, rows)
        if len({word.token for word in words}) == len(written):
            found.append(_Choice(each, tuple(words)))
    return min(found, key=lambda choice: choice.loss(labels, rows), default=None)


def _clearly_better(one: _Choice, other: _Choice, labels: Tensor, rows: Tensor) -> bool:
    """Whether a choice is right more often than chance would have it (sign test, one-sided 5 %)."""
    right, wrong = one.right(labels, rows), other.right(labels, rows)
    gained, lost = int((right & ~wrong).sum()), int((~right & wrong).sum())
    return gained > lost and binomtest(gained, gained + lost, alternative="greater").pvalue < 0.05


def _own_words(tokenizer: Any, answers: _Answers, labels: Tensor, classes: int, rows: Tensor) -> list[list[_Word]]:
    """The words that the model finds likelier after texts of one label than after the others'."""
    means = torch.stack([answers.raw[rows & (labels == label)].mean(0) for label in range(classes)])
    found = []
    for label in range(classes):
        others = means[[other for other in range(classes) if other != label]].amax(0)
        # Where the label makes the most of a difference, among words that come up at all.
        gain = torch.where(means[label] > math.log(1e-4), means[label] - others, -torch.inf)
        words = []
        for token in gain.argsort(descending=True, stable=True)[: 10 * _OWN_WORDS].tolist():
            text = tokenizer.decode([token])
            if text.startswith(" ") and text.strip().isalpha() and len(text) > 3 and gain[token] > 0:
                words.append(_Word(text.strip(), token))
        found.append(words[:_OWN_WORDS])
    return found


def _choose(answers: _Answers, candidates: Sequence[Sequence[_Word]], labels: Tensor, rows: Tensor) -> list[_Word]:
    """One word per label with tokens that differ, by coordinate descent on the loss."""
    words: list[_Word] = []
    for options in candidates:
        taken = {word.token for word in words}
        words += [next((word for word in options if word.token not in taken), options[0])] if options else []
    if len(words) < len(candidates):
        return []
    for _ in range(2):
        for label, options in enumerate(candidates):
            taken = {word.token for other, word in enumerate(words) if other != label}

            def loss(word: _Word, at: int = label) -> float:
                return answers.loss([*words[:at], word, *words[at + 1 :]], labels, rows)

            words[label] = min((word for word in options if word.token not in taken), key=loss, default=words[label])
    return words


def _calibration(choice: _Choice, names: Sequence[str], labels: Tensor, rows: Tensor) -> Calibration:
    right = choice.right(labels, rows)
    said = choice.answers.scores(choice.words)[rows].argmax(-1)
    prior = choice.answers.prior[[word.token for word in choice.words]]
    return Calibration(
        template=choice.answers.template,
        words={name: word.text for name, word in zip(names, choice.words, strict=True)},
        prior={name: round(float(value), 2) for name, value in zip(names, prior - prior.mean(), strict=True)},
        accuracy=float(right.double().mean()),
        told=tuple(name for label, name in enumerate(names) if _is_told(label, said, labels[rows], len(names))),
    )


def _is_told(label: int, said: Tensor, labels: Tensor, classes: int) -> bool:
    """Whether a label is said of its own texts more often than of the others' (Fisher's exact test).

    One-sided at 5 % over the classes: a model that tells nothing has any label checked in at most one of 20 cases.
    """
    own, called = labels == label, said == label
    counts = [[int((own & called).sum()), int((own & ~called).sum())]]
    counts += [[int((~own & called).sum()), int((~own & ~called).sum())]]
    return bool(fisher_exact(counts, alternative="greater").pvalue < 0.05 / classes)


def resolve_for(
    config: GradientMatchingConfig, label_names: Sequence[str], *, base: Callable[[], LoadedModel], kept_in: Path
) -> GradientMatchingConfig:
    """The settings with a word for each label, a template and a decision about the label check in place of `auto`.

    Args:
        config: `model_digest` may be empty.
        label_names: every label, public.
        base: loads the public model; called only where nothing is remembered.
        kept_in: folder of earlier choices.

    Raises:
        InputError: fewer than two labels, or words that do not fit them.
    """
    words, check = config.verbalizer, config.filter.label_check
    if "auto" not in (words.template, words.words, check):
        return config
    check_words(label_names, words)
    question = {
        **question_of(config, label_names, of="words for labels", version=_VERSION),
        "verbalizer": words.model_dump(mode="json"),
    }

    def choose() -> dict[str, Any]:
        loaded = base()
        if isinstance(words.words, dict):
            build_verbalizer(loaded.tokenizer, label_names, words)  # refuses words that cannot stand for labels
        return asdict(calibrate(loaded, label_names, config))

    kept = remembered(question, choose, folder=kept_in)
    found = Calibration(**{**kept, "told": tuple(kept["told"])})
    chosen = words.model_copy(update={"template": found.template, "words": found.words})
    told = {"label_check": found.label_check, "prior": found.prior} if check == "auto" else {}
    return config.model_copy(update={"verbalizer": chosen, "filter": config.filter.model_copy(update=told)})

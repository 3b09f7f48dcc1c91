"""The rows, public declarations and caches that the cells of the gradient-matching benchmark share.

The embeddings and states of real rows in the cache are internal: nothing made here is exported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import short_digest, temporary
from simulation import model_of
from torch import Tensor

from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.utility.label_model import LabelModel, encode_rows, last_states
from understudy.evaluation.utility.transfer import TransferConfig, WordsOf
from understudy.methods.gradient_matching.calibration import resolve_for
from understudy.methods.gradient_matching.config import GradientMatchingConfig, VerbalizerConfig
from understudy.methods.gradient_matching.targets import TargetSpace, target_space
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.models.named import NAMED_MODELS
from understudy.runs.overrides import apply_overrides

# An epsilon at which 50 rows together hardly change what comes out: what matching to noise looks like.
NOISE_ALONE = 0.001


@dataclass(frozen=True)
class Dataset:
    """What is declared about a data set; all of it public and chosen before any run."""

    label_names: tuple[str, ...]
    words: dict[str, str]
    template: str
    instruction: str
    test: str
    about: str


DATASETS = {
    "rotten_tomatoes": Dataset(
        label_names=("negative", "positive"),
        words={"negative": "bad", "positive": "great"},
        template=" It was",
        instruction="Write a movie review. Sentiment: {label}\nReview:",
        test="test",
        about="one-sentence film reviews",
    ),
    # Its published test split is not at hand: the validation split, which nothing is tuned on, takes its place.
    "tweet_emotion": Dataset(
        label_names=("anger", "joy", "optimism", "sadness"),
        words={"anger": "angry", "joy": "happy", "optimism": "hopeful", "sadness": "sad"},
        template=" I feel",
        instruction="Write a tweet. Emotion: {label}\nTweet:",
        test="validation",
        about="tweets",
    ),
}


@dataclass(frozen=True)
class Settings:
    """What all cells of one run have in common.

    Attributes:
        data: folder of the data sets' folders.
        cache: folder of finished cells and of what they share.
        samples: synthetic rows, and rows that a baseline chooses.
        rounds: ADMM rounds.
        inner_steps: Adam steps per round.
        oversample: texts matched per text wanted.
        overrides: further settings of the method, `path=value`, for trying others than the defaults.
        models: target models that are fine-tuned; the first is the one whose gradient is matched.
        compared: matched texts that are compared with plain samples.
        full_reports: also measure what the paper's figures show, at seed 0.
        about: words, template and label check are the method's own choice, and prompts say what the rows are, as in a
            user's first command with `--about`. Off: what `DATASETS` declares.
    """

    data: Path
    cache: Path
    samples: int = 40
    rounds: int = 10
    inner_steps: int = 10
    oversample: float = 2.0
    overrides: tuple[str, ...] = ()
    models: tuple[str, ...] = ("tiny-llama", "tiny-gpt2")
    compared: int = 40
    full_reports: bool = False
    about: bool = False


@dataclass(frozen=True)
class Cell:
    """One line of work.

    Attributes:
        dataset: of `DATASETS`.
        condition: what makes the training rows.
        real: real rows that the condition may read; 0: none, None: all of them.
        epsilon: of the release; infinite where nothing is noised.
        target: which gradient is released; empty where none is.
        seed: of everything public; also of which real rows are taken.
    """

    dataset: str
    condition: str
    real: int | None
    epsilon: float = math.inf
    target: str = ""
    seed: int = 0

    @property
    def name(self) -> str:
        """A file name."""
        real = "all" if self.real is None else str(self.real)
        words = f"{self.dataset} {self.condition} real {real} eps {self.epsilon:g} {self.target} seed {self.seed}"
        return "-".join("".join(c if c.isalnum() or c in "._" else " " for c in words).split())


def configure(settings: Settings, cell: Cell) -> GradientMatchingConfig:
    """The method's settings of a cell: its defaults but for what is declared and asked for, nothing left to choose."""
    asked, names = asked_for(settings, cell), DATASETS[cell.dataset].label_names
    kept = settings.cache / "calibrations"
    return resolve_for(asked, names, base=lambda: model_of(asked.model), kept_in=kept) if settings.about else asked


def asked_for(settings: Settings, cell: Cell) -> GradientMatchingConfig:
    """The settings of a cell before the method has chosen words where it may."""
    declared = DATASETS[cell.dataset]
    words = {
        "verbalizer": {"template": declared.template, "words": declared.words},
        "projection": {"instruction": declared.instruction},
    }
    config = GradientMatchingConfig.model_validate(
        {
            "samples": settings.samples,
            "public_seed": cell.seed,
            "target": {"kind": cell.target} if cell.target else {},
            "matching": {"rounds": settings.rounds, "inner_steps": settings.inner_steps},
            "filter": {"oversample": settings.oversample},
            "model": settings.models[0],
        }
        | ({"about": declared.about} if settings.about else words)
    )
    return apply_overrides(config, list(settings.overrides))


def transfer_config(model: str) -> TransferConfig:
    """200 steps of 16 rows at most, whatever the table's size, which bounds the cost of all real rows.

    The upper two fifths of the layers are trained, as `tiny` does with the shipped models.
    """
    config = TransferConfig(profile="tiny", base=model)
    if (named := NAMED_MODELS.get(model)) is not None and named.is_shipped:
        return config
    layers = int(model_of(model).model.config.num_hidden_layers)
    return config.model_copy(update={"frozen_lower_layers": layers * 3 // 5})


def digest_of(settings: Settings, cell: Cell) -> str:
    """Short digest of every setting that a cell's figures depend on: a cell of other settings is done again."""
    facts = {
        "config": json.loads(asked_for(settings, cell).model_dump_json(exclude={"model_digest"})),
        "transfer": [transfer_config(model).model_dump() for model in settings.models],
        "compared": settings.compared if cell.condition == "plain samples" else None,
        "models": [model_of(model).digest for model in settings.models],
        "dataset": {key: value for key, value in asdict(DATASETS[cell.dataset]).items() if key != "about"},
    }
    return short_digest(facts)


@lru_cache(maxsize=8)
def read(data: Path, dataset: str, split: str) -> LabelledTexts:
    """A split, the declared name standing for the split that is tested on."""
    import pyarrow.parquet as pq

    declared = DATASETS[dataset]
    table = pq.read_table(data / dataset / f"{declared.test if split == 'test' else split}.parquet")
    labels = np.asarray(table["label"].to_pylist(), np.int64)
    return LabelledTexts(table["text"].to_pylist(), labels, declared.label_names)


def words_of(dataset: str, config: VerbalizerConfig) -> WordsOf:
    """Label words and template of a run in any tokenizer."""
    return partial(build_verbalizer, label_names=DATASETS[dataset].label_names, config=config)


def taken(settings: Settings, cell: Cell) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Numbers of the real rows that a cell may read: all, or as equally many of each label as the number allows."""
    labels = np.asarray(read(settings.data, cell.dataset, "train").labels)
    if cell.real is None:
        return np.arange(len(labels))
    generator, classes = np.random.default_rng([cell.seed, cell.real]), len(DATASETS[cell.dataset].label_names)
    sizes = [cell.real // classes + (label < cell.real % classes) for label in range(classes)]
    return np.concatenate(
        [generator.permutation(np.flatnonzero(labels == label))[:size] for label, size in enumerate(sizes)]
    )


def subset(rows: LabelledTexts, chosen: Sequence[int] | np.ndarray[Any, Any]) -> LabelledTexts:
    """Some of the rows, in the given order."""
    return LabelledTexts([rows.texts[i] for i in chosen], np.asarray(rows.labels)[chosen], rows.label_names)


def words_key(settings: Settings, cell: Cell) -> str:
    """What tells the words and template of a cell apart from others of its data set; empty for the declared ones."""
    if not settings.about:
        return ""
    return "-" + short_digest(configure(settings, cell).verbalizer.model_dump(mode="json"))


def embeddings(settings: Settings, dataset: str, split: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Sentence embeddings of a split, from the cache or now."""
    from understudy.evaluation.texts.encoder import embed, load_encoder

    path = settings.cache / f"{dataset}-{split}-embedded.npy"
    if not path.exists():
        save(path, embed(read(settings.data, dataset, split).texts, load_encoder()))
    found: np.ndarray[Any, np.dtype[np.float32]] = np.load(path)
    return found


def states(settings: Settings, cell: Cell) -> Tensor:
    """What enters the head for every training row, `(n, d)`: all that any of the three targets needs.

    One pass over the training set serves every target, epsilon and seed. It is what `release_target` computes on the
    way, up to the last bits of float arithmetic: there rows are padded to one public width, here sorted by length.
    """
    config = configure(settings, cell)
    base = model_of(config.model)
    key = f"{base.digest[:8]}-{config.max_length}{words_key(settings, cell)}"
    path = settings.cache / f"{cell.dataset}-states-{key}.npy"
    if not path.exists():
        words = words_of(cell.dataset, config.verbalizer)(base.tokenizer)
        target = LabelModel(base.model, base.tokenizer, words, config.max_length)
        encoded = encode_rows(target, read(settings.data, cell.dataset, "train").texts)
        order = torch.tensor(sorted(range(len(encoded)), key=lambda row: len(encoded[row])))
        with torch.no_grad():
            found = [last_states(target, [encoded[row] for row in part.tolist()]) for part in order.split(64)]
        save(path, torch.cat(found)[order.argsort()].numpy())
    return torch.from_numpy(np.load(path))


def space_of(config: GradientMatchingConfig, dataset: str, *, seed: int) -> TargetSpace:
    """The space of the matched model's gradients."""
    base = model_of(config.model)
    words = words_of(dataset, config.verbalizer)(base.tokenizer)
    return target_space(base.model, words, config.target, public_seed=seed)


def dataset_of(label_names: Sequence[str]) -> str:
    """The data set that declares these labels."""
    return next(name for name, declared in DATASETS.items() if declared.label_names == tuple(label_names))


def save(path: Path, values: np.ndarray[Any, Any]) -> None:
    """Write an array, whole or not at all."""
    with temporary(path) as part, part.open("wb") as file:
        np.save(file, values)

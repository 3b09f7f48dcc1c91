"""Topics found in texts that the public model writes itself, before the charge and without a private row.

CTCL (Tan et al. 2025, arXiv 2503.12347) clusters a large public corpus. Deviation: here the base model
writes the texts, with the run's own prompts, so nobody has to supply any. Their sentence embeddings are clustered by
k-means, jointly over all labels, and each cluster is named by the words that tell it from the others: class-based
TF-IDF (Grootendorst 2022, BERTopic, arXiv 2203.05794, section 3.3). Words are of letters, and neither English stop
words nor parts of a label's name. A cluster without enough words of its own is no topic, so fewer may be found than
were asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from understudy.errors import InputError
from understudy.evaluation.texts import encoder
from understudy.generation.own_texts import write_own_texts
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.fitting import check_model
from understudy.methods.conditional_generation.topics_config import Topics, TopicsConfig
from understudy.models.choices import question_of, remembered
from understudy.models.loading import LoadedModel

_VERSION: Final = 1  # of the way topics are found; what was remembered by another is not taken
_TOKENS: Final = 47
# Of one text alone a word says nothing of a topic.
_TEXTS_WITH_WORD: Final = 2
_WORD: Final = r"(?u)\b[^\W\d_]{3,20}\b"


def resolve_topics(
    config: ConditionalGenerationConfig,
    label_names: Sequence[str],
    *,
    base: Callable[[], LoadedModel],
    kept_in: Path,
) -> ConditionalGenerationConfig:
    """The settings with the words of every topic, where topics are wanted and none are given.

    Args:
        config: `model_digest` may be empty.
        label_names: every label, public.
        base: loads the public model; called only where nothing is remembered.
        kept_in: folder of earlier choices.

    Raises:
        InputError: as `check_model`, or the model writes too few texts or words.
    """
    topics = config.topics
    if not topics.active or topics.keywords != "auto":
        return config
    tokens = min(_TOKENS, config.train.max_length - 1)
    question = {
        **question_of(config, label_names, of="topics", version=_VERSION),
        "prompt": config.prompt.model_dump(mode="json"),
        "encoder": encoder.encoder_digest(),
        "asked": [topics.number, topics.words, topics.texts, tokens],
    }

    def choose() -> dict[str, Any]:
        plain = config.model_copy(update={"topics": TopicsConfig()})
        check_model(plain, label_names)
        texts, _ = write_own_texts(
            base(),
            label_names,
            about=config.about,
            per_label=topics.texts,
            tokens=tokens,
            public_seed=config.public_seed,
            prompt=config.prompt,
        )
        return {"keywords": find_topics([text for text in texts if text], label_names, config)}

    found = remembered(question, choose, folder=kept_in)
    return config.model_copy(update={"topics": TopicsConfig.model_validate({**topics.model_dump(), **found})})


def find_topics(texts: Sequence[str], label_names: Sequence[str], config: ConditionalGenerationConfig) -> Topics:
    """Words of the clusters of public texts, at most `topics.number` of them.

    Raises:
        InputError: there are fewer texts than topics, or no word of any.
    """
    topics = config.topics
    if len(texts) < topics.number:
        raise InputError(
            f"topics.number={topics.number}: expected at least as many texts of the public model, found {len(texts)} "
            "that are not empty; lower it, or raise topics.texts"
        )
    vectors = encoder.embed(texts, encoder.load_encoder())
    clusters = _clusters(vectors, topics.number, seed=config.public_seed)
    found = keywords(texts, clusters, words=topics.words, without=" ".join(label_names))
    if not found:
        raise InputError(
            f"topics.number={topics.number}: expected words of three to twenty letters in the public model's texts, "
            "found too few; raise topics.texts, give the words as topics.keywords, or choose another model"
        )
    return found


def _clusters(vectors: npt.NDArray[np.float32], number: int, *, seed: int) -> list[int]:
    """K-means over embeddings of norm 1; the cluster of each row."""
    from sklearn.cluster import KMeans

    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors.astype(np.float64) / np.maximum(norms, 1e-12)
    number = min(number, len(np.unique(units, axis=0)))
    found: list[int] = KMeans(number, n_init=3, random_state=seed % 2**32).fit_predict(units).tolist()
    return found


def keywords(texts: Sequence[str], clusters: Sequence[int], *, words: int, without: str) -> Topics:
    """The words that tell each cluster from the others, most telling first; clusters by size, the largest first.

    Args:
        texts: public.
        clusters: of each text, from 0 on.
        words: of each cluster.
        without: text whose words name no topic.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    left_out = set(re.findall(_WORD, without.lower()))
    vectorizer = CountVectorizer(stop_words="english", token_pattern=_WORD)
    try:
        counts = vectorizer.fit_transform(texts)
    except ValueError:  # no word in any text
        return ()
    vocabulary, of = vectorizer.get_feature_names_out(), np.array(clusters)
    number = int(of.max()) + 1
    used = np.stack([np.asarray(counts[of == cluster].sum(0)).ravel() for cluster in range(number)])
    having = np.stack([np.asarray((counts[of == cluster] > 0).sum(0)).ravel() for cluster in range(number)])
    # Class-based TF-IDF: frequency in the cluster times log(1 + words of a cluster / frequency in all).
    weights = used / np.maximum(used.sum(1, keepdims=True), 1) * np.log1p(used.sum(1).mean() / used.sum(0))
    weights[having < _TEXTS_WITH_WORD] = 0
    weights[:, [column for column, word in enumerate(vocabulary) if word in left_out]] = 0
    topics: list[tuple[str, ...]] = []
    for cluster in sorted(range(number), key=lambda cluster: (-int((of == cluster).sum()), cluster)):
        order = np.argsort(-weights[cluster], kind="stable")
        telling = [str(vocabulary[column]) for column in order if weights[cluster, column] > 0]
        own = _unlike(topics, telling, words=words)
        if own:
            topics.append(own)
    return tuple(topics)


def _unlike(topics: Sequence[Sequence[str]], telling: Sequence[str], *, words: int) -> tuple[str, ...]:
    """The first words, the last of them a later one where another topic has them all; none where there is no other."""
    known = set(map(frozenset, topics))
    for last in telling[words - 1 :]:
        own = (*telling[: words - 1], last)
        if frozenset(own) not in known:
            return own
    return ()

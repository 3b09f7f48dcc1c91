"""One loaded sentence encoder for the session, and a small labelled data set with a learnable difference."""

import numpy as np
import pytest

from understudy.evaluation.encoder import Encoder, load_encoder
from understudy.evaluation.rows import LabelledTexts

PRAISE = ("wonderful", "moving", "funny", "charming", "brilliant", "warm", "clever", "delightful")
BLAME = ("dull", "boring", "awful", "clumsy", "lifeless", "tedious", "stupid", "dreadful")
THINGS = ("film", "story", "cast", "ending", "script", "music", "comedy", "drama")


def reviews(n: int, *, seed: int, names: tuple[str, ...] = ("negative", "positive")) -> LabelledTexts:
    """Short made-up reviews, label 1 with words of praise."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    texts = []
    for label in labels:
        first, second = generator.choice(PRAISE if label else BLAME, 2, replace=False)
        one, other = generator.choice(THINGS, 2, replace=False)
        texts.append(f"the {one} is {first} and the {other} is {second} , take number {generator.integers(1000)}")
    return LabelledTexts(texts, labels, names)


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return load_encoder()


@pytest.fixture(scope="session")
def make_reviews():
    return reviews

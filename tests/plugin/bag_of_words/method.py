"""A method in sixty lines: one noised count of tokens per label, and texts drawn from it.

Each text is its vector of token counts, scaled to norm 1, in the row of its label: one text moves the whole sum by at
most 1. Drawing from the noised sum is post-processing.
"""

from __future__ import annotations

import math
from typing import Literal

from understudy.frozen import MethodSettings
from understudy.methods.method import LABELLED_EXAMPLES, Charging, Description, Method, Preparation, Promise, Reporting
from understudy.privacy.calibration import analytic_gaussian_sigma
from understudy.privacy.queries import Queries, Query
from understudy.privacy.statement import Access, mechanism_facts
from understudy.quantities import Count, setting

COUNTS = "token-counts"


class BagOfWordsConfig(MethodSettings):
    """Texts of independent tokens; the base model lends its tokenizer, which is the public vocabulary."""

    method: Literal["bag-of-words"] = "bag-of-words"
    samples: Count = setting(100, "Texts in all, equally many per label.")
    length: Count = setting(12, "Tokens of a text.")


def charged_settings(config: BagOfWordsConfig) -> BagOfWordsConfig:
    """Private rows meet the tokenizer alone: more texts, or longer ones, charge nothing."""
    return BagOfWordsConfig(profile=config.profile, model=config.model, model_digest=config.model_digest)


def check_model(config, label_names):
    """The base model, loaded."""
    from understudy.models.loading import load_base

    return load_base(config)


def queries(config: BagOfWordsConfig, *, n: int, epsilon: float, delta: float) -> Queries:
    """One Gaussian sum over all rows."""
    noise = 0.0 if math.isinf(epsilon) else analytic_gaussian_sigma(epsilon=epsilon, delta=delta, sensitivity=1.0)
    return (Query(kind="gaussian_sum", name=COUNTS, units=n, sensitivity=1.0, noise_multiplier=noise),)


def describe(config: BagOfWordsConfig, promise: Promise) -> Description:
    """What the run says about itself."""
    (query,) = promise.queries
    return Description(
        mechanisms=(mechanism_facts(query, asks="token counts of each label, every text scaled to norm 1"),),
        contributions="One example is one row; its counts are scaled to norm 1 and added once.",
        released=("any number of texts drawn from it",),
        accesses=(Access(task="count-tokens", reads="the rows", through="one Gaussian sum"),),
        choices="Settings were fixed before the run.",
        declared_public={"vocabulary": "the base model's tokenizer"},
    )


METHOD = Method(
    config=BagOfWordsConfig,
    charge=Charging(lambda _: LABELLED_EXAMPLES, settings=charged_settings, queries=queries, releases="counts"),
    preparation=Preparation(check_model, describe, estimate=lambda config, promise: {"expected_minutes": 0.1}),
    report=Reporting(lambda config: {"length": str(config.length)}, sections="bag_of_words.flow:sections"),
    flow="bag_of_words.flow:bag_of_words",
    left_over="bag_of_words.flow:left_over",
)

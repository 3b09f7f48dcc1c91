"""A baseline used as a method: Private Evolution (`baselines.private_evolution`) as `voted-texts`, for tests.

The clients vote for public texts that are near to theirs; the texts that survive the noised votes are the result. One
round, and the candidates are public seed texts: what is tried is the way through the framework, not the method.
"""

from __future__ import annotations

from typing import Any, Literal

from understudy.baselines.private_evolution import EvolutionConfig
from understudy.baselines.private_evolution import plan as votes_plan
from understudy.frozen import MethodSettings
from understudy.methods.method import Charging, Description, Method, Preparation, Promise, Protected, Reporting
from understudy.privacy.queries import Queries
from understudy.privacy.statement import Access, mechanism_facts
from understudy.quantities import Count
from understudy.settings import settings


class VotedTextsConfig(MethodSettings):
    """Private Evolution of one round."""

    method: Literal["voted-texts"] = "voted-texts"
    samples: Count = 20
    seeds: str = "sample:public"
    candidates: Count = 30

    @property
    def evolution(self) -> EvolutionConfig:
        """The baseline's own settings."""
        return EvolutionConfig(profile=self.profile, rounds=1, prompts=self.candidates, per_prompt=1)


def charged_settings(config: VotedTextsConfig) -> VotedTextsConfig:
    """The number of texts that are kept meets no client."""
    return config.model_copy(update={"samples": 20})


def check_model(config: VotedTextsConfig, label_names: Any) -> Any:
    """The base model is not used, and is loaded because every run names one."""
    from understudy.models.loading import load_base

    return load_base(config)


def queries(config: VotedTextsConfig, *, n: int, epsilon: float, delta: float) -> Queries:
    """The baseline's own calibration."""
    cache = settings().home / "calibrations"
    return votes_plan(config.evolution, n=n, epsilon=epsilon, delta=delta, cache=cache).queries


def describe(config: VotedTextsConfig, promise: Promise) -> Description:
    """What the run says about itself."""
    return Description(
        mechanisms=tuple(mechanism_facts(query, asks="clients' votes for the candidates") for query in promise.queries),
        contributions="One client is all rows with its identifier; its votes are scaled to norm 1.",
        released=("the candidates that survive the votes",),
        accesses=(Access(task="vote", reads="the texts", through="one Gaussian sum of votes"),),
        choices="Settings were fixed before the run.",
        declared_public={"public seed texts": config.seeds},
    )


METHOD = Method(
    config=VotedTextsConfig,
    charge=Charging(
        lambda _: Protected("clients", "client", "add_or_remove_one"),
        settings=charged_settings,
        queries=queries,
        releases="votes",
    ),
    preparation=Preparation(check_model, describe, estimate=lambda config, promise: {"expected_minutes": 0.1}),
    report=Reporting(lambda config: {"candidates": str(config.candidates)}),
    flow="voted_texts.flow:voted_texts",
)

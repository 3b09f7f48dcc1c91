"""What gradient matching's own evaluation may be told: frozen public values only."""

from __future__ import annotations

from typing import Any, ClassVar

from understudy.frozen import Profile, Profiled, Profiles
from understudy.quantities import Count, LearningRate, NumpySeed, Size, setting

# 40 real rows seen sixteen times each: enough for the membership audit to catch its positive control, in seconds.
_TINY_MATCHING: dict[str, Any] = {
    "transfer_models": ("tiny-gpt2", "tiny-llama"),
    "most_models": 2,
    "steps": 80,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "max_length": 48,
    "frozen_share": 0.6,
    "measure_every": 20,
    "test_rows": 200,
    "real_rows": 40,
    "gradient_rows": 64,
    "replicates": 1000,
}


class MatchingEvaluationConfig(Profiled):
    """What `measure_matching` computes and how: target models fine-tuned on small sets, and at most so many real rows.

    The paper's constants (section 5.1) are 200 steps of Adam, batch 16, learning rate 7e-6; `tiny` fine-tunes the
    upper layers of shipped models for fewer steps, so that everything together takes about a minute of one core.
    """

    profiles: ClassVar[Profiles] = {"tiny": _TINY_MATCHING}

    profile: Profile = "paper"
    transfer_models: tuple[str, ...] = setting(
        (),
        "Target models after the run's own, in this order; none: the run's own only (the paper's OPT-1.3B "
        "and Llama-3.2-1B would have to be downloaded). tiny: the shipped ones.",
    )
    most_models: int = setting(3, "Target models in all, the run's own among them; tiny 2, paper 3.", le=100, ge=1)
    steps: Count = setting(200, "Adam steps per model, at least 1. Paper 200.")
    batch_size: Size = setting(16, "Rows per step, at least 1. Paper 16.")
    learning_rate: LearningRate = setting(7e-6, "First step size, falling linearly to 0; tiny 1e-3, paper 7e-6.")
    max_length: Count = setting(128, "Tokens of a text that are read; never more than the run reads.")
    frozen_share: float = setting(
        0.0,
        "Share of a model's layers, the first, left untrained: rounded up, at most all but one. tiny 0.6, paper 0.",
        ge=0,
        le=1,
    )
    measure_every: Count = setting(50, "Steps between two gradient errors. tiny 20, paper 50.")
    full_gradient: bool = setting(False, "Also measure the error of the gradient of all weights, which costs far more.")
    test_rows: int = setting(1000, "Real test rows used, at least 2; tiny 200.", ge=2, le=100_000_000)
    real_rows: int = setting(
        320,
        "Real training rows of the real condition, which are the members of the audit, and as many non-members; "
        "above about steps * batch_size / 10 its positive control sees each too seldom. tiny 40.",
        ge=2,
        le=100_000_000,
    )
    gradient_rows: Count = setting(320, "Real rows whose mean gradient is the reference; tiny 64.")
    reference_rows: int = setting(1000, "Real training rows that Frechet distances compare with.", ge=2, le=100_000_000)
    splits: int = setting(3, "Random splits averaged for each Frechet distance.", le=100, ge=1)
    replicates: int = setting(2000, "Bootstrap replicates per interval.", ge=100, le=100_000_000)
    level: float = setting(0.95, "Confidence level, above 0.5 and below 1.", gt=0.5, lt=1)
    public_seed: NumpySeed = setting(0, "Seed of row order, subsampling and bootstrap.")

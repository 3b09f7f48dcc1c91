"""What gradient matching's own evaluation may be told: frozen public values only."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from understudy.frozen import Profile, Profiled, Profiles

# 40 real rows seen sixteen times each: enough for the membership audit to catch its positive control, in seconds.
_TINY_MATCHING: dict[str, Any] = {
    "transfer_models": ("tiny-gpt2", "tiny-llama"),
    "most_models": 2,
    "steps": 80,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "max_length": 48,
    "frozen_lower_layers": 3,
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

    profile: Profile = Field(default="paper", description="Which column of defaults fills the fields not given.")
    transfer_models: tuple[str, ...] = Field(
        default=(),
        description="Target models after the run's own, in this order; none: the run's own only (the paper's OPT-1.3B "
        "and Llama-3.2-1B would have to be downloaded). tiny: the shipped ones.",
    )
    most_models: int = Field(
        default=3, ge=1, le=100, description="Target models in all, the run's own among them; tiny 2, paper 3."
    )
    steps: int = Field(default=200, ge=1, le=1_000_000, description="Adam steps per model, at least 1. Paper 200.")
    batch_size: int = Field(default=16, ge=1, le=4096, description="Rows per step, 1 to 4096. Paper 16.")
    learning_rate: float = Field(
        default=7e-6, gt=0, le=1, description="First step size, falling linearly to 0; tiny 1e-3, paper 7e-6."
    )
    max_length: int = Field(
        default=128, ge=1, le=100_000, description="Tokens of a text that are read; never more than the run reads."
    )
    frozen_lower_layers: int = Field(
        default=0, ge=0, le=200, description="First layers left untrained, at most all but one. tiny 3, paper 0."
    )
    measure_every: int = Field(
        default=50, ge=1, le=1_000_000, description="Steps between two gradient errors. tiny 20, paper 50."
    )
    full_gradient: bool = Field(
        default=False, description="Also measure the error of the gradient of all weights, which costs far more."
    )
    test_rows: int = Field(default=1000, ge=2, le=1_000_000, description="Real test rows used, at least 2; tiny 200.")
    real_rows: int = Field(
        default=320,
        ge=2,
        le=1_000_000,
        description="Real training rows of the real arm, which are the members of the audit, and as many non-members; "
        "above about steps * batch_size / 10 its positive control sees each too seldom. tiny 40.",
    )
    gradient_rows: int = Field(
        default=320, ge=1, le=1_000_000, description="Real rows whose mean gradient is the reference; tiny 64."
    )
    reference_rows: int = Field(
        default=1000, ge=2, le=1_000_000, description="Real training rows that Frechet distances compare with."
    )
    splits: int = Field(default=3, ge=1, le=100, description="Random splits averaged for each Frechet distance.")
    replicates: int = Field(default=2000, ge=100, le=100_000, description="Bootstrap replicates per interval.")
    level: float = Field(default=0.95, gt=0.5, lt=1, description="Confidence level, above 0.5 and below 1.")
    public_seed: int = Field(default=0, ge=0, lt=2**32, description="Seed of row order, subsampling and bootstrap.")

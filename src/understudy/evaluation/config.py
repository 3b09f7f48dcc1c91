"""What the evaluation may be told: frozen public values only.

The `paper` profile carries the constants of the conditional-generation paper's classifier (Table 5: batch 32,
5 epochs, learning rate 1e-4, decaying); `tiny` shrinks sizes and raises the step size so that a model of a
few million parameters learns in seconds. A field given by the caller always wins over its profile.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from understudy.frozen import Profile, Profiled, Profiles

_TINY_CLASSIFIER: dict[str, Any] = {"epochs": 3, "learning_rate": 5e-4, "max_length": 64}
_TINY_EVALUATION: dict[str, Any] = {
    "classifier": {"profile": "tiny"},
    "headline": "probe",
    "seeds": (0,),
    "replicates": 1000,
}


class ClassifierConfig(Profiled):
    """The transformer that is fine-tuned to measure how useful a labelled table is."""

    profiles: ClassVar[Profiles] = {"tiny": _TINY_CLASSIFIER}

    profile: Profile = Field(default="paper", description="Which column of defaults fills the fields not given.")
    base: str = Field(
        default="tiny-llama",
        min_length=1,
        description="Shipped model name, local folder or hub id (the paper used DistilBERT).",
    )
    batch_size: int = Field(default=32, ge=1, le=4096, description="Rows per step, 1 to 4096.")
    epochs: int = Field(default=5, ge=1, le=100, description="Passes over the training rows, 1 to 100.")
    learning_rate: float = Field(
        default=1e-4, gt=0, le=1, description="AdamW, decaying linearly to 0; above 0, at most 1."
    )
    weight_decay: float = Field(default=0.01, ge=0, le=1, description="AdamW weight decay, 0 to 1.")
    max_length: int = Field(default=128, ge=2, le=8192, description="Tokens kept per text, 2 to 8192; the rest is cut.")
    pooling: Literal["mean", "last"] = Field(
        default="mean", description="How the hidden states of a text become one vector."
    )
    frozen_layers: int = Field(
        default=0, ge=0, le=200, description="Last transformer layers that are not trained, 0 to 200."
    )


class EvaluationConfig(Profiled):
    """What `evaluate_synthetic` computes and how."""

    profiles: ClassVar[Profiles] = {"tiny": _TINY_EVALUATION}

    profile: Profile = Field(default="paper", description="Which column of defaults fills the fields not given.")
    classifier: ClassifierConfig = Field(default_factory=ClassifierConfig)
    headline: Literal["transformer", "probe"] = Field(
        default="transformer",
        description="Whose accuracy is reported as utility.*.accuracy; `probe` skips the transformer.",
    )
    seeds: tuple[int, ...] = Field(
        default=(0, 1, 2), min_length=1, description="Seeds of the transformer classifier, at least one."
    )
    replicates: int = Field(
        default=2000, ge=100, le=100_000, description="Bootstrap replicates per interval, 100 to 100000."
    )
    level: float = Field(default=0.95, gt=0.5, lt=1, description="Confidence level, above 0.5 and below 1.")
    floor_splits: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Random draws averaged for each fidelity figure; an interval needs two. 1 to 100.",
    )
    public_seed: int = Field(default=0, ge=0, lt=2**32, description="Seed of subsampling, clustering and bootstrap.")

    @model_validator(mode="after")
    def _check_seeds(self) -> EvaluationConfig:
        if len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"expected distinct seeds >= 0, found seeds={self.seeds}")
        return self

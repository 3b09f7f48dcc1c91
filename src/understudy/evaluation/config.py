"""What the evaluation may be told: frozen public values only.

The `paper` profile carries the constants of the classifier in "Differentially Private Conditional Text Generation for
Synthetic Data" (Table 5: batch 32, 5 epochs, learning rate 1e-4, decaying); `tiny` shrinks sizes and raises the step
size so that a model of a few million parameters learns in seconds. A field given by the caller always wins over its
profile.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from understudy.evaluation.rows import MOST_ROWS
from understudy.frozen import Profile, Profiled, Profiles
from understudy.quantities import LearningRate, NonEmpty, NumpySeed, Size, setting

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

    profile: Profile = "paper"
    base: NonEmpty = setting("tiny-llama", "Shipped model name, local folder or hub id (the paper used DistilBERT).")
    batch_size: Size = setting(32, "Rows per step, at least 1.")
    epochs: int = setting(5, "Passes over the training rows, 1 to 100.", le=100, ge=1)
    learning_rate: LearningRate = setting(1e-4, "AdamW, decaying linearly to 0; above 0.")
    weight_decay: float = setting(0.01, "AdamW weight decay, 0 to 1.", ge=0, le=1)
    max_length: int = setting(128, "Tokens kept per text, 2 to 8192; the rest is cut.", ge=2, le=8192)
    pooling: Literal["mean", "last"] = setting("mean", "How the hidden states of a text become one vector.")
    frozen_layers: int = setting(0, "Last transformer layers that are not trained, 0 to 200.", le=200, ge=0)


class EvaluationConfig(Profiled):
    """What `evaluate_synthetic` computes and how."""

    profiles: ClassVar[Profiles] = {"tiny": _TINY_EVALUATION}

    profile: Profile = "paper"
    classifier: ClassifierConfig = Field(default_factory=ClassifierConfig)
    headline: Literal["transformer", "probe"] = setting(
        "transformer", "Whose accuracy is reported as utility.*.accuracy; `probe` skips the transformer."
    )
    seeds: tuple[int, ...] = setting((0, 1, 2), "Seeds of the transformer classifier, at least one.", min_length=1)
    replicates: int = setting(2000, "Bootstrap replicates per interval, 100 to 100000.", ge=100, le=100_000)
    level: float = setting(0.95, "Confidence level, above 0.5 and below 1.", gt=0.5, lt=1)
    floor_splits: int = setting(
        3, "Random draws averaged for each fidelity figure; an interval needs two. 1 to 100.", le=100, ge=1
    )
    most_rows: Size = setting(
        MOST_ROWS,
        "Real rows that classifiers learn from, real rows that they are tested on, and real rows that distances are "
        "taken to, each; at least 1. Copies are looked for among all rows.",
    )
    public_seed: NumpySeed = setting(0, "Seed of subsampling, clustering and bootstrap.")

    @property
    def bootstrap(self) -> dict[str, Any]:
        """Seed, replicates and level, as each interval takes them."""
        return {"seed": self.public_seed, "replicates": self.replicates, "level": self.level}

    @model_validator(mode="after")
    def _check_seeds(self) -> EvaluationConfig:
        if len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"expected distinct seeds >= 0, found seeds={self.seeds}")
        return self

"""The one config of gradient matching: public values only, no torch.

`profile` fills what is not given. `paper` reproduces section 5.1 of the GRADMM paper; `tiny` shrinks rounds and steps
so that a run takes minutes on two cores, and matches a small sketch of the gradient. Where the paper is silent (cut
length, clipping of the inner steps, how many texts the filters choose from), the values are ours.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from understudy.frozen import Frozen, Profile, Profiled, Profiles

__all__ = [
    "FilterConfig",
    "GradientMatchingConfig",
    "MatchingConfig",
    "Profile",
    "ProjectionConfig",
    "TargetConfig",
    "VerbalizerConfig",
]

Count = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
Share = Annotated[float, Field(gt=0, le=1, strict=True)]


class VerbalizerConfig(Frozen):
    """How a label becomes one token: `BOS <text> <template>`, then the first token of the label's word."""

    template: str = Field(
        default=" It was",
        min_length=1,
        description="Public text between a text and its label's word, at least one token; paper ' It was'.",
    )
    words: dict[str, str] | None = Field(
        default=None,
        description="Label name -> word that stands for it, for every label; none: the label's own name.",
    )


class TargetConfig(Frozen):
    """Which gradient of the real rows is released, and with which noise."""

    kind: Literal["head", "label_rows", "sketch"] = Field(
        default="sketch",
        description="Gradient of the output head (vocabulary x width, the paper's), of the labels' own rows of it, or "
        "a public random sketch of the head's. tiny sketch, paper head.",
    )
    sketch_dimension: int = Field(
        default=512,
        ge=1,
        le=1_000_000,
        description="sketch only: numbers m per label, at least 1; cosines are kept to about 1/sqrt(m).",
    )
    l2_clip_norm: float = Field(
        default=1.0, gt=0, le=1000, description="Clip norm C of one row's gradient, above 0; paper 1."
    )
    calibration: Literal["analytic", "paper"] = Field(
        default="analytic",
        description="Noise: the least that meets epsilon, or the paper's formulas. tiny analytic, paper paper.",
    )
    micro_batch: int = Field(default=32, ge=1, le=65536, description="Rows per forward pass, at least 1; memory only.")


class MatchingConfig(Frozen):
    """ADMM: how the embeddings of a synthetic text are moved towards the target."""

    gradient: Literal["closed_form", "full"] = Field(
        default="closed_form",
        description="Gradient that is matched: the target kind's in closed form, or (ablation) all layers' by double "
        "backward, whose target then has one number per parameter.",
    )
    rounds: int = Field(default=10, ge=1, le=100_000, description="ADMM rounds T, at least 1. tiny 10, paper 30.")
    inner_steps: int = Field(
        default=10, ge=1, le=100_000, description="Adam steps per round, at least 1. tiny 10, paper 50."
    )
    learning_rate: float = Field(default=0.04, gt=0, le=10, description="Adam step, above 0. tiny 0.04, paper 0.008.")
    max_gradient_norm: float = Field(
        default=1.0, gt=0, le=1e6, description="One text's embedding gradient is clipped to this norm, above 0."
    )
    penalty: float = Field(
        default=0.003,
        gt=0,
        le=1e4,
        description="ADMM penalty rho, above 0. tiny 0.003, paper 0.05 (it takes the best of 0.001 to 10).",
    )
    emit: Literal["nearest", "last"] = Field(
        default="nearest",
        description="Which text is emitted: of all rounds' the nearest to the target, or the last's. tiny nearest, "
        "paper last.",
    )
    swap_sweeps: int = Field(
        default=8,
        ge=0,
        le=100_000,
        description="After ADMM, sweeps of single-token swaps along f's gradient, 0 for none. tiny 8, paper 0.",
    )
    swap_width: int = Field(
        default=8, ge=1, le=100_000, description="Positions at which a swap is tried per sweep, at least 1."
    )
    batch_size: int = Field(
        default=16, ge=1, le=4096, description="Synthetic texts optimised at a time, at least 1; memory and speed."
    )
    shard_size: int = Field(
        default=32, ge=1, le=1_000_000, description="Synthetic texts per task, at least 1; tasks run side by side."
    )


class ProjectionConfig(Frozen):
    """How embeddings become tokens."""

    kind: Literal["top_k", "l2"] = Field(
        default="top_k",
        description="Nearest of the k tokens that the language model finds likeliest, or (ablation) of all tokens.",
    )
    k: int = Field(
        default=200, ge=1, le=10_000_000, description="top_k only: tokens to choose from, at least 1; paper 200."
    )
    metric: Literal["cosine", "l2"] = Field(default="l2", description="What nearest means; paper l2.")
    instruction: str = Field(
        default="Write a text. Label: {label}\nText:",
        description="top_k only: public prompt of the language model; {label} is replaced by the label's name.",
    )
    allowed: Literal["printable", "all"] = Field(
        default="printable",
        description="Tokens that may be chosen: those that decode to printable text, or all but the special ones.",
    )


class FilterConfig(Frozen):
    """Which synthetic texts are kept (paper, section 4.4), in this order; all of it post-processing."""

    oversample: float = Field(
        default=2.0,
        ge=1,
        le=100,
        description="Texts optimised per text wanted, 1 to 100, for filters to choose from; paper 2.",
    )
    label_check: bool = Field(
        default=True, description="Drop texts whose label the language model does not confirm; paper yes."
    )
    examples: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Label name -> public example texts shown to the label check; none: it is asked without examples.",
    )
    keep_lowest: Count | Share = Field(
        default=1.0,
        description="The paper's r: texts kept per label, those of the lowest loss, as a whole number, or as a share "
        "above 0 of those left; 1.0 keeps all.",
    )
    balance: bool = Field(
        default=True, description="Drop the highest losses of labels whose mean loss exceeds the others'; paper yes."
    )


_PROFILES: Profiles = {
    "tiny": {},
    "paper": {
        "model": "microsoft/phi-1_5",
        "samples": 100,
        "max_length": 128,
        "target": {"kind": "head", "calibration": "paper"},
        "matching": {
            "rounds": 30,
            "inner_steps": 50,
            "learning_rate": 0.008,
            "penalty": 0.05,
            "emit": "last",
            "swap_sweeps": 0,
        },
    },
}


class GradientMatchingConfig(Profiled):
    """Gradient matching: one noised gradient per label, then texts whose gradient points the same way."""

    profiles: ClassVar[Profiles] = _PROFILES

    method: Literal["gradient-matching"] = Field(
        default="gradient-matching", description="Which method these settings are of."
    )
    profile: Profile = Field(default="tiny", description="Which column of defaults fills the fields not given.")
    model: str = Field(
        default="tiny-llama",
        min_length=1,
        description="Shipped model, folder or hub id. tiny tiny-llama, paper microsoft/phi-1_5.",
    )
    model_digest: str = Field(default="", description="sha256 of the files of `model`; set by the run.")
    samples: int = Field(
        default=40, ge=1, le=10_000_000, description="Synthetic rows in all, at least 1. tiny 40, paper 100."
    )
    public_seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Public randomness: the sketch, initial embeddings. Never noise.",
    )
    max_length: int = Field(
        default=64,
        ge=1,
        le=100_000,
        description="Tokens of a real text that are read, at least 1; longer texts are cut. tiny 64, paper 128.",
    )
    length: int | Literal["as_in_data"] = Field(
        default=20,
        description="Tokens of a synthetic text, 1 to max_length, or the mean length of the real ones (a noised query "
        "in the charge; the paper takes it for free).",
    )
    length_share: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="length=as_in_data only: part of epsilon and delta that sets that query's noise, between 0 and 1.",
    )
    verbalizer: VerbalizerConfig = Field(default_factory=VerbalizerConfig)
    target: TargetConfig = Field(default_factory=TargetConfig)
    matching: MatchingConfig = Field(default_factory=MatchingConfig)
    projection: ProjectionConfig = Field(default_factory=ProjectionConfig)
    filter: FilterConfig = Field(default_factory=FilterConfig)

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.length != "as_in_data" and not 1 <= self.length <= self.max_length:
            raise ValueError(f"length={self.length}: expected 1 to max_length={self.max_length}, or as_in_data")
        return self

"""The one config of conditional generation: public values only, no torch.

`profile` fills what is not given. `paper` reproduces the paper's Table 2; `tiny` shrinks sizes and step sizes so that
8,530 short rows take minutes on two cores, and trains LoRA adapters instead of the embeddings. Where the paper is
silent (PPLM's constants, the nucleus, the head), the values were measured on public reviews.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from understudy.frozen import Frozen, Profile, Profiled, Profiles
from understudy.generation.config import PromptFormat, SamplingConfig, SteeringConfig

__all__ = [
    "ConditionalGenerationConfig",
    "DiscriminatorConfig",
    "FilterConfig",
    "GenerateConfig",
    "LoraConfig",
    "Profile",
    "TrainConfig",
    "Variant",
]

MicroBatch = Annotated[int, Field(ge=1, le=65536)]
Variant = Literal["multitask", "naive", "naive_filter", "naive_pplm"]


class LoraConfig(Frozen):
    """Which weights of the language model are trained."""

    rank: int = Field(
        default=8,
        ge=0,
        le=1024,
        description="Rank of the adapters, 0 to 1024; 0 trains the weights. tiny 8, paper 0.",
    )
    alpha: float = Field(default=16.0, gt=0, le=4096, description="Adapters are scaled by alpha / rank; above 0.")
    targets: tuple[str, ...] | Literal["all-linear"] = Field(
        default="all-linear",
        description="Last parts of layer names, or all linear layers but the output head.",
    )


class DiscriminatorConfig(Frozen):
    """The head that models p(label | prefix): an MLP on the last hidden states."""

    width: int = Field(
        default=64, ge=1, le=65536, description="Hidden units of the MLP, at least 1. tiny 64, paper 256."
    )
    prefix_step: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="The loss is taken at every so many text positions, at least 1; paper: 2.",
    )
    representation: Literal["last", "mean"] = Field(
        default="mean",
        description="What the head sees of a prefix: the state at its last token, or the mean of its text's states.",
    )
    loss_weight: float = Field(
        default=0.2,
        gt=0,
        le=1000,
        description="Weight w of loss_lm + w * loss_discriminator when update=joint; above 0.",
    )


class TrainConfig(Frozen):
    """DP-Adam: everything the privacy event and the update depend on."""

    max_length: int = Field(
        default=48,
        ge=8,
        le=8192,
        description="Padded tokens of prompt, text and EOS, 8 to 8192; longer texts are cut. tiny 48, paper 128.",
    )
    batch_size: int = Field(
        default=256,
        ge=1,
        le=1_000_000,
        description="Expected Poisson batch, at least 1. tiny 256, paper 128.",
    )
    epochs: float = Field(
        default=1.0, gt=0, le=1000, description="Expected passes over the rows, above 0. tiny 1, paper 4."
    )
    l2_clip_norm: float = Field(
        default=0.1,
        gt=0,
        le=1000,
        description="Clip norm C of every stream's per-example gradient, above 0; paper 0.1.",
    )
    learning_rate: float = Field(
        default=2e-3,
        gt=0,
        le=10,
        description="Adam step of the language model, above 0. tiny 2e-3, paper 5e-4.",
    )
    discriminator_learning_rate: float = Field(
        default=2e-3,
        gt=0,
        le=10,
        description="Adam step of discriminator and filter, above 0. tiny 2e-3, paper 5e-4.",
    )
    learning_rate_decay: bool = Field(default=True, description="Linear decay of both learning rates to 0; paper yes.")
    frozen_layers: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Last transformer layers left untrained, 0 or more. tiny 0, paper 6: all of distilgpt2's.",
    )
    noise_ratio: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="Noise multiplier of the second stream (discriminator or filter) over the first's; paper 1.",
    )
    micro_batch: MicroBatch | Literal["auto"] = Field(
        default="auto",
        description="Rows per forward pass, at least 1: memory and rounding only. auto: by model, length, expected "
        "batch and the machine's memory; a run that is resumed elsewhere names the number.",
    )
    checkpoint_every: int = Field(default=20, ge=1, le=1_000_000, description="Steps between checkpoints, at least 1.")


class FilterConfig(Frozen):
    """Keep a sample only if p(label | text) exceeds a threshold (the paper's baseline 1)."""

    enabled: bool = Field(default=False, description="Filter samples; always on for variant=naive_filter.")
    threshold: float = Field(
        default=0.5, ge=0, lt=1, description="Kept above this probability, 0 to below 1; paper 0.5."
    )
    lora_rank: int = Field(
        default=4,
        ge=0,
        le=1024,
        description="Rank of naive_filter's own adapters, 0 to 1024; 0 trains a head on the base model's features.",
    )
    max_draws: float = Field(
        default=4.0, ge=1, le=100, description="At most so many samples are drawn per wanted one, 1 to 100."
    )


class GenerateConfig(Frozen):
    """How the synthetic rows are drawn."""

    batch_size: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = Field(
        default="auto",
        description="Rows generated at a time, at least 1; speed only. auto: as memory allows, up to 64.",
    )
    redraws: int = Field(default=3, ge=0, le=100, description="How often an empty text is drawn again, 0 to 100.")
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    steering: SteeringConfig = Field(default_factory=SteeringConfig)


_PROFILES: Profiles = {
    "tiny": {},
    "paper": {
        "model": "distilgpt2",
        "update": "alternating",
        "lora": {"rank": 0},
        "discriminator": {"width": 256},
        "train": {
            "max_length": 128,
            "batch_size": 128,
            "epochs": 4.0,
            "learning_rate": 5e-4,
            "discriminator_learning_rate": 5e-4,
            "frozen_layers": 6,
        },
        "generate": {"sampling": {"max_new_tokens": 96}},
    },
}


class ConditionalGenerationConfig(Profiled):
    """Conditional generation: DP multitask fine-tuning, then PPLM-steered sampling."""

    profiles: ClassVar[Profiles] = _PROFILES

    method: Literal["conditional-generation"] = Field(
        default="conditional-generation", description="Which method these settings are of."
    )
    profile: Profile = Field(default="tiny", description="Which column of defaults fills the fields not given.")
    model: str = Field(
        default="tiny-llama",
        min_length=1,
        description="Shipped model, folder or hub id. tiny tiny-llama, paper distilgpt2.",
    )
    model_digest: str = Field(default="", description="sha256 of the files of `model`; set by the run.")
    variant: Variant = Field(
        default="multitask",
        description="multitask (the paper's method), or a baseline: naive, naive_filter, naive_pplm.",
    )
    update: Literal["alternating", "joint"] = Field(
        default="joint",
        description="multitask only: clip and noise both gradients separately (paper), or their weighted sum once.",
    )
    class_sizes: Literal["balanced", "as_in_data"] | dict[str, int] = Field(
        default="balanced",
        description="Rows per label: equal, as in the data (a DP histogram in the charge), or label name -> count.",
    )
    class_sizes_share: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="as_in_data only: part of epsilon and delta that sets the histogram's noise, between 0 and 1.",
    )
    samples: int = Field(
        default=1000,
        ge=1,
        le=100_000_000,
        description="Synthetic rows in all, at least 1; class_sizes as a dict overrides it.",
    )
    public_seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Public randomness: initial values, random labels, sampling. Never noise.",
    )
    prompt: PromptFormat = Field(default_factory=PromptFormat)
    lora: LoraConfig = Field(default_factory=LoraConfig)
    discriminator: DiscriminatorConfig = Field(default_factory=DiscriminatorConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    generate: GenerateConfig = Field(default_factory=GenerateConfig)
    filter: FilterConfig = Field(default_factory=FilterConfig)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.variant == "naive" and self.filter.enabled:
            raise ValueError(
                "filter.enabled=True needs a classifier: expected variant=naive_filter, naive_pplm or multitask"
            )
        if isinstance(self.class_sizes, dict) and min(self.class_sizes.values(), default=-1) < 0:
            raise ValueError(f"class_sizes={self.class_sizes}: expected a count of 0 or more for every label")
        return self

    @property
    def steers(self) -> bool:
        """Whether generation uses PPLM."""
        return self.variant in ("multitask", "naive_pplm") and self.generate.steering.active

    @property
    def filters(self) -> bool:
        """Whether generation filters by p(label | text)."""
        return self.filter.enabled or self.variant == "naive_filter"

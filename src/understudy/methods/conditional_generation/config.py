"""The one config of conditional generation: public values only, no torch.

`profile` fills what is not given. `paper` reproduces the paper's Table 2; `tiny` shrinks sizes and step sizes so that
8,530 short rows take minutes on two cores, and trains LoRA adapters instead of the embeddings. Where the paper is
silent (PPLM's constants, the nucleus, the head), the values were measured on public reviews.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from understudy.frozen import Frozen, MethodSettings, NotInKeys, Profile, Profiles
from understudy.generation.config import PromptFormat, Reading, SamplingConfig, SteeringConfig
from understudy.methods.conditional_generation.topics_config import TopicsConfig
from understudy.quantities import Count, CountOrZero, LearningRate, Part, Positive, Size, section, setting

__all__ = [
    "ConditionalGenerationConfig",
    "DiscriminatorConfig",
    "FilterConfig",
    "GenerateConfig",
    "LoraConfig",
    "Profile",
    "SelectionConfig",
    "TopicsConfig",
    "TrainConfig",
    "Variant",
]

Variant = Literal["multitask", "naive", "naive_filter", "naive_pplm", "untrained"]


class LoraConfig(Frozen):
    """Which weights of the language model are trained."""

    rank: int = setting(8, "Rank of the adapters, 0 to 1024; 0 trains the weights. tiny 8, paper 0.", le=1024, ge=0)
    alpha: Positive = setting(16.0, "Adapters are scaled by alpha / rank; above 0.")
    targets: tuple[str, ...] | Literal["all-linear"] = setting(
        "all-linear", "Last parts of layer names, or all linear layers but the output head."
    )


class DiscriminatorConfig(Frozen):
    """The head that models p(label | prefix): an MLP on the last hidden states."""

    width: Size = setting(64, "Hidden units of the MLP, at least 1. tiny 64, paper 256.")
    prefix_step: Count = setting(2, "The loss is taken at every so many text positions, at least 1; paper: 2.")
    representation: Literal["last", "mean"] = setting(
        "mean", "What the head sees of a prefix: the state at its last token, or the mean of its text's states."
    )
    loss_weight: Positive = setting(0.2, "Weight w of loss_lm + w * loss_discriminator when update=joint; above 0.")


class TrainConfig(Frozen):
    """DP-Adam: everything the privacy event and the update depend on."""

    max_length: int = setting(
        48,
        "Padded tokens of text and EOS, 8 to 8192, the prompt before them not counted; longer texts are cut. tiny 48, "
        "paper 128.",
        ge=8,
        le=8192,
    )
    batch_size: Count = setting(256, "Expected Poisson batch, at least 1. tiny 256, paper 128.")
    epochs: Positive = setting(1.0, "Expected passes over the rows, above 0. tiny 1, paper 4.")
    l2_clip_norm: Positive | Literal["auto"] = setting(
        "auto",
        "Clip norm C of every stream's per-example gradient, above 0; auto: 0.1, or less where the model's own texts "
        "have smaller gradients. tiny auto, paper 0.1.",
    )
    learning_rate: LearningRate | Literal["auto"] = setting(
        "auto",
        "Adam step of the language model, above 0; auto: the largest at which noise alone, or at epsilon inf training "
        "on its own texts, does the model little damage, tried before the charge. tiny auto, paper 5e-4.",
    )
    discriminator_learning_rate: LearningRate | Literal["auto"] = setting(
        "auto",
        "Adam step of discriminator and filter, above 0; auto: that of the language model. tiny auto, paper 5e-4.",
    )
    learning_rate_decay: bool = setting(True, "Linear decay of both learning rates to 0; paper yes.")
    averaging: float = setting(
        0.0,
        "Decay of the exponential average of the weights over the steps, 0 to below 1, which the released model then "
        "is; 0 releases the last step's weights. paper 0.",
        ge=0,
        lt=1,
    )
    frozen_layers: CountOrZero = setting(
        0, "Last transformer layers left untrained, 0 or more. tiny 0, paper 6: all of distilgpt2's."
    )
    noise_ratio: Positive = setting(
        1.0, "Noise multiplier of the second stream (discriminator or filter) over the first's; paper 1."
    )
    micro_batch: Size | Literal["auto"] = setting(
        "auto",
        "Rows per forward pass, at least 1: memory and rounding only. auto: by model, length and expected batch, the "
        "same on every processor; more on a GPU, by its memory.",
    )
    checkpoint_every: Annotated[Count, NotInKeys()] = setting(
        20, "Steps between checkpoints, at least 1; slow steps are saved within 30 s."
    )

    @property
    def clip(self) -> float:
        """The clip norm; 0.1 where none was chosen yet."""
        return 0.1 if self.l2_clip_norm == "auto" else self.l2_clip_norm

    @property
    def rates(self) -> tuple[float, float]:
        """Learning rates of the language model and of the discriminator; 2e-3 where none was chosen yet."""
        first = 2e-3 if self.learning_rate == "auto" else self.learning_rate
        return first, first if self.discriminator_learning_rate == "auto" else self.discriminator_learning_rate


class FilterConfig(Frozen):
    """Keep a sample only if p(label | text) exceeds a threshold (the paper's baseline 1)."""

    enabled: bool = setting(False, "Filter samples; always on for variant=naive_filter.")
    threshold: float = setting(0.5, "Kept above this probability, 0 to below 1; paper 0.5.", ge=0, lt=1)
    lora_rank: int = setting(
        4,
        "Rank of naive_filter's own adapters, 0 to 1024; 0 trains a head on the base model's features.",
        le=1024,
        ge=0,
    )
    max_draws: float = setting(4.0, "At most so many samples are drawn per wanted one, 1 to 100.", ge=1, le=100)


class SelectionConfig(Frozen):
    """Of several texts drawn for a row, the one nearest to its label's noised mean is kept (ours, not the paper's)."""

    draws: int = setting(
        4,
        "Texts drawn for each row that is kept, 1 to 100; 1 keeps every text and asks nothing of the rows. tiny 4, "
        "paper 1.",
        ge=1,
        le=100,
    )
    share: Part = setting(
        0.2, "draws above 1 only: part of epsilon and delta that sets the noise of the class means, between 0 and 1."
    )


class GenerateConfig(Frozen):
    """How the synthetic rows are drawn."""

    batch_size: Size | Literal["auto"] = setting(
        "auto", "Rows generated at a time, at least 1; speed only. auto: as memory allows, up to 128, on a GPU 2,048."
    )
    redraws: int = setting(3, "How often an empty text is drawn again, 0 to 100.", le=100, ge=0)
    sampling: SamplingConfig = section(SamplingConfig, "How a token is drawn.")
    steering: SteeringConfig = section(SteeringConfig, "How the head moves what the language model writes.")


_PROFILES: Profiles = {
    "paper": {
        "model": "distilgpt2",
        "update": "alternating",
        "lora": {"rank": 0},
        "discriminator": {"width": 256},
        "train": {
            "max_length": 128,
            "batch_size": 128,
            "epochs": 4.0,
            "l2_clip_norm": 0.1,
            "learning_rate": 5e-4,
            "discriminator_learning_rate": 5e-4,
            "frozen_layers": 6,
        },
        "generate": {"sampling": {"max_new_tokens": 96}, "steering": {"layers": 1.0}},
        "selection": {"draws": 1},
    },
}


class ConditionalGenerationConfig(MethodSettings):
    """Conditional generation: DP multitask fine-tuning, then PPLM-steered sampling."""

    profiles: ClassVar[Profiles] = _PROFILES

    method: Literal["conditional-generation"] = setting("conditional-generation", "Which method these settings are of.")
    variant: Variant = setting(
        "multitask",
        "multitask (the paper's method), or a baseline: naive (labels stand in the prompt alone), naive_filter (a "
        "classifier drops texts of other labels), naive_pplm (a head on frozen features steers). untrained (ours): the "
        "public model writes, and the private rows only choose by their class means.",
    )
    update: Literal["alternating", "joint"] = setting(
        "joint", "multitask only: clip and noise both gradients separately (paper), or their weighted sum once."
    )
    class_sizes: Literal["balanced", "as_in_data"] | Annotated[dict[str, CountOrZero], Field(min_length=1)] = setting(
        "balanced", "Rows per label: equal, as in the data (a DP histogram in the charge), or label name -> count."
    )
    class_sizes_share: Part = setting(
        0.05, "as_in_data only: part of epsilon and delta that sets the histogram's noise, between 0 and 1."
    )
    samples: Count = setting(1000, "Synthetic rows in all, at least 1; class_sizes as a dict overrides it.")
    prompt: PromptFormat = section(PromptFormat, "The words before a text, which name its label.")
    lora: LoraConfig = section(LoraConfig, "Which weights are trained: an adapter, or all of them.")
    discriminator: DiscriminatorConfig = section(
        DiscriminatorConfig,
        "The head that learns the label of a text beside the language model, and that steers it when rows are drawn.",
    )
    train: TrainConfig = section(
        TrainConfig, "DP-Adam over both losses: batch, clipping and rate; what the charge pays for depends on these."
    )
    generate: GenerateConfig = section(GenerateConfig, "How rows are drawn and steered.")
    filter: FilterConfig = section(FilterConfig, "Texts that the head does not tell as their label's are dropped.")
    selection: SelectionConfig = section(
        SelectionConfig,
        "How many texts are drawn for a row, of which the private rows choose one by their noised class means.",
    )
    topics: TopicsConfig = section(
        TopicsConfig, "Public topics, whose words prompts carry, and a noised histogram of the rows over them."
    )

    @field_validator("filter")
    @classmethod
    def _has_a_classifier(cls, value: FilterConfig, info: ValidationInfo) -> FilterConfig:
        if info.data.get("variant") in ("naive", "untrained") and value.enabled:
            raise ValueError(
                "filter.enabled=True needs a classifier: expected variant=naive_filter, naive_pplm or multitask"
            )
        return value

    @field_validator("selection")
    @classmethod
    def _asks_something(cls, value: SelectionConfig, info: ValidationInfo) -> SelectionConfig:
        if info.data.get("variant") == "untrained" and value.draws < 2:
            raise ValueError(
                "variant=untrained with selection.draws=1 asks nothing of the private rows: expected selection.draws "
                "of 2 or more"
            )
        return value

    @property
    def trains(self) -> bool:
        """Whether a model is trained on the rows."""
        return self.variant != "untrained"

    @property
    def steers(self) -> bool:
        """Whether generation uses PPLM."""
        return self.variant in ("multitask", "naive_pplm") and self.generate.steering.active

    @property
    def filters(self) -> bool:
        """Whether generation filters by p(label | text)."""
        return self.filter.enabled or self.variant == "naive_filter"

    @property
    def reading(self) -> Reading | None:
        """What training reads of a text, its end not counted; None where nothing is trained."""
        if self.variant == "untrained":
            return None
        tokens = self.train.max_length - 1
        return Reading(model=self.model, model_digest=self.model_digest, tokens=tokens, prompt=self.prompt)

    @property
    def selects(self) -> bool:
        """Whether texts are chosen by class means, which the charge then pays for."""
        return self.selection.draws > 1

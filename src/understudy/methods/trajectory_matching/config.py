"""The one config of trajectory matching: public values only, no torch.

`profile` fills what is not given. `paper` holds the sizes of the NACD paper; what it leaves open (number of experts,
optimisers, first step size) has measured defaults. `tiny` shrinks sizes so that a run takes minutes on two cores.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from understudy.evaluation.answers.config import AnswersConfig
from understudy.frozen import DigestOf, Frozen, MethodSettings, Profiles
from understudy.quantities import Count, LearningRate, NonEmpty, Positive, Probability, Size, section, setting

Template = Literal["auto", "plain", "chat"]
PUBLIC_CARRIERS = "rows that carry pseudo tokens"  # as a privacy statement declares them public
Carrier = Literal["auto", "selected", "public", "written"]


class ExpertsConfig(Frozen):
    """The fine-tunings on the whole set whose trajectories are matched."""

    count: int = setting(2, "Number of experts, at least 1; under one charge each costs epsilon.", le=64, ge=1)
    epochs: int = setting(
        3, "Passes over the rows; a snapshot after each. At least distil.max_start - 1 + distil.span.", le=1000, ge=1
    )
    batch_size: Size = setting(16, "Rows per step; with a charge the expected number. paper 16.")
    optimizer: Literal["momentum", "adam"] = setting(
        "momentum", "Without a charge: momentum can be followed by a student of plain SGD; a charge takes Adam."
    )
    momentum_learning_rate: LearningRate = setting(
        0.03, "Step of momentum; a gradient longer than 1 is shortened to it."
    )
    learning_rate: LearningRate = setting(2e-3, "Step of Adam. tiny 2e-3, paper 2e-4.")
    lora_rank: Size = setting(8, "Rank of the adapters.")
    lora_alpha: Positive = setting(16.0, "LoRA alpha.")
    private: bool | None = setting(
        None, "Whether DP-SGD trains them under the run's charge; none: yes if the run has an epsilon, else no."
    )
    l2_clip_norm: Positive = setting(1.0, "With a charge: clip norm of one row's gradient.")
    micro_batch: Size = setting(16, "With a charge: rows per forward pass.")

    @property
    def plain(self) -> tuple[Literal["momentum", "adam"], float]:
        """Optimizer and learning rate of experts without a charge."""
        return self.optimizer, self.momentum_learning_rate if self.optimizer == "momentum" else self.learning_rate


class SelectionConfig(Frozen):
    """Which rows carry the pseudo tokens."""

    strategy: Literal["random", "bm25", "dsir", "less"] = setting("random", "How rows are chosen. paper less.")
    ratio: Probability = setting(0.05, "Part of the rows that is chosen, at most 1. paper 0.05.")
    rows: Count | None = setting(None, "Number of rows instead of a ratio.")
    target: str | None = setting(
        None,
        "Public file of instructions with responses that the chosen rows should resemble (bm25, dsir, less); none: "
        "`validation` of the rows to choose from, which are then not chosen.",
    )
    target_digest: Annotated[str, DigestOf("target")] = setting(
        "", "sha256 of the pairs of `selection.target`; set by the run."
    )
    model: str = setting("", "less: another base model whose gradients choose the rows; empty: the run's model.")
    model_digest: Annotated[str, DigestOf("model")] = setting(
        "", "sha256 of the files of `selection.model`; set by the run."
    )
    validation: int = setting(16, "Rows of the target that are looked at, at most.", le=10_000, ge=1)
    buckets: int = setting(10_000, "dsir: buckets of hashed unigrams and bigrams.", le=10_000_000, ge=1)
    warmup: Probability = setting(0.05, "less: part of the rows that the warm-up sees. LESS 0.05.")
    warmup_epochs: int = setting(2, "less: epochs of the warm-up. tiny 2, LESS 4.", le=100, ge=1)
    projection: Size = setting(512, "less: dimension of projected gradients. tiny 512, LESS 8192.")

    @model_validator(mode="after")
    def _check_selector(self) -> Self:
        if self.model and self.strategy != "less":
            raise ValueError(
                f"selection.model={self.model}: expected selection.strategy=less, which alone asks a model, found "
                f"{self.strategy}; choose less, or leave selection.model out"
            )
        return self


class DistilConfig(Frozen):
    """How the pseudo tokens are learned."""

    tokens: int = setting(2, "k, pseudo tokens before each row, at least 1. paper 2.", le=1024, ge=1)
    place: Literal["instruction", "row"] = setting(
        "instruction", "Where they stand: before the instruction, as their text does, or before the row. paper row."
    )
    steps: Count = setting(60, "S, steps of distillation. tiny 60, paper 3000.")
    inner_steps: int = setting(6, "N, the student's steps. paper 6.", le=1000, ge=1)
    span: int = setting(1, "M, epochs between the expert's two snapshots. paper 1.", le=1000, ge=1)
    max_start: int = setting(2, "T_max: start epochs are below it. paper 2.", le=1000, ge=1)
    batch_size: Size = setting(8, "Rows of one inner step. paper 8.")
    micro_batch: Size | Literal["auto"] = setting(
        "auto",
        "Rows of an inner step per pass, at least 1: memory and rounding only. auto: as many as have room in 2.5 GiB "
        "by the model's shape, the same on every machine.",
    )
    beta: float = setting(
        0.01, "Weight of the distance to the nearest token. tiny 0.01, paper 100; sweep 0, 20, 50, 100.", ge=0
    )
    learning_rate: LearningRate = setting(0.01, "Adam, of the pseudo tokens. tiny 0.01, paper 3e-3.")
    step_size: float = setting(0.05, "alpha_0, the student's first step size.", le=1000, gt=0)
    step_size_learning_rate: LearningRate = setting(0.02, "Adam, of the logarithm of the step size.")
    trainable: Literal["tokens", "step_size"] = setting(
        "tokens", "tokens: pseudo tokens and step size (paper). step_size: frozen tokens, the ablation."
    )

    @property
    def rows_at_once(self) -> int | None:
        """Rows per pass; None, all of a step, where none were chosen yet."""
        return None if self.micro_batch == "auto" else self.micro_batch


class TuningConfig(Frozen):
    """Instruction tuning on the result, and how it is measured."""

    epochs: int = setting(3, "Passes over the distilled rows.", le=1000, ge=1)
    batch_size: Size = setting(8, "Rows per step. paper 8.")
    learning_rate: LearningRate = setting(2e-3, "Adam. tiny 2e-3, paper 2e-4.")
    transfer: str | None = setting(None, "Another base model that is tuned on the decoded text; none: left out.")
    transfer_digest: Annotated[str, DigestOf("transfer")] = setting(
        "", "sha256 of the files of `transfer`; set by the run."
    )
    questions: Count = setting(
        100, "Held-out rows that are measured on, at most; drawn by the public seed where there are more."
    )


_PROFILES: Profiles = {
    "paper": {
        "model": "facebook/opt-1.3b",
        "max_length": 512,
        "experts": {"learning_rate": 2e-4},
        "selection": {"strategy": "less", "warmup_epochs": 4, "projection": 8192},
        "distil": {"place": "row", "steps": 3000, "beta": 100.0, "learning_rate": 3e-3},
        "tuning": {"learning_rate": 2e-4, "transfer": "meta-llama/Llama-2-7b-hf", "questions": 10_000},
    },
}


class TrajectoryMatchingConfig(MethodSettings):
    """Trajectory matching: pseudo tokens are learned so that few rows train a model as the whole set does."""

    profiles: ClassVar[Profiles] = _PROFILES

    method: Literal["trajectory-matching"] = setting("trajectory-matching", "Which method these settings are of.")
    samples: Count | None = setting(None, "Distilled rows in all, as selection.rows; none: by selection.ratio.")
    max_length: int = setting(96, "Tokens of a row, template included. tiny 96, paper 512.", ge=8, le=65_536)
    template: Template = setting("auto", "How a row is written: the tokenizer's chat template, or a plain one.")
    carrier: Carrier = setting(
        "auto",
        "What carries the pseudo tokens. selected: real rows. public: rows of `carriers`. written: the instructions of "
        "`carriers`, answered by the public model. auto: selected without an epsilon, written with one.",
    )
    carriers: NonEmpty = setting(
        "sample:instructions", "Public instructions with responses: a file, or a sample. Never private rows."
    )
    carriers_digest: Annotated[str, DigestOf("carriers")] = setting(
        "", "sha256 of the pairs of `carriers`; set by a run that reads them."
    )
    experts: ExpertsConfig = section(ExpertsConfig, "Fine-tunings on the whole set.")
    selection: SelectionConfig = section(SelectionConfig, "Rows that carry pseudo tokens.")
    distil: DistilConfig = section(
        DistilConfig, "How the pseudo tokens are learned: spans of a trajectory that a student follows, and its steps."
    )
    tuning: TuningConfig = section(TuningConfig, "Tuning on the result, and what is measured with it.")
    evaluation: AnswersConfig = section(
        AnswersConfig, "Multiple choice behind answered examples, and tasks of lm-evaluation-harness."
    )

    @model_validator(mode="after")
    def _check_snapshots(self) -> Self:
        last, epochs = self.distil.max_start - 1 + self.distil.span, self.experts.epochs
        if last > epochs:
            raise ValueError(
                f"distil.max_start={self.distil.max_start} and distil.span={self.distil.span}: expected experts of at "
                f"least {last} epochs, found experts.epochs={epochs}; raise it, or lower one of the first two"
            )
        if self.experts.private and self.carrier == "selected":
            raise ValueError(
                "carrier=selected: expected public rows to carry the pseudo tokens of private experts, for real rows "
                "would leave as they are; choose carrier=written or carrier=public"
            )
        return self

    @property
    def selecting(self) -> SelectionConfig:
        """How rows are selected; `samples` is the same as `selection.rows` and counts before it."""
        return self.selection if self.samples is None else self.selection.model_copy(update={"rows": self.samples})

    @property
    def unmeasured(self) -> TrajectoryMatchingConfig:
        """Without what only the evaluation meets, so that another measurement trains and distils nothing again."""
        return self.model_copy(update={"evaluation": AnswersConfig()})


def promised(config: TrajectoryMatchingConfig, *, has_epsilon: bool) -> TrajectoryMatchingConfig:
    """The settings with `auto` replaced, by whether the run has an epsilon.

    Raises:
        ValueError: the settings and the epsilon exclude each other.
    """
    private = has_epsilon if config.experts.private is None else config.experts.private
    if private and not has_epsilon:
        raise ValueError(
            "experts.private=true: expected a run with --epsilon, found one without; give --epsilon, or leave "
            "experts.private out"
        )
    if has_epsilon and not private:
        raise ValueError(
            "experts.private=false: expected a run without --epsilon, found one with it; leave experts.private out, "
            "or leave --epsilon out"
        )
    carrier = ("written" if private else "selected") if config.carrier == "auto" else config.carrier
    experts = config.experts.model_copy(update={"private": private})
    whole = config.model_copy(update={"experts": experts, "carrier": carrier})
    return TrajectoryMatchingConfig.model_validate(whole.model_dump())

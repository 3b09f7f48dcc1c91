"""The one config of knowledge distillation: public values only, no torch.

`profile` fills what is not given. `paper` reproduces appendix D of the KnowledgeSG paper; `tiny` shrinks sizes so that
a run takes minutes on two cores. Where the paper is silent (thresholds of the filters, the learning rate that goes with
the clip norm), the values were chosen on public text.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from understudy.evaluation.answers.config import AnswersConfig
from understudy.frozen import DigestOf, Frozen, MethodSettings, NotInKeys, Profiles
from understudy.generation.config import SamplingConfig
from understudy.quantities import Count, CountOrZero, LearningRate, NonEmpty, Positive, Size, section, setting

Template = Literal["auto", "plain", "chat"]


class LoraConfig(Frozen):
    """The adapter that crosses the boundary."""

    rank: int = setting(8, "Rank, 1 to 1024. tiny 8, paper 32.", le=1024, ge=1)
    alpha: Positive = setting(16.0, "The adapter is scaled by alpha / rank. tiny 16, paper 64.")
    targets: tuple[str, ...] | Literal["attention", "all-linear"] = setting(
        "attention", "Last parts of layer names, the attention's projections (paper), or all linear layers."
    )


class TrainConfig(Frozen):
    """DP-SGD on the client's pairs: everything the privacy event and the update depend on."""

    max_length: int = setting(
        96, "Padded tokens of a pair, 16 to 8192; longer ones are cut. tiny 96, paper 512.", ge=16, le=8192
    )
    batch_size: Count = setting(64, "Expected Poisson batch, at least 1. tiny 64, paper 16.")
    epochs: Positive = setting(4.0, "Expected passes over the pairs, above 0; paper 4.")
    l2_clip_norm: Positive = setting(1.0, "Clip norm of an example's gradient, above 0; paper 1.")
    learning_rate: LearningRate = setting(2e-3, "Adam step, above 0. tiny 2e-3, paper 4e-4.")
    learning_rate_decay: bool = setting(True, "Linear decay to 0.")
    micro_batch: Size | Literal["auto"] = setting(
        "auto",
        "Pairs per forward pass, at least 1: memory and rounding only. auto: 8, more on a GPU, by model, length, "
        "expected batch and the GPU's memory.",
    )
    checkpoint_every: Annotated[Count, NotInKeys()] = setting(20, "Steps between checkpoints, at least 1.")


class SeedConfig(Frozen):
    """A public set of pairs, known to both zones, on which the base model is tuned before anything else.

    An intercepted adapter then does not fit the public checkpoint. It is an obstacle, not protection.
    """

    pairs: str = setting("", "Public table with columns instruction and response; empty: the base model as it is.")
    digest: Annotated[str, DigestOf("pairs")] = setting("", "sha256 of the pairs; set by the run.")
    epochs: Count = setting(1, "Passes over them, at least 1.")
    learning_rate: LearningRate = setting(2e-4, "AdamW step, above 0.")


class InstructionConfig(Frozen):
    """How the adapted model writes instructions."""

    examples: NonEmpty = setting(
        "builtin", "Public instructions that prompts show: builtin, or a table with a column instruction."
    )
    examples_digest: Annotated[str, DigestOf("examples")] = setting("", "sha256 of the examples; set by the run.")
    shots: int = setting(3, "Examples in a prompt, 1 to 16, fewer where the context is short.", ge=1, le=16)
    draws: float = setting(2.0, "Instructions drawn per wanted pair, 1 to 20; paper 2.", ge=1, le=20)
    least_words: Count = setting(2, "Shorter instructions are dropped; paper 2.")
    sampling: SamplingConfig = Field(
        default_factory=lambda: SamplingConfig(max_new_tokens=32, temperature=0.7, top_p=1.0),
        description="How they are drawn; paper temperature 0.7.",
    )
    batch_size: Size | Literal["auto"] = setting(
        "auto", "Rows generated or scored at a time; speed only. auto: 32, and where a GPU generates as many as fit."
    )


class FilterConfig(Frozen):
    """Which instructions are kept."""

    bleu: float = setting(
        70.0,
        "Highest sentence BLEU of an instruction to a kept or public one, 0 to 100.",
        ge=0,
        le=100,
    )
    against: str = setting("", "Public table with a column instruction to compare with too; empty: none.")
    against_digest: Annotated[str, DigestOf("against")] = setting(
        "", "sha256 of what is compared with; set by the run."
    )
    judge: Literal["professional", "none"] = setting(
        "professional", "Who says whether an instruction is of the domain; none: nobody."
    )
    share: float = setting(
        0.75,
        "Share of the judged instructions that is kept, the likeliest of the domain; above 0, at most 1.",
        gt=0,
        le=1,
    )
    threshold: float | Literal["neutral"] | None = setting(
        None,
        "Least probability of yes over yes and no, instead of a share; neutral: that of a request without content.",
    )
    rank: Literal["ifd", "none"] = setting(
        "ifd", "Which pairs are kept: ifd, those of the lowest scores; none, the first ones drawn."
    )
    rank_within: Literal["responses", "all"] = setting(
        "responses",
        "Pairs are ranked within equal responses, of which each keeps its share, or all of them together (paper); "
        "where all responses differ that is the same.",
    )


class ProfessionalConfig(Frozen):
    """The professional model: in the server zone, or served; it sees released text only."""

    model: NonEmpty = setting("tiny-llama", "Named model, folder or hub id; it answers and judges.")
    model_digest: Annotated[str, DigestOf("model")] = setting(
        "", "sha256 of its files; set by the run where both zones are here."
    )
    url: str | None = setting(
        None, "Base of an OpenAI-compatible completions endpoint, which answers instead; none: in process."
    )
    served_name: NonEmpty = setting("professional", "Name of the model at the endpoint.")
    timeout_seconds: Annotated[float, NotInKeys()] = setting(
        60.0, "Longest wait for one answer, above 0, at most 3600.", le=3600, gt=0
    )
    requests_per_minute: Annotated[CountOrZero, NotInKeys()] = setting(0, "Most requests a minute; 0: no limit.")
    template: Template = setting("auto", "auto: its chat template, or the plain one where it has none.")
    sampling: SamplingConfig = Field(
        default_factory=lambda: SamplingConfig(max_new_tokens=48, temperature=0.7, top_p=0.9),
        description="How answers are drawn.",
    )


class TuneConfig(Frozen):
    """Normal fine-tuning of the adapter on the synthetic pairs: no private row is near, no noise is needed."""

    steps: Count = setting(60, "Steps, at least 1. tiny 60, paper 1000 (100 rounds of 10).")
    batch_size: Size = setting(5, "Pairs per step; paper 5.")
    learning_rate: LearningRate = setting(5e-4, "AdamW, first step. tiny 5e-4, paper 5e-5.")
    final_learning_rate: LearningRate = setting(1e-5, "At the last step, by a cosine. tiny 1e-5, paper 1e-6.")
    max_length: int = setting(128, "Tokens of a pair, 16 to 8192. tiny 128, paper 512.", ge=16, le=8192)
    checkpoint_every: Annotated[Count, NotInKeys()] = setting(50, "Steps between checkpoints, at least 1.")


class MeasureConfig(Frozen):
    """What is measured on real rows in the end; internal."""

    most_pairs: Count = setting(64, "Held-out pairs whose responses are scored, at most; the public seed chooses them.")
    win_pairs: CountOrZero = setting(16, "Held-out instructions on which answers are compared; 0: none.")


_PROFILES: Profiles = {
    "paper": {
        "model": "meta-llama/Llama-2-7b-hf",
        "samples": 500,
        "lora": {"rank": 32, "alpha": 64.0},
        "train": {"max_length": 512, "batch_size": 16, "learning_rate": 4e-4},
        "professional": {
            "model": "AlpaCare/AlpaCare-llama2-7b",
            "sampling": {"max_new_tokens": 512, "temperature": 0.7, "top_p": 1.0},
        },
        "instructions": {"sampling": {"max_new_tokens": 128, "temperature": 0.7, "top_p": 1.0}},
        "tune": {"steps": 1000, "learning_rate": 5e-5, "final_learning_rate": 1e-6, "max_length": 512},
        "measure": {"most_pairs": 1000, "win_pairs": 200},
    },
}


class KnowledgeDistillationConfig(MethodSettings):
    """Knowledge distillation: DP adapter out, a professional model's pairs and a better adapter back."""

    profiles: ClassVar[Profiles] = _PROFILES

    method: Literal["knowledge-distillation"] = setting("knowledge-distillation", "Which method these settings are of.")
    samples: Count = setting(100, "Synthetic pairs in all. tiny 100, paper 500.")
    template: Template = setting("auto", "How pairs are written for the base model: its chat template, or a plain one.")
    lora: LoraConfig = section(LoraConfig, "The adapter that crosses from the client to the server.")
    train: TrainConfig = section(TrainConfig, "DP-SGD on the client's pairs.")
    seed: SeedConfig = section(
        SeedConfig, "Public pairs on which the base model is tuned before any private pair is read."
    )
    instructions: InstructionConfig = section(
        InstructionConfig, "How the adapted model writes instructions, and how many times as many as are wanted."
    )
    filters: FilterConfig = section(
        FilterConfig,
        "Which instructions go to the professional model: no fragments, no repetitions, none that is near another.",
    )
    professional: ProfessionalConfig = section(ProfessionalConfig, "The model that answers.")
    tune: TuneConfig = section(TuneConfig, "Fine-tuning on the answered pairs.")
    measure: MeasureConfig = section(
        MeasureConfig, "What the evaluation compares on real pairs, and how many of them it reads."
    )
    evaluation: AnswersConfig = section(
        AnswersConfig, "Multiple choice behind answered examples, and tasks of lm-evaluation-harness."
    )

    @property
    def unmeasured(self) -> KnowledgeDistillationConfig:
        """Without what only the evaluation meets, so that another measurement writes and tunes nothing again."""
        return self.model_copy(update={"evaluation": AnswersConfig()})

"""The one config of preference optimisation: public values only, no torch.

`profile` fills what is not given. `paper` reproduces appendix B.1 of the POPri paper with the beta of the authors'
code; `tiny` shrinks prompts, rounds and texts so that a run takes minutes on two cores.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from understudy.frozen import Frozen, MethodSettings, Profiles
from understudy.generation.config import SamplingConfig
from understudy.quantities import Count, CountOrZero, LearningRate, NonEmpty, Positive, Probability, Size

Variant = Literal["federated", "central", "central_conditional"]


class ClientConfig(Frozen):
    """How documents become clients and samples, and who takes part in a round."""

    sample_tokens: Count = Field(64, ge=2, description="Tokens of one sample of a client's text, at least 2; paper 64.")
    sampling_probability: Probability = Field(
        1.0, description="Chance q that a client takes part in a round, above 0; 1: all of them. Poisson sampling."
    )


class CandidateConfig(Frozen):
    """The texts that clients score: K prompts with J continuations each."""

    prompts: Count = Field(16, description="K, at least 1. tiny 16, paper 1800.")
    per_prompt: Count = Field(6, ge=2, description="J, at least 2. tiny 6, paper 10.")
    seeds_per_prompt: Count = Field(
        3, le=64, description="Public texts that one prompt shows as examples, at least 1; paper 3."
    )
    seed_tokens: Count = Field(32, description="A public seed text is cut to so many tokens. tiny 32, paper 64.")
    instruction: str = Field(
        "", description="central_conditional: public text before the examples; {label} is replaced by the label's name."
    )
    sampling: SamplingConfig = Field(
        default_factory=lambda: SamplingConfig(max_new_tokens=32, top_p=1.0),
        description="How continuations are drawn; max_new_tokens is the paper's max_tokens.",
    )


class ScoringConfig(Frozen):
    """What one client says about the candidates: a vector of L2 norm at most 1."""

    scorer: Literal["cosine", "histogram"] = Field(
        "cosine",
        description="Mean cosine similarity to the client's samples (paper), or Private Evolution's share of samples "
        "whose nearest candidate it is.",
    )
    normalise: Literal["standardise", "none"] = Field(
        "standardise",
        description="Before clipping, subtract the vector's mean and divide by its spread, or leave it (paper). "
        "Raw cosines share an offset that eats the clip.",
    )
    over: Literal["within", "prompt", "all"] = Field(
        "within",
        description="Which scores share a mean and a spread: within, a mean per prompt and one spread; prompt, both "
        "per prompt (slower); all, one of each.",
    )
    aggregation: Literal["trusted", "masked"] = Field(
        "trusted",
        description="trusted: the sum is formed and noised in the client zone. masked: clients send masked integers "
        "with discrete Gaussian shares, and no one holds the sum without noise.",
    )
    fractional_bits: Count = Field(
        12, ge=4, le=24, description="masked only: bits after the point of a score, 4 to 24."
    )
    colluding: CountOrZero = Field(
        0, description="masked only: clients that may collude with the server; others' noise makes up for theirs."
    )
    survivors: Probability = Field(
        0.6,
        description="masked only: smallest share of clients that must answer, else the round aborts; sizes the noise.",
    )


class PreferenceConfig(Frozen):
    """Pairs and Direct Preference Optimization (Rafailov et al. 2023)."""

    rejected_rank: Count = Field(
        4, ge=2, description="l: rank of the rejected text of a prompt, 2 to J. tiny 4, paper 5."
    )
    loss: Literal["dpo", "conservative"] = Field("dpo", description="dpo, or conservative DPO with label_smoothing.")
    label_smoothing: Positive = Field(
        0.1, lt=0.5, description="conservative only: chance that a preference is wrong, 0 to 0.5."
    )
    beta: Positive = Field(0.1, description="DPO's beta, above 0. tiny 0.1, paper 0.01.")
    lora_rank: Size = Field(16, description="Rank of the adapter. tiny 16, paper 4.")
    lora_alpha: Positive = Field(32, description="LoRA alpha. tiny 32, paper 8.")
    learning_rate: LearningRate = Field(1e-3, description="AdamW. tiny 1e-3, paper 8e-7.")
    epochs: Count = Field(4, le=1000, description="Passes over a round's pairs, at least 1. tiny 4, paper 2.")
    batch_size: Size = Field(16, description="Pairs per step. tiny 16, paper 24.")


class EndpointConfig(Frozen):
    """Where the policy is served, if not in this process."""

    url: str | None = Field(
        None,
        description="Base of an OpenAI-compatible completions endpoint, e.g. http://host:8000/v1; none: in process. "
        "Sees public seed texts and synthetic text only.",
    )
    model: str = Field(
        "policy",
        description="Name of the model at the endpoint; {round} is replaced by the round's number, where each round's "
        "adapter has a name of its own.",
    )
    timeout_seconds: Positive = Field(60.0, le=3600, description="Of one request.")


_PROFILES: Profiles = {
    "tiny": {},
    "paper": {
        "model": "meta-llama/Meta-Llama-3-8B",
        "samples": 1_000_000,
        "rounds": 20,
        "candidates": {
            "prompts": 1800,
            "per_prompt": 10,
            "seed_tokens": 64,
            "sampling": {"max_new_tokens": 64, "top_p": 1.0},
        },
        "preferences": {
            "rejected_rank": 5,
            "beta": 0.01,
            "lora_rank": 4,
            "lora_alpha": 8,
            "learning_rate": 8e-7,
            "epochs": 2,
            "batch_size": 24,
        },
    },
}


class PreferenceOptimizationConfig(MethodSettings):
    """Preference optimisation: clients score texts, noise is added to the sum, DPO trains the generator on it."""

    profiles: ClassVar[Profiles] = _PROFILES

    method: Literal["preference-optimization"] = Field(
        "preference-optimization", description="Which method these settings are of."
    )
    variant: Variant = Field(
        "federated",
        description="federated: a unit is a client and all its texts. central: a unit is one text. "
        "central_conditional: one text with its label, texts are made per label.",
    )
    samples: Count = Field(100, description="Synthetic texts in all. paper 1,000,000.")
    rounds: Count = Field(3, description="T, at least 1. tiny 3, paper 20.")
    seeds: NonEmpty = Field(
        "sample:public",
        description="Public texts that prompts show as examples: file with a column text, or sample:public.",
    )
    seeds_digest: str = Field("", description="sha256 of the texts of `seeds`; set by the run.")
    clients: ClientConfig = Field(default_factory=ClientConfig)
    candidates: CandidateConfig = Field(default_factory=CandidateConfig)
    scoring: ScoringConfig = Field(default_factory=ScoringConfig)
    preferences: PreferenceConfig = Field(default_factory=PreferenceConfig)
    endpoint: EndpointConfig = Field(default_factory=EndpointConfig)

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        rank, texts = self.preferences.rejected_rank, self.candidates.per_prompt
        if rank > texts:
            raise ValueError(
                f"preferences.rejected_rank={rank}: expected at most candidates.per_prompt={texts}, "
                "for a prompt has that many texts; lower the rank or draw more texts"
            )
        return self

"""The one config of preference optimisation: public values only, no torch.

`profile` fills what is not given. `paper` reproduces appendix B.1 of the POPri paper with the beta of the authors'
code; `tiny` shrinks prompts, rounds and texts so that a run takes minutes on two cores.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from understudy.frozen import DigestOf, Frozen, MethodSettings, NotInKeys, Profiles
from understudy.generation.config import SamplingConfig
from understudy.quantities import (
    Count,
    CountOrZero,
    LearningRate,
    NonEmpty,
    Positive,
    Probability,
    Size,
    section,
    setting,
)

PUBLIC_SAMPLE = "sample:public"
Variant = Literal["federated", "central", "central_conditional"]


class ClientConfig(Frozen):
    """How documents become clients and samples, and who takes part in a round."""

    sample_tokens: int = setting(
        64, "Tokens of one sample of a client's text, at least 2; paper 64.", ge=2, le=100_000_000
    )
    sampling_probability: Probability = setting(
        1.0, "Chance q that a client takes part in a round, above 0; 1: all of them. Poisson sampling."
    )


class CandidateConfig(Frozen):
    """The texts that clients score: K prompts with J continuations each."""

    prompts: Count = setting(16, "K, at least 1. tiny 16, paper 1800.")
    style: Literal["auto", "chat", "plain"] = setting(
        "auto",
        "chat: through the model's chat template; plain: a list to be continued (paper). auto: chat if the model has a "
        "chat template.",
    )
    per_prompt: int = setting(6, "J, at least 2. tiny 6, paper 10.", ge=2, le=100_000_000)
    seeds_per_prompt: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = setting(
        "auto",
        "Public texts that one prompt shows as examples, 0 to 64; paper 3. auto: 3, but none in a chat whose seeds are "
        "the sample: what they are not about leads an instruct model away from what it is asked for.",
    )
    seed_tokens: Count = setting(32, "A public seed text is cut to so many tokens. tiny 32, paper 64.")
    instruction: str = setting(
        "",
        "Public words beside the examples; {label} is replaced by the label's name. None: 'A list of different' and "
        "what --about says; a chat is told 'You write' and what --about says, and asked to write one.",
    )
    sampling: SamplingConfig = Field(
        default_factory=lambda: SamplingConfig(max_new_tokens=32, top_p=1.0),
        description="How continuations are drawn; max_new_tokens is the paper's max_tokens.",
    )

    @property
    def in_chat(self) -> bool:
        """Whether prompts are turns of a chat; `auto` is decided before the charge and counts as plain until then."""
        return self.style == "chat"

    @property
    def examples(self) -> int:
        """Public texts that one prompt shows; `auto` counts as 3 until it is decided."""
        return 3 if self.seeds_per_prompt == "auto" else self.seeds_per_prompt


class ScoringConfig(Frozen):
    """What one client says about the candidates: a vector of L2 norm at most 1."""

    scorer: Literal["cosine", "histogram"] = setting(
        "cosine",
        "Mean cosine similarity to the client's samples (paper), or Private Evolution's share of samples "
        "whose nearest candidate it is.",
    )
    normalise: Literal["standardise", "none"] = setting(
        "standardise",
        "Before clipping, subtract the vector's mean and divide by its spread, or leave it (paper). "
        "Raw cosines share an offset that eats the clip.",
    )
    over: Literal["within", "prompt", "all"] = setting(
        "within",
        "Which scores share a mean and a spread: within, a mean per prompt and one spread; prompt, both "
        "per prompt (slower); all, one of each.",
    )
    aggregation: Literal["trusted", "masked"] = setting(
        "trusted",
        "trusted: the sum is formed and noised in the client zone. masked: clients send masked integers "
        "with discrete Gaussian shares, and no one holds the sum without noise.",
    )
    fractional_bits: int = setting(12, "masked only: bits after the point of a score, 4 to 24.", ge=4, le=24)
    colluding: CountOrZero = setting(
        0, "masked only: clients that may collude with the server; others' noise makes up for theirs."
    )
    survivors: Probability = setting(
        0.6, "masked only: smallest share of clients that must answer, else the round aborts; sizes the noise."
    )


class PreferenceConfig(Frozen):
    """Pairs and Direct Preference Optimization (Rafailov et al. 2023)."""

    rejected_rank: int = setting(
        4, "l: rank of the rejected text of a prompt, 2 to J. tiny 4, paper 5.", ge=2, le=100_000_000
    )
    loss: Literal["dpo", "conservative"] = setting("dpo", "dpo, or conservative DPO with label_smoothing.")
    label_smoothing: Positive = setting(0.1, "conservative only: chance that a preference is wrong, 0 to 0.5.", lt=0.5)
    beta: Positive = setting(0.1, "DPO's beta, above 0. tiny 0.1, paper 0.01.")
    epochs: int = setting(4, "Passes over a round's pairs, at least 1. tiny 4, paper 2.", le=1000, ge=1)
    batch_size: Size = setting(16, "Pairs per step. tiny 16, paper 24.")
    lora_rank: Size = setting(16, "Rank of the adapter. tiny 16, paper 4.")
    lora_alpha: Positive = setting(32, "LoRA alpha. tiny 32, paper 8.")
    learning_rate: LearningRate | Literal["auto"] = setting(
        "auto",
        "AdamW. auto: at most 1e-3, the largest at which preferences that a coin decides, as those of scores that are "
        "all noise, do the model little damage; it is tried on public texts before the charge. tiny auto, paper "
        "8e-7.",
    )

    @property
    def rate(self) -> float:
        """The learning rate; 1e-3 where none was chosen yet."""
        return 1e-3 if self.learning_rate == "auto" else self.learning_rate


class EndpointConfig(Frozen):
    """Where the policy is served, if not in this process."""

    url: str | None = setting(
        None,
        "Base of an OpenAI-compatible completions endpoint, e.g. http://host:8000/v1; none: in process. "
        "Sees public seed texts and synthetic text only.",
    )
    model: str = setting(
        "policy",
        "Name of the model at the endpoint. With a url it must hold {round}, which is replaced by the round's number: "
        "each round's adapter has a name of its own, such as policy-{round}.",
    )
    timeout_seconds: Annotated[float, NotInKeys()] = setting(60.0, "Of one request.", le=3600, gt=0)


class CostConfig(Frozen):
    """The network that a client's seconds of transfer are computed for; nothing is measured of it."""

    download_mbit_per_second: Positive = setting(50.0, "Assumed rate at which a client receives, above 0.")
    upload_mbit_per_second: Positive = setting(10.0, "Assumed rate at which a client sends, above 0.")


_PROFILES: Profiles = {
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


def public_words(style: Literal["chat", "plain"], about: str, *, labelled: bool = False) -> str:
    """What a prompt says beside its examples; `{label}` is where a label's name goes.

    A chat is told what it writes by its system message.

    >>> public_words("plain", "film reviews")
    'A list of different film reviews:'
    >>> public_words("chat", "film reviews", labelled=True)
    'Write one, {label}, and nothing else.'
    """
    label = ", {label}" if labelled else ""
    if style == "chat":
        return f"Write one{label}, and nothing else."
    return f"A list of different {about.strip() or 'texts'}{label}:"


class PreferenceOptimizationConfig(MethodSettings):
    """Preference optimisation: clients score texts, noise is added to the sum, DPO trains the generator on it."""

    profiles: ClassVar[Profiles] = _PROFILES

    method: Literal["preference-optimization"] = setting(
        "preference-optimization", "Which method these settings are of."
    )
    variant: Variant = setting(
        "federated",
        "federated: a unit is a client and all its texts. central: a unit is one text. "
        "central_conditional: one text with its label, texts are made per label.",
    )
    samples: Count = setting(100, "Synthetic texts in all. paper 1,000,000.")
    rounds: Count = setting(3, "T, at least 1. tiny 3, paper 20.")
    seeds: NonEmpty = setting(
        PUBLIC_SAMPLE, "Public texts that prompts show as examples: file with a column text, or sample:public."
    )
    seeds_digest: Annotated[str, DigestOf("seeds")] = setting("", "sha256 of the texts of `seeds`; set by the run.")
    clients: ClientConfig = section(
        ClientConfig, "Whose documents a client has, how they become samples, and how many clients a round asks."
    )
    candidates: CandidateConfig = section(CandidateConfig, "The texts of a round.")
    scoring: ScoringConfig = section(
        ScoringConfig, "What a client sends, and how the sum of what they send is protected."
    )
    preferences: PreferenceConfig = section(PreferenceConfig, "Pairs from the noised scores, and DPO on them.")
    endpoint: EndpointConfig = section(
        EndpointConfig, "A server that writes the candidates in place of this process, if there is one."
    )
    costs: CostConfig = section(CostConfig, "The network that the report computes a client's seconds for.")

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        rank, texts = self.preferences.rejected_rank, self.candidates.per_prompt
        if rank > texts:
            raise ValueError(
                f"preferences.rejected_rank={rank}: expected at most candidates.per_prompt={texts}, "
                "for a prompt has that many texts; lower the rank or draw more texts"
            )
        return self

    @model_validator(mode="after")
    def _check_served(self) -> Self:
        served = self.endpoint
        if served.url is not None and "{round}" not in served.model:
            raise ValueError(
                f"endpoint.model={served.model}: expected {{round}} in it, for under one name every round would be "
                "written by one model, whatever preferences teach; serve each round's adapter under a name of its own "
                "and give it as endpoint.model=policy-{round}"
            )
        return self

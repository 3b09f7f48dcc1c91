"""The one config of gradient matching: public values only, no torch.

`profile` fills what is not given. `paper` reproduces section 5.1 of the GRADMM paper; `tiny` shrinks rounds and steps
so that a run takes minutes on two cores, and matches a small sketch of the gradient. Where the paper is silent (cut
length, clipping of the inner steps, how many texts the filters choose from), the values are ours.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from understudy.frozen import Frozen, MethodSettings, Profile, Profiles
from understudy.generation.config import Reading
from understudy.quantities import Count, CountOrZero, LearningRate, NonEmpty, Part, Positive, Size, section, setting

__all__ = [
    "FilterConfig",
    "GradientMatchingConfig",
    "MatchingConfig",
    "Profile",
    "ProjectionConfig",
    "TargetConfig",
    "VerbalizerConfig",
]

Whole = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
Share = Annotated[float, Field(gt=0, le=1, strict=True)]


class VerbalizerConfig(Frozen):
    """How a label becomes one token: `BOS <text> <template>`, then the first token of the label's word."""

    template: NonEmpty = setting(
        "auto",
        "Public text between a text and its label's word, at least one token; auto: of a few, the one after which the "
        "model labels its own texts best. tiny auto, paper ' It was'.",
    )
    words: dict[str, str] | Literal["auto", "names"] = setting(
        "auto",
        "Label name -> word that stands for it, for every label; names: the label's own; auto: of its name, synonyms "
        "and the model's words, the one that labels its own texts best. tiny auto, paper by hand (here names).",
    )


class TargetConfig(Frozen):
    """Which gradient of the real rows is released, and with which noise."""

    kind: Literal["head", "label_rows", "sketch"] = setting(
        "sketch",
        "Gradient of the output head (vocabulary x width, the paper's), of the labels' own rows of it, or "
        "a public random sketch of the head's. tiny sketch, paper head.",
    )
    sketch_dimension: Count = setting(
        512, "sketch only: numbers m per label, at least 1; cosines are kept to about 1/sqrt(m)."
    )
    l2_clip_norm: Positive = setting(1.0, "Clip norm C of one row's gradient, above 0; paper 1.")
    calibration: Literal["analytic", "paper"] = setting(
        "analytic", "Noise: the least that meets epsilon, or the paper's formulas. tiny analytic, paper paper."
    )
    micro_batch: Size = setting(32, "Rows per forward pass, at least 1; memory only.")


class MatchingConfig(Frozen):
    """ADMM: how the embeddings of a synthetic text are moved towards the target."""

    gradient: Literal["closed_form", "full"] = setting(
        "closed_form",
        "Gradient that is matched: the target kind's in closed form, or (ablation) all layers' by double "
        "backward, whose target then has one number per parameter.",
    )
    rounds: Count = setting(10, "ADMM rounds T, at least 1. tiny 10, paper 30.")
    inner_steps: Count = setting(10, "Adam steps per round, at least 1. tiny 10, paper 50.")
    learning_rate: LearningRate = setting(0.04, "Adam step, above 0. tiny 0.04, paper 0.008.")
    max_gradient_norm: Positive = setting(1.0, "One text's embedding gradient is clipped to this norm, above 0.")
    penalty: Positive = setting(
        0.003, "ADMM penalty rho, above 0. tiny 0.003, paper 0.05 (it takes the best of 0.001 to 10)."
    )
    emit: Literal["nearest", "last"] = setting(
        "nearest",
        "Which text is emitted: of all rounds' the nearest to the target, or the last's. tiny nearest, paper last.",
    )
    swap_sweeps: CountOrZero = setting(
        8, "After ADMM, sweeps of single-token swaps along f's gradient, 0 for none. tiny 8, paper 0."
    )
    swap_width: Size = setting(8, "Positions at which a swap is tried per sweep, at least 1.")
    batch_size: Size = setting(32, "Synthetic texts optimised at a time, at least 1; memory and speed.")
    shard_size: Count = setting(32, "Synthetic texts per task, at least 1; tasks run side by side.")


class ProjectionConfig(Frozen):
    """How embeddings become tokens."""

    kind: Literal["top_k", "l2"] = setting(
        "top_k", "Nearest of the k tokens that the language model finds likeliest, or (ablation) of all tokens."
    )
    k: Count = setting(200, "top_k only: tokens to choose from, at least 1; paper 200.")
    metric: Literal["cosine", "l2"] = setting("l2", "What nearest means; paper l2.")
    instruction: str = setting(
        "",
        "top_k only: public prompt of the language model; {label} is replaced by the label's name. Empty: the words of "
        "about, through the chat template of an instruct model.",
    )
    allowed: Literal["printable", "all"] = setting(
        "printable", "Tokens that may be chosen: those that decode to printable text, or all but the special ones."
    )


class FilterConfig(Frozen):
    """Which synthetic texts are kept (paper, section 4.4), in this order; all of it post-processing."""

    oversample: float = setting(
        2.0, "Texts optimised per text wanted, 1 to 100, for filters to choose from; paper 2.", ge=1, le=100
    )
    max_draws: float = setting(
        6.0,
        "Texts optimised per text wanted in all, 1 to 100: further waves make up for what the filters drop until then.",
        ge=1,
        le=100,
    )
    label_check: bool | Literal["auto"] | tuple[str, ...] = setting(
        "auto",
        "Drop texts whose label the language model does not confirm: of all labels, of none, or of those named; auto: "
        "of those that it tells its own texts by. tiny auto, paper yes.",
    )
    prior: dict[str, float] = setting(
        {}, "Label name -> what the label check takes off its word's log-probability; set by the calibration."
    )
    examples: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Label name -> public example texts shown to the label check; none: it is asked without examples.",
    )
    keep_lowest: Whole | Share = setting(
        1.0,
        "The paper's r: texts kept per label, those of the lowest loss, as a whole number, or as a share "
        "above 0 of those left; 1.0 keeps all.",
    )
    balance: bool = setting(True, "Drop the highest losses of labels whose mean loss exceeds the others'; paper yes.")


_PROFILES: Profiles = {
    "paper": {
        "model": "microsoft/phi-1_5",
        "samples": 100,
        "max_length": 128,
        "target": {"kind": "head", "calibration": "paper"},
        "verbalizer": {"template": " It was", "words": "names"},
        "filter": {"label_check": True},
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


def _within_what_is_read(length: int | str, info: ValidationInfo) -> int | str:
    """Refuse a synthetic text that is empty, or longer than what is read of a real one."""
    longest = info.data.get("max_length", length)
    if isinstance(length, int) and not 1 <= length <= longest:
        raise ValueError(f"length={length}: expected 1 to max_length={longest}, or as_in_data")
    return length


class GradientMatchingConfig(MethodSettings):
    """Gradient matching: one noised gradient per label, then texts whose gradient points the same way."""

    profiles: ClassVar[Profiles] = _PROFILES

    method: Literal["gradient-matching"] = setting("gradient-matching", "Which method these settings are of.")
    samples: Count = setting(40, "Synthetic rows in all, at least 1. tiny 40, paper 100.")
    max_length: Count = setting(
        64, "Tokens of a real text that are read, at least 1; longer texts are cut. tiny 64, paper 128."
    )
    length: Annotated[int | Literal["as_in_data"], AfterValidator(_within_what_is_read)] = setting(
        20,
        "Tokens of a synthetic text, 1 to max_length, or the mean length of the real ones (a noised query "
        "in the charge; the paper takes it for free).",
        validate_default=True,
    )
    length_share: Part = setting(
        0.05, "length=as_in_data only: part of epsilon and delta that sets that query's noise, between 0 and 1."
    )
    verbalizer: VerbalizerConfig = section(VerbalizerConfig, "How a label becomes a token.")
    target: TargetConfig = section(TargetConfig, "The released gradient: clipping, projection and noise.")
    matching: MatchingConfig = section(MatchingConfig, "ADMM between embeddings and tokens, then swaps of tokens.")
    projection: ProjectionConfig = section(ProjectionConfig, "From embeddings to tokens.")
    filter: FilterConfig = section(FilterConfig, "Which of the matched texts are kept.")

    @property
    def reading(self) -> Reading:
        """How much of a private text its gradient is of."""
        return Reading(model=self.model, model_digest=self.model_digest, tokens=self.max_length)

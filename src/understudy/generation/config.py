"""What a prompt looks like and how the next token is drawn: public values only, no torch.

PPLM is Dathathri et al. 2019 (arXiv 1912.02164). The conditional-generation paper gives none of its constants; the
defaults here were measured on public reviews with the shipped tiny models.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from understudy.frozen import Frozen
from understudy.quantities import Count, CountOrZero, NonEmpty, Positive, Probability


class PromptFormat(Frozen):
    """The public text around a label: `BOS <before> <label> <separator> <text> EOS`.

    Every piece is encoded on its own, so that the label's tokens never merge with their neighbours. Label and text
    start with a space, which is how byte-level BPE writes a word inside a sentence.
    """

    before: str = Field(
        "",
        description="Public text between BOS and the label, for a base model that follows a template. "
        "Any text; empty in the paper.",
    )
    separator: NonEmpty = Field(
        ":",
        description="Public text between label and text, at least one character. It stands for the paper's SEP, which "
        "pretrained tokenizers do not have.",
    )


class SamplingConfig(Frozen):
    """How the next token is drawn: temperature, then nucleus sampling (Holtzman et al. 2019); no top-k."""

    max_new_tokens: Count = Field(
        48, description="Longest continuation in tokens, at least 1; prompt and continuation fit the context."
    )
    temperature: Positive = Field(
        1.0, le=10, description="Divides the logits, above 0 and at most 10; the paper samples at 1."
    )
    top_p: Probability = Field(
        0.9, description="Nucleus mass, above 0 and at most 1 (1: plain sampling). The paper gives no value."
    )


class SteeringConfig(Frozen):
    """PPLM: gradient steps on the model's state towards a label, then a fused next-token distribution."""

    steer: Literal["key_value", "hidden", "none"] = Field(
        "key_value",
        description="What is shifted: the cached keys and values (PPLM), the last hidden state, or nothing.",
    )
    steps: CountOrZero = Field(1, le=100, description="Gradient steps per token, 0 to 100; 0 turns steering off.")
    step_size: float = Field(
        0.03, ge=0, le=10, description="Length of one step relative to the norm of what is shifted, 0 to 10."
    )
    kl_weight: float = Field(
        0.01, ge=0, le=100, description="Weight of KL(modified || unmodified), 0 to 100; PPLM uses 0.01."
    )
    gm_scale: float = Field(
        0.9,
        ge=0,
        le=1,
        description="Exponent of the modified distribution in the fusion, 0 (unsteered) to 1; PPLM uses 0.9 to 0.95.",
    )
    window: CountOrZero = Field(
        0, description="Only the last so many cached positions are shifted; 0: all of them. key_value only."
    )
    lookahead: bool = Field(
        False, description="Ask the discriminator about the expected next token too (PPLM's horizon 1); twice the cost."
    )

    @property
    def active(self) -> bool:
        """Whether any token's distribution can differ from the unsteered one."""
        return self.steer != "none" and self.steps > 0 and self.step_size > 0 and self.gm_scale > 0

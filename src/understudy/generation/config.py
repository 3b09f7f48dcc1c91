"""What a prompt looks like and how the next token is drawn: public values only, no torch.

PPLM is Dathathri et al. 2019 (arXiv 1912.02164). "Differentially Private Conditional Text Generation for Synthetic
Data", which steers with it, gives none of its constants; the defaults here were measured on public reviews with the
shipped tiny models.
"""

from __future__ import annotations

from typing import Annotated, Literal

from understudy.frozen import DigestOf, Frozen
from understudy.quantities import Count, CountOrZero, NonEmpty, Probability, setting


class PromptFormat(Frozen):
    """The public text around a label: `BOS <before> <label> <separator> <text> EOS`, or a turn of a chat.

    In a chat the model is told what it writes (the words of `about`), the label is the user's message, and the text is
    the answer. Every piece is encoded on its own, so that the label's tokens never merge with their neighbours. In the
    plain format label and text start with a space, which is how byte-level BPE writes a word inside a sentence.
    """

    style: Literal["auto", "chat", "plain"] = setting(
        "auto",
        "chat: through the model's chat template; plain: before, label, separator. auto: chat if the model has a chat "
        "template and neither before nor separator is given.",
    )
    before: str = setting(
        "",
        "Plain only: public text between BOS and the label, for a base model that follows a template; empty: the words "
        "of about. Empty in the paper.",
    )
    separator: NonEmpty = setting(
        ":",
        "Plain only: public text between label and text, at least one character. It stands for the paper's SEP, which "
        "pretrained tokenizers do not have.",
    )

    def in_chat(self, *, has_template: bool) -> bool:
        """Whether prompts of a model, with a chat template or without one, are turns of a chat."""
        plain = PromptFormat()
        as_given = (self.before, self.separator) != (plain.before, plain.separator)
        return self.style == "chat" or (self.style == "auto" and not as_given and has_template)


class Reading(Frozen):
    """How much of a text a run reads; public.

    Attributes:
        model: base model, whose tokens count.
        model_digest: sha256 of its files; empty takes any.
        tokens: of a text, without what is put before and after it.
        prompt: what the text stands behind; None: the start token alone.
    """

    model: str
    model_digest: Annotated[str, DigestOf("model")]
    tokens: int
    prompt: PromptFormat | None = None


class SamplingConfig(Frozen):
    """How the next token is drawn: temperature, then nucleus sampling (Holtzman et al. 2019); no top-k."""

    max_new_tokens: Count = setting(
        48, "Longest continuation in tokens, at least 1; prompt and continuation fit the context."
    )
    temperature: float = setting(
        1.0, "Divides the logits, above 0 and at most 10; the paper samples at 1.", le=10, gt=0
    )
    top_p: Probability = setting(
        0.9, "Nucleus mass, above 0 and at most 1 (1: plain sampling). The paper gives no value."
    )


class SteeringConfig(Frozen):
    """PPLM: gradient steps on the model's state towards a label, then a fused next-token distribution."""

    steer: Literal["key_value", "hidden", "none"] = setting(
        "key_value", "What is shifted: the cached keys and values (PPLM), the last hidden state, or nothing."
    )
    steps: int = setting(1, "Gradient steps per token, 0 to 100; 0 turns steering off.", le=100, ge=0)
    kl_budget: float = setting(
        0.05,
        "How far steering may move the distribution of one token: KL(modified || unmodified) in nats, 0 to 10; the "
        "step is as long as it allows, whatever the model.",
        ge=0,
        le=10,
    )
    kl_weight: float = setting(
        0.01,
        "Weight of KL(modified || unmodified) in the direction of further steps, 0 to 100; PPLM uses 0.01.",
        ge=0,
        le=100,
    )
    gm_scale: float = setting(
        0.9,
        "Exponent of the modified distribution in the fusion, 0 (unsteered) to 1; PPLM uses 0.9 to 0.95.",
        ge=0,
        le=1,
    )
    window: CountOrZero = setting(
        0, "Only the last so many cached positions are shifted; 0: all of them. key_value only."
    )
    layers: float = setting(
        0.25,
        "Share of the layers, the upper ones, whose cache is shifted, above 0 and at most 1, rounded up; the others "
        "are read once. key_value only. tiny 0.25, PPLM 1.",
        gt=0,
        le=1,
    )
    lookahead: bool = setting(
        False, "Ask the discriminator about the expected next token too (PPLM's horizon 1); twice the cost."
    )

    @property
    def active(self) -> bool:
        """Whether any token's distribution can differ from the unsteered one."""
        return self.steer != "none" and self.steps > 0 and self.kl_budget > 0 and self.gm_scale > 0

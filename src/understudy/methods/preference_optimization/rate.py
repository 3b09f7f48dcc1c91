"""The learning rate of preference training for a model that nobody tuned for, found on its own texts before the charge.

A preference that a coin decides teaches nothing, so what it costs the model is what such training does to any text. The
model writes a few texts, a coin orders them in pairs, and DPO makes a few steps on the pairs. The largest rate of a
ladder is taken that raises the loss on other texts of the model, behind their own prompts, by no more than
`MOST_DAMAGE`. No private row is read, and the choice is made once for a model, its prompts and its adapter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

from understudy.methods.preference_optimization.candidates import continue_prompts
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.dpo import NotFinite, train_round
from understudy.methods.preference_optimization.dpo_pairs import Pairs, encode_pairs, text_writer
from understudy.methods.preference_optimization.peaks import check_fits
from understudy.methods.preference_optimization.prompts import RoundSeed, prompt_tokens, round_prompts
from understudy.methods.preference_optimization.seeds import seeds_digest
from understudy.models.adapters import with_adapter
from understudy.models.choices import question_of, remembered
from understudy.models.loading import LoadedModel, load_base

# Nats per token. At 0.05 tiny-llama's preferences move its texts towards public ones and keep them distinct; at 0.47
# SmolLM2's texts opened alike after three rounds (docs/results/preference-optimization.md).
MOST_DAMAGE: Final = 0.1
RATES: Final = (1e-3, 5e-4, 2.5e-4, 1.25e-4, 6.25e-5, 3.125e-5)
_VERSION: Final = 1  # of the way this is chosen
_PAIRS: Final = 4
_DRAWN: Final = 4  # texts of a prompt
_STEPS: Final = 8


@dataclass(frozen=True)
class OwnTexts:
    """What the public model wrote.

    Attributes:
        pairs: two texts of each of some prompts, in random order; none where no prompt had two that differ.
        others: (prompt, text) drawn after the other prompts.
    """

    pairs: Pairs
    others: Sequence[tuple[str, str]]


def chosen_rate(
    config: PreferenceOptimizationConfig, seeds: Sequence[str], label_names: Sequence[str], *, kept_in: Path
) -> float:
    """The largest rate of the ladder that does little damage; what was chosen once stays.

    Args:
        config: the style of its prompts is decided.
        seeds: public texts.
        label_names: every label, public; texts of the first are written.
        kept_in: folder of earlier choices.

    Raises:
        InputError: as `round_prompts`, or the machine's memory is too small.
    """
    preferences, candidates = config.preferences, config.candidates
    question = {
        **question_of(config, label_names, of="learning rate of preferences", version=_VERSION),
        "prompts": candidates.model_dump(mode="json", exclude={"prompts", "per_prompt"}),
        "seeds": seeds_digest(seeds),
        "trained": preferences.model_dump(
            mode="json", include={"loss", "label_smoothing", "beta", "lora_rank", "lora_alpha"}
        ),
    }

    def choose() -> dict[str, Any]:
        check_fits(config)  # before the model is loaded, which may be too large itself
        base = load_base(config.model_copy(update={"model_digest": ""}))
        own = write_own(base, config, seeds, label_names[0] if label_names else None)
        fitting = (rate for rate in RATES if not own.pairs.prompts or damage(base, own, config, rate) <= MOST_DAMAGE)
        return {"learning_rate": next(fitting, RATES[-1])}

    return float(remembered(question, choose, folder=kept_in)["learning_rate"])


def write_own(
    base: LoadedModel, config: PreferenceOptimizationConfig, seeds: Sequence[str], label: str | None
) -> OwnTexts:
    """The model's own candidates, half of their prompts for pairs and half to be tested on."""
    shape = config.candidates.model_copy(update={"prompts": 2 * _PAIRS, "per_prompt": _DRAWN})
    first = RoundSeed(0, config.public_seed)
    prompts = round_prompts(seeds, shape, loaded=base, seed=first, label=label, about=config.about)
    drawn = continue_prompts(base, prompts, shape, seed=first)
    texts = [list(dict.fromkeys(drawn[start : start + _DRAWN])) for start in range(0, len(drawn), _DRAWN)]
    two = [(prompt, found[0], found[1]) for prompt, found in zip(prompts, texts[:_PAIRS], strict=False) if found[1:]]
    pairs = Pairs(
        prompts=[prompt for prompt, _, _ in two],
        chosen=[one for _, one, _ in two],
        rejected=[other for _, _, other in two],
        in_chat=shape.in_chat,
    )
    others = [(prompt, text) for prompt, found in zip(prompts[_PAIRS:], texts[_PAIRS:], strict=True) for text in found]
    return OwnTexts(pairs, others)


def damage(base: LoadedModel, own: OwnTexts, config: PreferenceOptimizationConfig, rate: float) -> float:
    """Rise of the loss on the model's other texts, in nats per token; infinite where the adapter is not finite."""
    rows = len(own.pairs.prompts)
    preferences = config.preferences.model_copy(update={"learning_rate": rate, "batch_size": rows, "epochs": _STEPS})
    before = _loss(base, base, own, in_chat=own.pairs.in_chat)
    with TemporaryDirectory() as folder:
        try:
            adapter = train_round(
                base,
                None,
                rows=encode_pairs(base, own.pairs),
                config=preferences,
                public_seed=config.public_seed,
                round=0,
                folder=Path(folder),
            )
        except NotFinite:
            return math.inf
    after = with_adapter(base, adapter, alpha=preferences.lora_alpha)
    return _loss(after, base, own, in_chat=own.pairs.in_chat) - before


def _loss(policy: LoadedModel, base: LoadedModel, own: OwnTexts, *, in_chat: bool) -> float:
    """Nats per token of the other texts behind their prompts."""
    total, tokens = 0.0, 0
    device, write = next(policy.model.parameters()).device, text_writer(base, in_chat=in_chat)
    with torch.no_grad():
        for prompt, text in own.others:
            before, after = prompt_tokens(base, prompt), write(text)
            logits = policy.model(input_ids=torch.tensor([before + after], device=device)).logits[0]
            scores = logits[len(before) - 1 : -1].double().log_softmax(-1)
            total -= float(scores.gather(1, torch.tensor(after, device=device)[:, None]).sum())
            tokens += len(after)
    return total / tokens

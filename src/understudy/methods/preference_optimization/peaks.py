"""What each phase of a run holds at its peak, predicted from public facts; a run that does not fit is refused.

Nothing here depends on rows, and nothing of a run depends on what is predicted. A process is asked for the phases of
its own zone: the server writes, trains and exports, the client embeds, scores and measures. What was measured beside
it: benchmarks/two_zone_memory.py. What is held of clients is left out: their texts, 3 KiB a client and label for their
mean embeddings, and where rounds are masked 8 bytes a client and candidate.
"""

from __future__ import annotations

from typing import Final

from understudy.compute import ON_CPU, Compute
from understudy.errors import InputError
from understudy.evaluation.utility.next_token import NextTokenConfig
from understudy.frozen import Profile
from understudy.hardware import chosen
from understudy.methods.pass_peaks import CHARACTERS, LIBRARIES, beside_adapters, drawing_bytes, exporting_bytes
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.dpo_pairs import pairs_at_once
from understudy.models import room
from understudy.models.room import FLOAT, weights_bytes
from understudy.models.shape import ModelShape, model_shape
from understudy.settings import Zone, settings

# What trl and the sentence encoder take to load; with what measures.
_TRL: Final = 150 << 20
_ENCODER: Final = 130 << 20
_MEASURES: Final = 400 << 20
# Adapters, their gradient and Adam's moments.
_STATES: Final = 4
# Of a step on pairs: resident over kept bytes, and copies of the scores of all tokens, through which trl goes back.
_WASTE_OF_PAIRS: Final = 1.9
_SCORES: Final = 6.2
# Texts that are drawn at a time on a CPU.
_ROWS: Final = 64
# Tokens around a text of a list or turn of a chat, and of a prompt beside them.
_AROUND: Final = 4
_AROUND_IN_CHAT: Final = 20
_HEADING: Final = 6
# Pairs and texts with which a learning rate is looked for.
_TRIED: Final = 4
_DRAWN_TO_TRY: Final = 32
# Of the downstream model: resident over kept bytes, and copies of its logits with a graph.
_WASTE: Final = 1.3
_LOGITS: Final = 2.5

# Setting -> the value that takes least memory, in the order in which they are named.
LOWEST: Final = {
    "preferences.batch_size": 1,
    "candidates.seeds_per_prompt": 0,
    "candidates.seed_tokens": 1,
    "candidates.sampling.max_new_tokens": 1,
    "preferences.lora_rank": 1,
    "profile": "tiny",
}


def check_fits(config: PreferenceOptimizationConfig, *, zone: Zone | None = None) -> None:
    """Refuse a run that this machine's memory cannot hold, by its models' files alone.

    Args:
        config: of the run.
        zone: whose steps are taken here; None: those of this process.

    Raises:
        InputError: with what to lower.
    """
    room.check_fits(config, lambda one, shape: phases(one, shape, zone=zone), LOWEST)


def phases(
    config: PreferenceOptimizationConfig,
    shape: ModelShape,
    *,
    compute: Compute | None = None,
    zone: Zone | None = None,
) -> dict[str, int]:
    """Bytes at the peak of each phase, weights included.

    Args:
        config: of the run.
        shape: of the base model.
        compute: what tasks compute on; None asks the machine.
        zone: whose phases; None: those of this process's zone.
    """
    compute, zone = compute or chosen(), zone or settings().zone
    found = {}
    if zone != "server":
        found["the downstream models that measure"] = _MEASURES + downstream_bytes(config.profile)
        if compute.device == "cpu":  # a GPU does not hold what is checked, in float32 on the CPU
            found["the checks before a charge"] = LIBRARIES + FLOAT * shape.parameters
            if config.preferences.learning_rate == "auto":
                found["the search for a learning rate"] = rate_bytes(config, shape)
    if zone != "client":
        found |= _of_the_server(config, shape, compute)
    return found


def _of_the_server(config: PreferenceOptimizationConfig, shape: ModelShape, compute: Compute) -> dict[str, int]:
    # An adapter is merged in float32.
    weights, merged = weights_bytes(shape, compute), LIBRARIES + FLOAT * shape.parameters
    drawn = [LIBRARIES, LIBRARIES]
    if config.endpoint.url is None:
        shared = _ROWS // config.candidates.per_prompt
        drawn = [drawn_bytes(config, shape, compute, prompts=prompts) for prompts in (max(1, shared), _ROWS)]
    return {
        "the candidates": max(merged, weights + _ENCODER + drawn[0]),
        "the preferences": weights + preferring_bytes(config, shape, compute),
        "the texts": max(merged, weights + drawn[1]),
        "the export": exporting_bytes(shape, compute),
    }


def drawn_bytes(config: PreferenceOptimizationConfig, shape: ModelShape, compute: Compute, *, prompts: int) -> int:
    """Texts in flight above the loaded model, behind so many prompts that are read together."""
    new = config.candidates.sampling.max_new_tokens
    return drawing_bytes(shape, compute, _ROWS, prompt=prompt_length(config), new=new, prompts=prompts)


def preferring_bytes(config: PreferenceOptimizationConfig, shape: ModelShape, compute: Compute) -> int:
    """A round's training above the loaded model, which is its own reference: log-probabilities are computed once.

    How many pairs differ is known after the scores only, so all are counted on.
    """
    preferences, longest = config.preferences, prompt_length(config) + config.candidates.sampling.max_new_tokens + 1
    pairs = pairs_at_once(shape, longest=longest, pairs=config.candidates.prompts, batch_size=preferences.batch_size)
    kept = _WASTE_OF_PAIRS * beside_adapters(shape, compute) * shape.layers * shape.kept_per_token
    graph = round(2 * pairs * longest * (kept + _SCORES * shape.vocabulary))
    return _TRL + FLOAT * (_STATES * shape.adapter_parameters(preferences.lora_rank) + graph)


def rate_bytes(config: PreferenceOptimizationConfig, shape: ModelShape) -> int:
    """Trials of learning rates in float32 on the CPU, after each of which the model stands beside its trained copy."""
    few = config.model_copy(
        update={
            "preferences": config.preferences.model_copy(update={"batch_size": _TRIED}),
            "candidates": config.candidates.model_copy(update={"prompts": _TRIED}),
        }
    )
    weights = FLOAT * shape.parameters
    new = config.candidates.sampling.max_new_tokens
    drawn = drawing_bytes(
        shape, ON_CPU, _DRAWN_TO_TRY, prompt=prompt_length(config), new=new, prompts=_DRAWN_TO_TRY // _TRIED
    )
    return weights + max(drawn, preferring_bytes(few, shape, ON_CPU), _TRL + weights)


def downstream_bytes(profile: Profile) -> int:
    """The models that are fine-tuned one after the other on synthetic, prompted and real texts."""
    sizes = NextTokenConfig(profile=profile)
    try:
        shape = model_shape(sizes.base)
    except InputError:  # its own check says what is wrong
        return 0
    return 0 if shape is None else next_token_bytes(sizes, shape)


def next_token_bytes(sizes: NextTokenConfig, shape: ModelShape) -> int:
    """A step of fine-tuning every weight of a downstream model, weights included, beside the one that was tuned."""
    tokens = sizes.batch_size * sizes.max_length
    graph = round(tokens * (_WASTE * shape.layers * shape.kept_per_token + _LOGITS * shape.vocabulary))
    return LIBRARIES + FLOAT * (5 * shape.parameters + graph)


def prompt_length(config: PreferenceOptimizationConfig) -> int:
    """Tokens of a prompt, about: its examples, and the words beside them."""
    asked = config.candidates
    around = _AROUND_IN_CHAT if asked.in_chat else _AROUND
    words = len(asked.instruction) + len(config.about)
    texts = asked.examples * (asked.seed_tokens + around) + (around if asked.in_chat else 0)
    return texts + _HEADING + words // CHARACTERS

"""The model that both zones start from: the public base, tuned on the shared public seed set where there is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from understudy.compute import ON_CPU, Compute
from understudy.data.public_tables import pairs_digest, read_pairs
from understudy.errors import InputError
from understudy.generation.instructions import Pair, PairEncoder, pairs_of
from understudy.generation.scoring import sparse_response_losses
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig, LoraConfig
from understudy.models import lora
from understudy.models.adapters import Targets, wrap
from understudy.models.loading import LoadedModel, load_base
from understudy.models.tuning import Steps, tune

# Names of the attention's projections, by architecture.
_ATTENTION = (("q_proj", "k_proj", "v_proj", "o_proj"), ("query_key_value", "dense"), ("c_attn",))


def shared_base(config: KnowledgeDistillationConfig, compute: Compute = ON_CPU) -> LoadedModel:
    """The base model as both zones have it; the same bytes in both.

    Raises:
        InputError: the model or the seed set is unknown, or other pairs than those the run began with.
    """
    loaded = load_base(config, compute)
    if not config.seed.pairs:
        return loaded
    pairs = seed_pairs(config)
    encoder = PairEncoder(loaded.tokenizer, config.template)
    rows = encoder.encode(pairs, max_length=config.tune.max_length)
    batch = config.tune.batch_size
    model = attach_adapter(loaded, config)
    tune(
        model,
        {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask, "loss_mask": rows.loss_mask},
        sparse_response_losses,
        plan=Steps(
            steps=config.seed.epochs * -(-len(pairs) // batch),
            batch_size=batch,
            learning_rate=config.seed.learning_rate,
            final_learning_rate=config.seed.learning_rate / 10,
            seed=config.public_seed,
        ),
    )
    merged = lora.merge(model).to(loaded.model.dtype).requires_grad_(False).eval()
    return replace(loaded, model=merged)


def seed_pairs(config: KnowledgeDistillationConfig) -> list[Pair]:
    """The public seed set.

    Raises:
        InputError: no such table, it holds no pairs, or others than those the run began with.
    """
    table = read_pairs(config.seed.pairs, setting="seed.pairs", digest=config.seed.digest)
    return [pair for pair in pairs_of(table) if pair is not None]


def seed_digest(config: KnowledgeDistillationConfig) -> str:
    """What identifies the public seed set; empty without one.

    Raises:
        InputError: no such table, or it holds no pairs.
    """
    return pairs_digest(config.seed.pairs, setting="seed.pairs") if config.seed.pairs else ""


def attach_adapter(base: LoadedModel, config: KnowledgeDistillationConfig) -> Any:
    """The base model with a fresh adapter from the public seed."""
    return wrap(
        base.model,
        rank=config.lora.rank,
        alpha=config.lora.alpha,
        seed=config.public_seed,
        targets=targets_of(base.model, config.lora),
    ).eval()


def targets_of(model: Any, config: LoraConfig) -> Targets:
    """The layers that the adapter is on.

    Raises:
        InputError: the attention's projections of this architecture are not known.
    """
    if config.targets != "attention":
        return config.targets
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    for known in _ATTENTION:
        if known[0] in names:
            return tuple(name for name in known if name in names)
    raise InputError(
        f"lora.targets=attention: the attention's projections of {type(model).__name__} are not known; name them, or "
        "use lora.targets=all-linear"
    )

"""DP fine-tuning on the client's pairs (paper, section 3.2): a LoRA adapter by DP-SGD, loss on the responses.

*Deviations*: Poisson batches divided by their public expectation and Adam on the noised sum, as in all DP-SGD here; a
pair's loss is the mean over its own response, so that its weight does not depend on the others. Delta is 1/(n ln n),
not 1/n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from understudy.errors import InputError
from understudy.generation.instructions import Pair, PairEncoder
from understudy.generation.scoring import response_losses
from understudy.methods.knowledge_distillation.base import attach_adapter
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig
from understudy.methods.knowledge_distillation.memory import pairs_per_pass
from understudy.methods.knowledge_distillation.queries import RESPONSES, Asked
from understudy.models.adapters import Adapter, take_adapter
from understudy.models.loading import LoadedModel
from understudy.models.lora import trainable_parameters
from understudy.privacy.dpsgd.layers import check_layers
from understudy.privacy.dpsgd.training import Objective, train
from understudy.privacy.dpsgd.trial import check_gradients
from understudy.progress import UNKEPT, Course


@dataclass(frozen=True)
class PrivatePairs:
    """The client's pairs; None is the null record."""

    pairs: Sequence[Pair | None]

    def __repr__(self) -> str:
        """Says nothing of them."""
        return "PrivatePairs(...)"


def train_on_pairs(private: PrivatePairs, asked: Asked, *, base: LoadedModel, course: Course = UNKEPT) -> Adapter:
    """Train an adapter on private pairs as charged.

    *Guarantee*: that of the charge (`privacy.charged`); unit example, relation replace_special.

    Args:
        private: the pairs, null records included.
        asked: what was charged.
        base: the shared base model; changed in place.
        course: keeps the training's state, under the private root, and tells of steps.

    Raises:
        InputError: the pairs are not as many as were charged.
    """
    config, plan = asked.config, asked.schedule
    if len(private.pairs) != plan.n:
        raise InputError(f"expected n={plan.n} pairs, as charged, found {len(private.pairs)}; null records count")
    rows = PairEncoder(base.tokenizer, config.template).encode(private.pairs, max_length=config.train.max_length)
    device = base.model.device.type
    rows_at_once = pairs_per_pass(config, expected=plan.expected_batch, shape=base.shape, device=device)
    model = attach_adapter(base, config)
    train(
        model,
        plan=plan,
        objectives={RESPONSES: _objective(model, config)},
        data={
            "input_ids": rows.input_ids,
            "attention_mask": rows.attention_mask,
            "loss_mask": rows.loss_mask,
            "valid": rows.valid,
        },
        mechanisms=asked.mechanisms,
        micro_batch=rows_at_once,
        course=course,
    )
    return take_adapter(model)


def check_trainable(base: LoadedModel, config: KnowledgeDistillationConfig) -> None:
    """Refuse before anything is charged what could not be trained.

    Raises:
        InputError: a layer cannot give per-example gradients (it is named), or pairs do not fit the context. That a
            layer keeps examples apart only a pass shows, so that one is made over two made-up pairs.
    """
    context = getattr(base.model.config, "max_position_embeddings", None)
    for name, length in (("train.max_length", config.train.max_length), ("tune.max_length", config.tune.max_length)):
        PairEncoder(base.tokenizer, config.template).check_width(length, setting=name)
        if context is not None and length > context:
            raise InputError(f"{name}={length}: the context of {base.name} holds {context} tokens; lower it")
    model = attach_adapter(base, config)
    check_layers(model)
    rows = PairEncoder(base.tokenizer, config.template).encode([Pair("a", "b")] * 2, max_length=config.train.max_length)
    batch = {name: getattr(rows, name) for name in ("input_ids", "attention_mask", "loss_mask")}
    check_gradients(
        model,
        trainable_parameters(model),
        response_losses,
        batch,
        valid=rows.valid,
        l2_clip_norm=config.train.l2_clip_norm,
        name=base.name,
        advice="name other lora.targets, or choose another model",
    )


def _objective(model: nn.Module, config: KnowledgeDistillationConfig) -> Objective:
    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return response_losses(model, batch)

    return Objective(
        loss,
        trainable_parameters(model),
        config.train.learning_rate,
        "linear" if config.train.learning_rate_decay else "constant",
    )

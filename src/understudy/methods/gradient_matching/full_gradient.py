"""The ablation `matching.gradient=full`: match the gradient of every layer (GRADMM, section 4.3 and its ablations).

The matching loss then needs the gradient of a gradient: one forward, backward and double backward per text, and as
many numbers per label as the model has parameters. Everything else is as for the head alone; a target of all layers
is the same one Gaussian query of sensitivity C, only longer.

Deviation from the paper: texts enter as embeddings, so the input embedding has a gradient only where it is tied to
the head, and then that of its use as a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from understudy.compute import copied_to, widened_weights
from understudy.generation.sampling import backbone, head
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.loss import Objective, embed, surround, target_norms
from understudy.methods.gradient_matching.targets import TargetSpace, label_loss, target_space
from understudy.methods.gradient_matching.verbalizer import Verbalizer, encode_rows
from understudy.models.loading import LoadedModel
from understudy.privacy.dpsgd.per_example import Batch, clipped_gradient_sum
from understudy.privacy.dpsgd.trial import told_of_model

_TINY = 1e-30


def all_parameters(model: Any) -> dict[str, nn.Parameter]:
    """Name -> parameter in the order of a flat gradient; without an input embedding that is not the head as well."""
    embedding, output = model.get_input_embeddings().weight, head(model).weight
    named: Mapping[str, nn.Parameter] = dict(model.named_parameters())
    return {name: named[name] for name in sorted(named) if named[name] is not embedding or embedding is output}


def full_clipped_sum(
    model: Any,
    space: TargetSpace,
    input_ids: Tensor,
    last: Tensor,
    labels: Tensor,
    valid: Tensor,
    l2_clip_norm: float,
    *,
    into: Tensor | None = None,
) -> Tensor:
    """Sum of the clipped gradients of each label's examples, by all parameters, flat.

    *Guarantee*: replacing one example by the null example (relation replace_special, unit example) moves the result
    by at most `l2_clip_norm` in L2 norm over all labels together, up to float rounding.

    Args:
        model: Causal language model of layers that `privacy.per_example` knows.
        space: Says over which tokens the loss is.
        input_ids: `(B, width)` int64, private.
        last: `(B,)` int64, column that is read, private.
        labels: `(B,)` int64, private.
        valid: `(B,)` bool, private.
        l2_clip_norm: C > 0, public.
        into: `(K, parameters)` float64 sum of other examples, added to in place; None starts at 0.

    Returns:
        `(K, parameters)` float64.

    Raises:
        InputError: A layer cannot give per-example gradients.
    """
    parameters = all_parameters(model)
    device = head(model).weight.device
    last, labels, valid = (copied_to(part, device) for part in (last, labels, valid))

    def losses(module: nn.Module, batch: Batch) -> Tensor:
        states = backbone(module)(
            inputs_embeds=batch["embeddings"], position_ids=batch["positions"], use_cache=False
        ).last_hidden_state
        logits = head(module)(states[torch.arange(len(states), device=device), last])
        return label_loss(space, logits, labels)

    rows = {
        "embeddings": embed(model, input_ids),
        "positions": torch.arange(input_ids.shape[1], device=device).expand(len(input_ids), -1),
    }
    size = sum(parameter.numel() for parameter in parameters.values())
    classes = len(space.token_ids)
    total = torch.zeros(classes, size, dtype=torch.float64, device=device) if into is None else into
    for label in range(classes):
        member = valid & (labels == label)
        sums = clipped_gradient_sum(model, parameters, losses, rows, l2_clip_norm=l2_clip_norm, valid=member)
        total[label] += flat(sums)
    return total


def full_objective(model: Any, space: TargetSpace, target: Tensor, verbalizer: Verbalizer, labels: Tensor) -> Objective:
    """The loss over the gradients of all layers; the same signature as `matching.objective`.

    Args:
        model: Causal language model.
        space: Says over which tokens the loss is.
        target: `(K, parameters)`.
        verbalizer: Prefix before and template after every text.
        labels: `(B,)` int64, on the model's device.

    Returns:
        A function from embeddings `(B, length, d_embedding)` to losses `(B,)`.
    """
    model.requires_grad_(False)
    norms = target_norms(target).to(target.dtype)

    def one(embeddings: Tensor, label: Tensor) -> Tensor:
        gradient = text_gradient(model, space, surround(model, embeddings[None], verbalizer), label)
        cosine = (gradient * target[label]).sum() / (torch.linalg.vector_norm(gradient) * norms[label]).clamp(min=_TINY)
        loss: Tensor = 1 - cosine
        return loss

    def losses(embeddings: Tensor) -> Tensor:
        return torch.stack([one(text, label) for text, label in zip(embeddings, labels, strict=True)])

    return losses


def check_full_gradient(base: LoadedModel, verbalizer: Verbalizer, config: GradientMatchingConfig) -> None:
    """Sum the gradients of two made-up texts and differentiate a text's distance from them, before the charge.

    Raises:
        InputError: the model's layers give texts no gradients of their own, or no gradient of these.
    """
    with told_of_model(base.name, "set matching.gradient=closed_form, or choose another model"):
        model = widened_weights(base.model)
        space = target_space(model, verbalizer, config.target, public_seed=config.public_seed)
        rows = encode_rows(["a", "b"], tokenizer=base.tokenizer, verbalizer=verbalizer, max_length=config.max_length)
        labels, both = torch.tensor([0, 1], device="cpu"), torch.tensor([True, True], device="cpu")
        total = full_clipped_sum(model, space, rows.input_ids, rows.last, labels, both, config.target.l2_clip_norm)
        texts = embed(model, rows.input_ids[:1, :1]).requires_grad_()
        distance = full_objective(model, space, total.to(texts.dtype), verbalizer, labels[:1])
        with torch.enable_grad():
            torch.autograd.grad(distance(texts).sum(), texts)


def text_gradient(model: Any, space: TargetSpace, embeddings: Tensor, label: Tensor) -> Tensor:
    """Flat gradient `(parameters,)` of one text's label loss, with a graph to its embeddings.

    Args:
        model: Causal language model.
        space: Says over which tokens the loss is.
        embeddings: `(1, width, d_embedding)`, prefix and template included.
        label: `()` int64.
    """
    copies = {name: parameter.detach().requires_grad_() for name, parameter in all_parameters(model).items()}
    # The fused attention kernels have no second derivative.
    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        inputs = {"inputs_embeds": embeddings, "use_cache": False}
        logits = functional_call(model, copies, (), inputs).logits[:, -1]
        loss = label_loss(space, logits, label[None]).sum()
        gradients = torch.autograd.grad(
            loss, list(copies.values()), create_graph=True, allow_unused=True, materialize_grads=True
        )
    return flat(dict(zip(copies, gradients, strict=True)))


def flat(gradients: Mapping[str, Tensor]) -> Tensor:
    """One vector in the order of the mapping."""
    return torch.cat([gradient.flatten() for gradient in gradients.values()])

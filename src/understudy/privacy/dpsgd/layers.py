"""Which layers give per-example gradients, and how those follow from what a layer reads and its output gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from understudy.errors import InputError
from understudy.privacy.dpsgd.factors import Factored, Factors

# Matched by name, so that transformers need not be imported here: a linear layer with weight (inputs, outputs).
_CONV1D = "transformers.pytorch_utils.Conv1D"
# How configs of transformers call the number of experts of a layer.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# They share LlamaRMSNorm's formula: weight * x / sqrt(mean(x^2) + variance_epsilon).
RMS_NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Phi3RMSNorm")

Contribution = Factored | Tensor
Rule = Callable[[nn.Module, Tensor, Tensor], Contribution]


def _linear_weight(_: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    return Factors(gradient, inputs)


def _conv1d_weight(_: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    return Factors(inputs, gradient)


def _bias(_: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    return gradient.sum(1)


def _embedding_weight(module: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    assert isinstance(module, nn.Embedding)
    if module.padding_idx is not None:
        # As torch does: the row of the padding token gets no gradient from this use.
        gradient = gradient.masked_fill((inputs == module.padding_idx)[:, :, None], 0.0)
    return Factors(inputs, gradient)


def _layer_norm_weight(module: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    assert isinstance(module, nn.LayerNorm)
    normalised = nn.functional.layer_norm(inputs, module.normalized_shape, None, None, module.eps)
    return (gradient * normalised).sum(1)


def _rms_norm_weight(module: nn.Module, inputs: Tensor, gradient: Tensor) -> Contribution:
    epsilon = float(module.variance_epsilon)  # type: ignore[arg-type]
    scale = torch.rsqrt(inputs.square().mean(-1, keepdim=True) + epsilon)
    return (gradient * (inputs * scale)).sum(1)


def check_rows_apart(model: nn.Module) -> None:
    """Refuse a model in which one example meets others; before anything is charged.

    In a mixture of experts each multiplies the tokens that it is sent together, whosever they are. That moves their
    last bits, and in the next layer such bits may decide which expert a token is sent to: one example would move the
    gradients of others.

    Raises:
        InputError: the model is a mixture of experts.
    """
    for module in model.modules():
        config = getattr(module, "config", None)
        counts = [count for name in _EXPERTS if isinstance(count := getattr(config, name, None), int)]
        if max(counts, default=0) > 1:
            raise InputError(
                f"expected a model in which every example is computed by itself, found a mixture of {max(counts)} "
                f"experts ({type(module).__name__}); choose a model without experts"
            )


def check_layers(model: nn.Module, trained: Collection[str] | None = None) -> None:
    """Refuse a model that gives no example a gradient of its own; before anything is charged.

    Args:
        model: what is trained.
        trained: names of the layers that are; None for those with a parameter that requires a gradient.

    Raises:
        InputError: a trained layer cannot give per-example gradients (it is named), or the model is a mixture of
            experts.
    """
    check_rows_apart(model)
    for name, module in model.named_modules():
        own = module.parameters(recurse=False)
        if name in trained if trained is not None else any(parameter.requires_grad for parameter in own):
            rules_of(name, module)


def rules_of(name: str, module: nn.Module) -> dict[str, Rule]:
    """How the gradients of a module's own parameters follow from its input and its output gradient.

    Inputs and gradients arrive as (batch, positions, features); the input of an embedding as (batch,
    positions).

    Raises:
        InputError: naming the layer, when it cannot give per-example gradients.
    """
    if isinstance(module, nn.Linear) and _computes_as(module, nn.Linear):
        return {"weight": _linear_weight, "bias": _bias}
    if f"{type(module).__module__}.{type(module).__qualname__}" == _CONV1D:
        return {"weight": _conv1d_weight, "bias": _bias}
    if isinstance(module, nn.LayerNorm) and _computes_as(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return {"weight": _layer_norm_weight, "bias": _bias}
    if type(module).__name__ in RMS_NORMS:
        return {"weight": _rms_norm_weight}
    if isinstance(module, nn.Embedding) and _is_plain(module):
        return {"weight": _embedding_weight}
    raise InputError(
        f"layer {name!r} ({type(module).__name__}) cannot give per-example gradients; expected plain Linear, "
        f"Conv1D, Embedding, LayerNorm over the last dimension or one of {', '.join(RMS_NORMS)}: freeze its "
        "parameters or train with LoRA"
    )


def _is_plain(module: nn.Embedding) -> bool:
    is_own = module.max_norm is not None or module.scale_grad_by_freq or module.sparse
    return not is_own and _computes_as(module, nn.Embedding)


def _computes_as(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer computes what its kind does: one that scales its output or moves its input has other gradients.

    A forward that somebody gave this one instance, such as recomputation, does not count.
    """
    return type(module).forward is kind.forward

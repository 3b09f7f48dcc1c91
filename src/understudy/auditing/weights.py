"""How far a released model's weights moved as each text would move them: an attack by whoever holds the model.

A step of training adds to the weights the gradients of the texts that took part in it. So the change of the weights is
taken apart into gradients: those of the canaries, and those of texts that the attacker knows anyway and that resemble
the rows, which stand for what all rows add. The share that a canary's gradient has in the change is its score.

1. Of each linear layer the change D of its weights, and the row space V of its `RANK` largest directions (with
   adapters of at most that rank, all of it). The head and embeddings are left out.
2. The gradients of the loss of each text with respect to the layer's weights, within V: the sum over tokens of the
   slope at the output times V^T of the input. Every row of them is scaled to norm 1, as clipping does.
3. Each number is divided by its root mean square over the texts, and the rows again scaled to norm 1. Adam moves
   every weight by steps of one size, and large gradients would count for all of a product otherwise.
4. Ridge regression of -D on these rows, those of canaries and of known texts together: canaries have no share in what
   others explain.

That is done with the gradients at the public model and at the released one. The coins have no part in it. Gradients as
what auditors look at: Nasr et al. 2023, "Tight Auditing of Differentially Private Machine Learning" (arXiv 2302.07956),
whose auditor sees every step; this one sees the first and the last model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from understudy.auditing.one_run import Floats
from understudy.auditing.row_losses import RowLosses

# Directions of a layer's change that are looked at.
RANK: Final = 8
# Numbers of a gradient that are kept; of larger models, those of every so manieth output.
MOST_NUMBERS: Final = 1 << 18
# Ridge, where the squared norm of a text's gradient is 1.
RIDGE: Final = 0.1


@dataclass(frozen=True)
class _Changed:
    """A linear layer whose weights a run moved.

    Attributes:
        inputs: (in, k) directions of the inputs.
        moved: (out, k) the change along them.
    """

    inputs: Tensor = field(repr=False)
    moved: Tensor = field(repr=False)


def shares(before: RowLosses, after: RowLosses, *, canaries: int) -> list[Floats]:
    """The share of each canary in the change of the weights, by gradients at the public and at the released model.

    Args:
        before: the canaries, then texts that the attacker knows, read by the public model; its weights lose their
            `requires_grad`.
        after: the same, by the released one.
        canaries: m, how many of the rows are canaries.

    Returns:
        two times (m,), higher looks more trained on; none where no linear layer has changed.
    """
    layers = changed_layers(before.model, after.model)
    if not layers:
        return []
    moved = torch.cat([_kept(layer.moved[None], layers)[0] for layer in layers.values()])
    return [_regressed(_gradients(read, layers), moved)[:canaries].numpy() for read in (before, after)]


def changed_layers(before: nn.Module, after: nn.Module) -> dict[str, _Changed]:
    """The linear layers of two models that differ, by name, with the directions in which they do."""
    theirs = dict(_linear_layers(after))
    found = {}
    for name, layer in _linear_layers(before):
        other = theirs.get(name)
        if other is None or other.weight.shape != layer.weight.shape:
            continue
        change = (_matrix(other) - _matrix(layer)).double()
        sizes, directions = torch.linalg.eigh(change.T @ change)
        kept = sizes[-RANK:] > 1e-10 * sizes[-1]  # of squares; what is below is the rounding of the weights
        if not sizes[-1] > 0:
            continue
        inputs = directions[:, -RANK:][:, kept]
        found[name] = _Changed(inputs.float(), (change @ inputs).float())
    return found


def _linear_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    output = getattr(model, "get_output_embeddings", lambda: None)()
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, Conv1D)) and module is not output:
            yield name, module


def _matrix(layer: Any) -> Tensor:
    """(out, in) weights on the CPU."""
    weight: Tensor = layer.weight.detach().float().cpu()
    return weight.T if isinstance(layer, Conv1D) else weight


def _kept(numbers: Tensor, layers: Mapping[str, _Changed]) -> Tensor:
    """`(n, out, k)` of a layer as `(n, ...)`, of every so manieth output."""
    total = sum(layer.moved.numel() for layer in layers.values())
    return numbers[:, :: -(-total // MOST_NUMBERS)].flatten(1)


def _gradients(read: RowLosses, layers: Mapping[str, _Changed]) -> Tensor:
    """(n, numbers) float32 gradients of each text's loss on the CPU, within the layers' directions, of norm 1."""
    read.model.requires_grad_(False)
    rows = []
    with torch.enable_grad(), ExitStack() as stack:
        # With frozen weights something has to want a gradient: what goes into the first layer.
        embeddings: Any = read.model.get_input_embeddings()  # type: ignore[operator]
        stack.enter_context(_hook(embeddings, lambda _layer, _inputs, output: output.requires_grad_()))
        found: dict[str, Tensor] = {}
        modules = dict(read.model.named_modules())
        for name, layer in layers.items():
            stack.enter_context(_hook(modules[name], _watcher(name, layer, found)))
        for part in read.parts:
            found.clear()
            part().sum().backward()  # type: ignore[no-untyped-call]
            rows.append(torch.cat([_kept(found[name], layers) for name in layers], dim=1))
    return _of_norm_one(torch.cat(rows))


def _watcher(name: str, layer: _Changed, found: dict[str, Tensor]) -> Callable[[nn.Module, Any, Tensor], None]:
    """A hook that leaves the texts' gradients of a layer, `(n, out, k)`, once the loss is differentiated."""

    def watch(_module: nn.Module, inputs: Any, output: Tensor) -> None:
        within = inputs[0].detach().float() @ layer.inputs.to(output.device)

        def keep(slope: Tensor) -> None:
            found[name] = torch.einsum("nto,ntk->nok", slope.float(), within).cpu()

        output.register_hook(keep)  # type: ignore[no-untyped-call]

    return watch


@contextmanager
def _hook(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _regressed(gradients: Tensor, moved: Tensor) -> Tensor:
    """(n,) float64 coefficients of the ridge regression of minus the change on the texts' gradients."""
    rows = _of_norm_one(gradients / gradients.square().mean(0).sqrt().clamp(min=1e-12))
    products = (rows @ rows.T).double() + RIDGE * torch.eye(len(rows), dtype=torch.float64, device="cpu")
    found: Tensor = torch.linalg.solve(products, -(rows @ moved).double())
    return found


def _of_norm_one(rows: Tensor) -> Tensor:
    lengths: Tensor = rows.norm(dim=1, keepdim=True)
    return rows / lengths.clamp(min=1e-12)

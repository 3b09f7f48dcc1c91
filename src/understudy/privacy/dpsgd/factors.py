"""Per-example gradients of a matrix in factored form: norms, inner products and weighted sums of them.

The gradient of a weight matrix for one example is a sum of outer products over its positions,
`sum_t left_t right_t^T`: output gradient and input of a linear layer, or, for an embedding, a one-hot row
and the output gradient. Norms, inner products and weighted sums are computed from these factors, so that
the gradient itself is materialised only where it is smaller than its factors.

Source: Bu et al. 2022, "Differentially Private Optimization on Large Model at Small Cost", arXiv
2210.00038; the ghost norm goes back to Goodfellow 2015, arXiv 1510.01799, and Li et al. 2021, arXiv
2110.05679.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.privacy.dpsgd.token_losses import TERMS_AT_ONCE, HeadFactors, products_of

# Numbers of the gradients of one matrix that are held at a time, of all examples together: what a core's cache holds;
# more on a GPU, where each time takes as long.
_NUMBERS_AT_ONCE = 1 << 20
_NUMBERS_AT_ONCE_ON_CUDA = 1 << 24
# Roundings beside those of the sums of products: of factors, squares, norms and of the bounds themselves.
_FURTHER = 8


@dataclass(frozen=True)
class Factors:
    """Gradient of one matrix per example: `sum_t left_t right_t^T`.

    Attributes:
        left: (batch, positions, height), or row numbers (batch, positions) that stand for one-hot rows.
        right: (batch, positions, width).
    """

    left: Tensor
    right: Tensor

    @property
    def sparse(self) -> bool:
        """Whether `left` holds row numbers."""
        return not self.left.is_floating_point()

    def is_larger_than_dense(self) -> bool:
        """Whether the factors take more memory than the gradients (then they also cost more work)."""
        _, positions, height = self.left.shape
        width = self.right.shape[2]
        return height * width <= positions * (height + width)


Factored = Factors | HeadFactors


def inner_product(one: Factored, other: Factored) -> tuple[Tensor, Tensor]:
    """Inner product of two gradients of the same matrix, example by example, in float64.

    `<sum_t l_t r_t^T, sum_s l'_s r'_s^T> = sum_ts <l_t, l'_s> <r_t, r'_s>` (ghost norm, T^2 terms).

    A float sum of n products is off by at most gamma_n = n u / (1 - n u) of the sum of their absolute values, in
    whatever order it is made (Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1). By
    Cauchy-Schwarz, an entry of a kernel is then off by gamma_n |l_t| |l'_s|, and the kernel, in Frobenius norm, by
    gamma_n |L| |L'|.

    Returns:
        The inner products (batch,), and a bound on their distance from those of the same factors in real numbers.
    """
    rows, rows_off = _left_kernel(one, other)
    columns = products_of(one.right, other.right)
    columns_off = _off(one.right, _frobenius(one.right), _frobenius(other.right), terms=one.right.shape[2])
    in_rows, in_columns = _frobenius(rows), _frobenius(columns)
    off = rows_off * in_columns + (in_rows + rows_off) * columns_off
    off += _FURTHER * _unit(columns) * in_rows * in_columns
    return rows.mul_(columns).sum((1, 2), dtype=torch.float64), off


def rounding_of_sums(uses: Sequence[Factored]) -> Tensor:
    """How far the gradients that `add_weighted_sum` makes are at most off, (batch,) float64, in L2 norm.

    A sum over T positions and a sum over uses of rounded products, entry by entry: at most gamma_T sum_t |l_t| |r_t|.
    """
    positions = sum(use.right.shape[1] for use in uses)
    norms = torch.stack([_left_norm(use) * _frobenius(use.right) for use in uses]).sum(0)
    return _rounded(uses[0].right, norms, terms=positions)


def _unit(values: Tensor) -> float:
    return torch.finfo(values.dtype).eps / 2


def _off(values: Tensor, one: Tensor, other: Tensor, *, terms: int) -> Tensor:
    """How far a kernel of `products_of` is off, from the norms of its factors."""
    return _rounded(values, one * other, terms=min(terms, TERMS_AT_ONCE))


def _rounded(values: Tensor, norms: Tensor, *, terms: int) -> Tensor:
    """Gamma of so many terms in the type of `values` times norms, and what is too small for that type."""
    return (terms + _FURTHER) * _unit(values) * norms + torch.finfo(values.dtype).tiny * terms * values[0].numel()


def _left_norm(factors: Factored) -> Tensor:
    if isinstance(factors, HeadFactors):
        return factors.error_norm()
    if factors.sparse:
        return _frobenius(factors.right).new_full((len(factors.left),), factors.left.shape[1] ** 0.5)
    return _frobenius(factors.left)


def _left_kernel(one: Factored, other: Factored) -> tuple[Tensor, Tensor]:
    """<l_t, l'_s> as (batch, positions, other positions), and how far it is off in Frobenius norm, (batch,)."""
    if isinstance(one, HeadFactors):
        return _head_kernel(one, other)
    if isinstance(other, HeadFactors) or (one.sparse and not other.sparse):
        kernel, off = _left_kernel(other, one)
        return kernel.transpose(1, 2).contiguous(), off
    exact = torch.zeros(len(one.left), dtype=torch.float64, device=one.left.device)
    if one.sparse:
        return (one.left[:, :, None] == other.left[:, None, :]).to(one.right.dtype), exact
    if other.sparse:
        return one.left.gather(2, other.left[:, None, :].expand(-1, one.left.shape[1], -1)), exact
    return _with_bound(products_of(one.left, other.left), one, other)


def _head_kernel(head: HeadFactors, other: Factored) -> tuple[Tensor, Tensor]:
    if head is other:
        return _with_bound(head.error_products(), head, other)
    if isinstance(other, HeadFactors):
        return _with_bound(head.error_products_with(other), head, other)
    if other.sparse:
        entries, off = head.errors_at(other.left)
        return entries, _frobenius(off)
    return _with_bound(head.error_products_with(other.left), head, other)


def _with_bound(kernel: Tensor, one: Factored, other: Factored) -> tuple[Tensor, Tensor]:
    height = len(one.weight) if isinstance(one, HeadFactors) else one.left.shape[2]
    return kernel, _off(kernel, _left_norm(one), _left_norm(other), terms=height)


def _frobenius(values: Tensor) -> Tensor:
    """(batch,) float64; never below the true norm, whatever the order of sums and however small the squares."""
    norms = torch.linalg.vector_norm(values, dim=2).double() * (1 + (values.shape[2] + _FURTHER) * _unit(values))
    found: Tensor = (norms.square().sum(1) + values[0].numel() * torch.finfo(values.dtype).tiny).sqrt()
    return found


def add_weighted_sum(total: Tensor, uses: Sequence[Factored], weights: Tensor, poisoned: Tensor | None) -> None:
    """Add `sum_b weights_b * gradient_b` to `total` (height, width), where gradient_b is the sum of all uses.

    One product of all examples' factors would be quicker by a little, but its rounding errors are those of sums that
    cancel within an example, of which no clip norm tells. So each example's gradient is made by itself, some rows of
    the matrix at a time, before it is weighted and added (`rounding_of_sums` is a part of its norm).

    Args:
        total: changed in place.
        uses: of at most `ROWS_IN_FLOATS` examples.
        weights: (batch,), zero for examples that must not count.
        poisoned: bool (batch,), examples that hold infinities or nans; None if there are none.
    """
    tables = [use for use in uses if not isinstance(use, HeadFactors) and use.sparse]
    if len(tables) == len(uses):
        _add_rows(total, tables, weights, poisoned)
        return
    # Error rows are as large as the vocabulary, and made anew for each example.
    size = 1 if any(isinstance(use, HeadFactors) for use in uses) else len(weights)
    for start in range(0, len(weights), size):
        some = slice(start, start + size)
        part = None if poisoned is None else poisoned[some]
        _add_blocks(total, [some_examples(use, some) for use in uses], weights[some], part)


def some_examples(use: Factored, rows: slice) -> Factored:
    """The same of some examples."""
    return use.rows(rows) if isinstance(use, HeadFactors) else Factors(use.left[rows], use.right[rows])


@torch.no_grad()  # type: ignore[untyped-decorator]
def _add_blocks(total: Tensor, uses: Sequence[Factored], weights: Tensor, poisoned: Tensor | None) -> None:
    """Add weighted gradients, of which some uses are dense, some rows of the matrix at a time."""
    dense = [use for use in uses if isinstance(use, HeadFactors) or not use.sparse]
    lefts = [use.errors() if isinstance(use, HeadFactors) else use.left for use in dense]
    left = torch.cat(lefts, 1) if len(lefts) > 1 else lefts[0]
    right = torch.cat([use.right for use in dense], 1) if len(dense) > 1 else dense[0].right
    tables = [use for use in uses if not isinstance(use, HeadFactors) and use.sparse]
    weights = weights.to(total.dtype)
    numbers = _NUMBERS_AT_ONCE if right.device.type == "cpu" else _NUMBERS_AT_ONCE_ON_CUDA
    height = min(max(1, numbers // (len(left) * right.shape[2])), len(total))
    memory = right.new_empty(len(left) * height * right.shape[2])  # one for all: what a core's cache holds stays there
    for start in range(0, len(total), height):
        rows = total[start : start + height]
        block = memory[: len(left) * rows.numel()].view(len(left), *rows.shape)
        torch.bmm(left[:, :, start : start + height].transpose(1, 2), right, out=block)
        for table in tables:
            _add_to_block(block, table, start=start)
        # Not before the product: factors in other memory might move the last bits of all examples.
        found = _without(poisoned, block).flatten(1).to(total.dtype)
        rows.view(-1).addmv_(found.t(), weights)


def _add_to_block(block: Tensor, table: Factors, *, start: int) -> None:
    """Add one-hot rows to those from `start` on of every example's gradient."""
    here = (table.left >= start) & (table.left < start + block.shape[1])
    example, position = here.nonzero(as_tuple=True)
    row = example * block.shape[1] + table.left[example, position] - start
    block.view(-1, block.shape[2]).index_add_(0, row, table.right[example, position])


def _add_rows(total: Tensor, tables: Sequence[Factors], weights: Tensor, poisoned: Tensor | None) -> None:
    """Add weighted gradients whose uses are all one-hot rows: the sum of each row in float64, then rounded."""
    rows, place = torch.unique(torch.cat([table.left for table in tables], 1).flatten(), return_inverse=True)
    right = _without(poisoned, torch.cat([table.right for table in tables], 1)).double()
    right *= weights.double()[:, None, None]
    found = right.new_zeros(len(rows), right.shape[2]).index_add_(0, place, right.flatten(0, 1))
    total.index_add_(0, rows, found.to(total.dtype))


def _without(poisoned: Tensor | None, values: Tensor) -> Tensor:
    """`values` with poisoned examples set to zero: a zero weight alone would leave 0 * inf = nan."""
    if poisoned is None:
        return values
    return values.masked_fill(poisoned.view(-1, *[1] * (values.ndim - 1)), 0.0)

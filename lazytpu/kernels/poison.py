"""A look at what a kernel says of padding: it is called with padding that spoils whatever depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import jax
import torch

from lazytpu.ir.padding_rule import DimRule, PaddingRule

MORE = (1, 7)
"Elements of padding behind each size."


def check(name: str, call: Callable[..., Any], rule: PaddingRule, args: Any, kwargs: Any) -> None:
    """Raises ValueError where a true element of a result is another one with padding than without."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    plain = jax.tree.leaves(call(*args, **kwargs))
    for more in MORE:
        dims = iter(rule.operands)
        padded = [_padded(leaf, next(dims), more) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = jax.tree.unflatten(tree, padded)
        for i, (want, got) in enumerate(zip(plain, jax.tree.leaves(call(*args, **kwargs)), strict=True)):
            sizes = zip(want.shape, rule.results[i], strict=True)
            expected = tuple([size if dim.name is None else size + more for size, dim in sizes])
            if got.shape != expected:
                raise ValueError(f"{name}: result {i} has sizes {list(got.shape)} with padding, not {list(expected)}")
            true = got[tuple([slice(size) for size in want.shape])]
            try:
                torch.testing.assert_close(true, want, equal_nan=True)
            except AssertionError as error:
                raise ValueError(
                    f"{name}: result {i} depends on padding, which holds NaN or the largest number where {str(rule)!r} "
                    f"asks for nothing else; {more} elements of it were added to each size. {error}"
                ) from None


def _padded(tensor: torch.Tensor, dims: Sequence[DimRule], more: int) -> torch.Tensor:
    """A copy with padding along the named dims: what the rule asks for, or poison."""
    made = tensor.detach().cpu()
    for k, dim in enumerate(dims):
        if dim.name is not None:
            shape = [*made.shape[:k], more, *made.shape[k + 1 :]]
            fill = _poison(made.dtype) if dim.fill is None else _number(dim.fill, made.dtype)
            made = torch.cat([made, torch.full(shape, fill, dtype=made.dtype)], k)
    return made.to(tensor.device)


def _poison(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point or dtype.is_complex:
        return nan
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def _number(fill: float, dtype: torch.dtype) -> Any:
    if dtype.is_floating_point or dtype.is_complex:
        return fill
    if fill in (inf, -inf):
        info = torch.iinfo(dtype)
        return info.max if fill > 0 else info.min
    return int(fill)

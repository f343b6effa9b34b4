"""A check of a kernel's padding rule: call it with padding that changes any result that depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import jax
import torch

from lazytpu.ir.padding_rule import DimRule, PaddingRule

MORE = (1, 7)
"""The numbers of padding elements to add to each size."""


def check(name: str, call: Callable[..., Any], rule: PaddingRule, args: Any, kwargs: Any) -> None:
    """Raise ValueError if a true element of a result differs with padding."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    plain = jax.tree.leaves(call(*args, **kwargs))
    for count in MORE:
        dims = iter(rule.operands)
        padded = [_padded(leaf, next(dims), count) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = jax.tree.unflatten(tree, padded)
        for i, (want, got) in enumerate(zip(plain, jax.tree.leaves(call(*args, **kwargs)), strict=True)):
            sizes = zip(want.shape, rule.results[i], strict=True)
            expected = tuple([size if dim.name is None else size + count for size, dim in sizes])
            if got.shape != expected:
                raise ValueError(f"{name}: result {i} has sizes {list(got.shape)} with padding, not {list(expected)}")
            true = got[tuple([slice(size) for size in want.shape])]
            try:
                torch.testing.assert_close(true, want, equal_nan=True)
            except AssertionError as error:
                raise ValueError(
                    f"{name}: result {i} depends on padding, which holds NaN or the largest number where {str(rule)!r} "
                    f"asks for nothing else; {count} elements of it were added to each size. {error}"
                ) from None


def _padded(tensor: torch.Tensor, dims: Sequence[DimRule], more: int) -> torch.Tensor:
    """Return a copy with padding along the named dims, filled with the value that the rule requires, or with poison."""
    padded = tensor.detach().cpu()
    for k, dim in enumerate(dims):
        if dim.name is not None:
            shape = [*padded.shape[:k], more, *padded.shape[k + 1 :]]
            fill = _poison(padded.dtype) if dim.fill is None else _number(dim.fill, padded.dtype)
            padded = torch.cat([padded, torch.full(shape, fill, dtype=padded.dtype)], k)
    return padded.to(tensor.device)


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

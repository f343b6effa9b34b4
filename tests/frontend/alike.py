"""Observable properties of results, and comparison of two devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import lazytpu


def numbers(d: str) -> Tensor:
    return torch.complex(torch.arange(6.0), torch.arange(6.0).flip(0)).reshape(2, 3).to(d)


def records() -> int:
    """Return the number of pending records."""
    lazytpu.sync()
    return lazytpu.metrics()["records"]


def attempt(call: Callable[[], Any]) -> Any:
    """Return the result, or the type of the error."""
    try:
        return call()
    except (RuntimeError, ValueError, IndexError) as error:
        return type(error)


def seen(value: Any) -> Any:
    """Return the observable properties of a value; tensors become (metadata, values)."""
    if isinstance(value, Tensor):
        bits = value.is_conj(), value.is_neg()
        plain = value.detach().cpu().resolve_conj().resolve_neg()
        return (value.dtype, value.shape, value.stride(), value.storage_offset(), *bits), plain
    if isinstance(value, list | tuple):
        return [seen(v) for v in value]
    return value


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for g, w in zip(got, expected, strict=True):
            same(g, w)
    else:
        assert got == expected

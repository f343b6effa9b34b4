"""`out=` overloads: the functional op is recorded, and its results are written into the given tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.overlap import check_no_internal_overlap, check_no_partial_overlap

aten = torch.ops.aten


def out_names(op: OpOverload) -> list[str]:
    """Names of the arguments that results are written to: keyword-only and mutated."""
    return [
        a.name
        for a in op._schema.arguments
        if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write
    ]


def out_kernel(op: OpOverload, functional: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of the out= overload `op`, which computes what `functional` returns."""
    names = out_names(op)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in names]
        for target in targets:
            if isinstance(target, torch.Tensor):
                _check(op, target, (*args, *kwargs.values()))
        results = functional(*args, **kwargs)
        several = isinstance(results, tuple | list) and not isinstance(targets[0], list | tuple)
        for target, result in zip(targets, results if several else (results,), strict=True):
            _store(target, result)
        return tuple(targets) if len(targets) > 1 else targets[0]

    return kernel


def _check(op: OpOverload, target: torch.Tensor, arguments: tuple[Any, ...]) -> None:
    check_no_internal_overlap(target)
    for value in arguments:
        for source in value if isinstance(value, list | tuple) else [value]:
            if isinstance(source, torch.Tensor):
                if source.device != target.device and source.dim() > 0:
                    raise RuntimeError(
                        "Expected all tensors to be on the same device, but found at least two devices, "
                        f"{source.device} and {target.device}! (out= of {op})"
                    )
                check_no_partial_overlap(target, source)


def _store(target: Any, result: Any) -> None:
    if isinstance(target, list | tuple):
        for t, r in zip(target, result, strict=True):
            _store(t, r)
        return
    if not torch.can_cast(result.dtype, target.dtype):
        names = [_scalar_type(d) for d in (result.dtype, target.dtype)]
        raise RuntimeError(f"result type {names[0]} can't be cast to the desired output type {names[1]}")
    if target.shape != result.shape:
        if target.numel() != 0:
            warnings.warn(
                f"An output with one or more elements was resized since it had shape {list(target.shape)}, which does "
                f"not match the required output shape {list(result.shape)}. This behavior is deprecated, and in a "
                "future PyTorch release outputs will not be resized unless they have zero elements. You can explicitly "
                "reuse an out tensor t by resizing it, inplace, to zero elements with t.resize_(0).",
                UserWarning,
                stacklevel=4,
            )
        aten.resize_.default(target, list(result.shape))
        if not result.is_contiguous():  # a tensor that is resized gets the strides the op would have given its result
            target.as_strided_(result.shape, result.stride())
    target.copy_(result)


def _scalar_type(dtype: torch.dtype) -> str:
    """torch's C++ name of a dtype: "Long", "ComplexFloat"."""
    return torch.empty(0, dtype=dtype, device="cpu").type().removeprefix("torch.").removesuffix("Tensor")

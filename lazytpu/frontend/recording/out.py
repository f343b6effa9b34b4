"""`out=` overloads: record the functional op, and write its results to the out tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.inference.cpu_errors import LARGE, call_quietly, elements, on_cpu
from lazytpu.frontend.inference.dtype_support import check_dtypes
from lazytpu.frontend.inference.indexing import scalar_type
from lazytpu.frontend.inference.infer import check_shape, is_pointwise
from lazytpu.frontend.recording.overlap import check_no_internal_overlap, check_no_overlap, check_no_partial_overlap
from lazytpu.frontend.tensors import extent
from lazytpu.frontend.torch_private import has_kernel

aten = torch.ops.aten

_OF_VALUES = ("ZeroDivisionError", "LinAlgError")  # errors that depend on the values with which the CPU is called


def out_names(op: OpOverload) -> list[str]:
    """Return the names of the arguments to which results are written: keyword-only and mutated."""
    return [a.name for a in op._schema.arguments if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write]


def out_kernel(op: OpOverload, functional: Callable[..., Any], copy: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of the out= overload `op`, which computes the results of `functional`.

    `copy` records a copy to its first argument.
    """
    names = out_names(op)
    takes_dtype = any(a.name == "dtype" for a in op._schema.arguments)
    row_major = op._schema.name in _ROW_MAJOR or _is_generated(op)
    dense = op._schema.name in _DENSE
    name = op._schema.name.partition("::")[2]
    alone = name in _NO_OVERLAP
    apart = None if name in _ANY_OVERLAP else check_no_overlap if alone else check_no_partial_overlap

    def kernel(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in names]
        for target in targets:
            if isinstance(target, torch.Tensor):
                _check(op, apart, target, (*args, *kwargs.values()))
        results = functional(*args, **kwargs)
        if len(names) == 1 and _fits(targets[0], results):
            copy(targets[0], results)
            return targets[0]
        pairs = _pairs(targets, results)
        if any(target.dtype is not result.dtype for target, result in pairs):
            _ask(op, args, kwargs, dict(zip(names, targets, strict=True)))
            if takes_dtype and kwargs.get("dtype") is None:  # sums compute in the dtype of the out tensor
                pairs = _pairs(targets, functional(*args, **kwargs, dtype=targets[0].dtype))
        for target, result in pairs:
            if is_pointwise(op) and any(value is target for value in (*args, *kwargs.values())):
                check_shape(target.shape, result.shape)
            copied = name == "nan_to_num" and not (result.is_floating_point() or result.is_complex())
            _store(target, result.contiguous() if row_major or copied else result.clone() if dense else result, name)
        return tuple(targets) if len(targets) > 1 else targets[0]

    return kernel


def _fits(target: Any, result: Any) -> bool:
    """Return whether the result only has to be copied to a part of a tensor: DistributedDataParallel writes each
    gradient to its place in a bucket."""
    stored: Any = getattr(target.untyped_storage(), "_value", None) if isinstance(target, torch.Tensor) else None
    return (
        stored is not None
        and isinstance(result, torch.Tensor)
        and result.dtype is target.dtype
        and result.shape == target.shape
        and target.is_contiguous()
        and target.shape != stored.layout.shape
        and not (target.is_conj() or target.is_neg() or result.is_conj() or result.is_neg() or target.numel() == 0)
    )


def _pairs(targets: Any, results: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (target, result) for each result."""
    if isinstance(targets, torch.Tensor):
        return [(targets, results)]
    if len(targets) == 1 and not (isinstance(targets[0], torch.Tensor) and isinstance(results, list | tuple)):
        return _pairs(targets[0], results)
    return [pair for t, r in zip(targets, results, strict=True) for pair in _pairs(t, r)]


def _ask(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], targets: dict[str, Any]) -> None:
    """Raise the CPU's error if it does not write this op's results to tensors of these dtypes; the rules differ by op.

    Pointwise ops, and ops on large tensors, are checked once for the same dtypes, with small tensors.
    """
    if torch.Tag.pointwise in op.tags or elements([*args, *kwargs.values(), *targets.values()]) > LARGE:
        arguments = dict(zip([a.name for a in op._schema.arguments], args, strict=False))
        check_dtypes(op, {**arguments, **kwargs, **targets}, ())
        return
    try:  # a resized result warns later
        call_quietly(op, *map(on_cpu, args), **{name: on_cpu(value) for name, value in {**kwargs, **targets}.items()})
    except RuntimeError as error:
        if not any(kind in f"{type(error).__name__} {error}" for kind in _OF_VALUES):
            raise


def _is_generated(op: OpOverload) -> bool:
    """Return whether torch generates this out= form from the functional one. Those of `_BY_OTHERS` call another out=
    form instead."""
    return has_kernel(op.name(), "CompositeExplicitAutograd") and op._schema.name not in _BY_OTHERS


_BY_OTHERS = frozenset({"aten::sort", "aten::rad2deg", "aten::deg2rad", "aten::ldexp"})


# The CPU resizes out tensors of these ops to row-major, though their own results are not. The same holds for out= forms
# that torch generates, with a composite kernel.
_ROW_MAJOR = frozenset(
    {"aten::log_sigmoid_forward", "aten::cholesky", "aten::_fft_c2c", "aten::_fft_r2c", "aten::_fft_c2r"}
)

# The functional form of these may return its operand, with gaps.
_DENSE = frozenset({"aten::conj_physical"})

# These read other elements than they write at the same time: their results must not go to their operands.
_NO_OVERLAP = frozenset({"cat", "gather", "index_select", "kthvalue", "linalg_cross", "masked_select", "take"})
# The CPU checks no overlap in these. (Nor in sums and products, whose kernels write to the result before they read.)
_ANY_OVERLAP = frozenset(
    {
        *("all", "amax", "amin", "any", "argmax", "argmin", "linalg_vector_norm", "logsumexp", "norm", "std", "var"),
        *("_log_softmax", "_softmax", "log_softmax", "softmax"),
    }
)

# The CPU's kernels of these resize a nonempty out tensor without torch's usual warning.
_RESIZED_SILENTLY = frozenset(
    {
        *("addbmm", "bernoulli", "log_sigmoid", "log_sigmoid_forward", "multinomial", "narrow_copy", "randperm"),
        *("eye", "linspace", "logspace", "range"),
    }
)


def _check(op: OpOverload, apart: Callable[..., None] | None, target: torch.Tensor, arguments: tuple[Any, ...]) -> None:
    check_no_internal_overlap(target)
    for value in arguments:
        for source in value if isinstance(value, list | tuple) else [value]:
            if isinstance(source, torch.Tensor):
                if source.dim() > 0 and source.device != target.device:
                    raise RuntimeError(
                        "Expected all tensors to be on the same device, but found at least two devices, "
                        f"{source.device} and {target.device}! (out= of {op})"
                    )
                if apart is not None:
                    apart(target, source)


def _store(target: torch.Tensor, result: torch.Tensor, name: str) -> None:
    """Write a result of the op `name` to an out tensor, which is resized if it has another shape."""
    if not torch.can_cast(result.dtype, target.dtype):
        names = [scalar_type(d) for d in (result.dtype, target.dtype)]
        raise RuntimeError(f"result type {names[0]} can't be cast to the desired output type {names[1]}")
    if target.shape != result.shape:
        if target.numel() != 0 and name not in _RESIZED_SILENTLY:
            warnings.warn(_resize_warning(target, result, name), UserWarning, stacklevel=4)
        aten.resize_.default(target, list(result.shape))
        if target.stride() != result.stride():  # after a resize it gets the strides of the op's own result
            touched = extent(tuple(result.shape), tuple(result.stride()))
            if touched > result.numel():  # the strides of a slice of a larger tensor
                aten.resize_.default(target, [touched])
            target.as_strided_(result.shape, result.stride())
    target.copy_(result)


def _resize_warning(target: torch.Tensor, result: torch.Tensor, name: str) -> str:
    shape = list(target.shape)
    if name == "arange":
        return (
            f"The number of elements in the out tensor of shape {shape} is {target.numel()} which does not match the "
            f"computed number of elements {result.numel()}. Note that this may occur as a result of rounding error. "
            f"The out tensor will be resized to a tensor of shape ({result.numel()},)."
        )
    return (
        f"An output with one or more elements was resized since it had shape {shape}, which does not match the "
        f"required output shape {list(result.shape)}. This behavior is deprecated, and in a future PyTorch release "
        "outputs will not be resized unless they have zero elements. You can explicitly reuse an out tensor t by "
        "resizing it, inplace, to zero elements with t.resize_(0)."
    )

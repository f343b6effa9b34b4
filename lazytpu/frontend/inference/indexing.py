"""Shapes and errors of ops that index, sort and reduce segments, where torch's meta functions are missing or differ."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.inference.cpu_errors import LARGE, call_quietly, elements, on_cpu
from lazytpu.frontend.inference.infer import OVERRIDES, override

aten = torch.ops.aten


# Ops whose meta functions accept arguments that the CPU rejects: indices of a wrong dtype, incompatible shapes,
# positions out of range. The CPU's own kernel is called.
_ASKED = """
bucketize gather index index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_reduce index_reduce_
index_select masked_scatter masked_scatter_ put put_ take scatter scatter_ scatter_add scatter_add_ scatter_reduce
scatter_reduce_ searchsorted select_scatter slice_scatter diagonal_scatter
""".split()

# Ops that warn of expanded tensors at each state, not only where the CPU's kernel is called.
_WARNING = ("aten.index_fill_.int_Scalar", "aten.index_fill_.int_Tensor", "aten.index_put_.default")


def _ask(op: OpOverload, arguments: dict[str, Any]) -> Any:
    """Return the result of the CPU's kernel for tensors up to LARGE elements, else of torch's meta function."""
    small = elements(arguments.values()) <= LARGE
    bound = {name: on_cpu(value) for name, value in arguments.items()} if small else arguments
    schema = op._schema.arguments
    positional = [bound[a.name] for a in schema if not a.kwarg_only and a.name in bound]
    named = {a.name: bound[a.name] for a in schema if a.kwarg_only and a.name in bound}
    return call_quietly(op, *positional, **named) if str(op) in _WARNING else op(*positional, **named)


def _asking(op: OpOverload) -> Any:
    return lambda **arguments: _ask(op, arguments)


for _name in _ASKED:
    for _overload in getattr(aten, _name).overloads():
        _op = getattr(getattr(aten, _name), _overload)
        if not any(a.alias_info is not None and a.kwarg_only for a in _op._schema.arguments):  # not out=
            OVERRIDES[str(_op)] = _asking(_op)


def scalar_type(dtype: torch.dtype) -> str:
    """Return torch's C++ name of a dtype: "Long", "ComplexFloat"."""
    return torch.empty(0, dtype=dtype, device="cpu").type().removeprefix("torch.").removesuffix("Tensor")


def _segments(name: str, segments: torch.Tensor, axis: int, data: torch.Tensor) -> None:
    if data.dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        raise NotImplementedError(f"\"_segment_reduce_cpu\" not implemented for '{scalar_type(data.dtype)}'")
    if segments.dtype not in (torch.int32, torch.int64):
        kind = scalar_type(segments.dtype)
        raise NotImplementedError(f"\"_segment_reduce_{name}_cpu_kernel1\" not implemented for '{kind}'")
    if data.dim() < segments.dim() or axis != segments.dim() - 1:
        raise RuntimeError(f"segment_reduce(): Expected axis to be the last dimension of {name} but got {axis}.")


@override("aten.segment_reduce.default")
def segment_reduce(
    data: torch.Tensor,
    reduce: str,
    lengths: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    **_: Any,
) -> torch.Tensor:
    """torch's meta function reads the lengths."""
    if not -data.dim() <= axis < data.dim():
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-data.dim()}, {data.dim() - 1}], but got {axis})"
        )
    axis %= data.dim()
    if indices is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported yet.")
    if reduce not in ("sum", "mean", "prod", "max", "amax", "min", "amin"):
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    segments, name = (offsets, "offsets") if offsets is not None else (lengths, "lengths")
    if segments is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    _segments(name, segments, axis, data)
    count = segments.shape[-1] - (offsets is not None)
    return data.new_empty((*data.shape[:axis], count, *data.shape[axis + 1 :]))


@override("aten._segment_reduce_backward.default")
def segment_reduce_backward(data: torch.Tensor, grad: torch.Tensor, **_: Any) -> torch.Tensor:
    """The result is contiguous, with the shape of data."""
    return grad.new_empty(data.shape)


@override("aten.hash_tensor.default")
def hash_tensor(**arguments: Any) -> torch.Tensor:
    """torch's meta function accepts complex numbers, and any mode."""
    if arguments.get("mode", 0) != 0:
        raise RuntimeError(f"Unknown hash_tensor mode: {arguments['mode']}")
    if arguments["self"].is_complex():
        kind = scalar_type(arguments["self"].dtype)
        raise NotImplementedError(f"\"xor_sum_cpu\" not implemented for '{kind}'")
    return aten.hash_tensor.default(**arguments)


@override("aten.nonzero_static.default")
def nonzero_static(self: torch.Tensor, size: int, **_: Any) -> torch.Tensor:
    """The result is contiguous; torch's meta function returns the strides of nonzero, which are transposed."""
    if size < 0:
        raise RuntimeError(f"nonzero_static: 'size' must be an non-negative integer, got {size}")
    return torch.empty((size, self.dim()), dtype=torch.int64, device="meta")


@override("aten.index_put_.default")
def index_put_(**arguments: Any) -> torch.Tensor:
    """torch's meta function cannot find the true elements of a mask."""
    if any(i is not None and i.dtype is torch.bool for i in arguments["indices"]):
        return arguments["self"]
    return _ask(aten.index_put_.default, arguments)


def _embedding_bag(op: OpOverload, for_gradients: bool) -> None:
    """Register a meta function that checks dtypes and ranks as the CPU does, and saves the CPU's results: torch's
    accepts weights of another dtype than the table's, and any number of dimensions, and its saved results have the
    shapes of CUDA's."""

    def check(**arguments: Any) -> tuple[torch.Tensor, ...]:
        table, weights = arguments["weight"], arguments.get("per_sample_weights")
        indices, offsets = arguments["indices"], arguments["offsets"]
        for name, tensor, ranks in (
            ("input", indices, (1, 2)),
            ("offsets", offsets, (1,)),
            ("weight", table, (2,)),
        ):
            if tensor.dim() not in ranks:
                expected = " or ".join(f"{rank}D" for rank in ranks)
                raise RuntimeError(f"{name} has to be a {expected} Tensor, but got Tensor of dimension {tensor.dim()}")
        if indices.numel() != indices.shape[0]:  # torch.nn.functional flattens them
            raise RuntimeError(
                "Expected select_indices.numel() == add_indices.numel() to be true, but got false.  (Could this error "
                "message be improved?  If so, please report an enhancement request to PyTorch.)"
            )
        if weights is not None and weights.dtype != table.dtype:
            raise RuntimeError(
                "Expected tensor for argument #1 'weight' to have the same type as tensor for argument #1 "
                f"'per_sample_weights'; but type {table.dtype} does not equal {weights.dtype} (while checking "
                "arguments for embedding_bag)"
            )
        output = op(**arguments)[0]
        # by the CPU's EmbeddingBag.cpp: a sum that FBGEMM's kernel computes saves no bag of each index
        summed, longest = arguments.get("mode", 0) == 0, arguments.get("mode", 0) == 2
        by_fbgemm = table.dtype is not torch.float64 and table.stride(1) == 1 and arguments.get("padding_idx", -1) < 0
        by_fbgemm = by_fbgemm and (weights is None or weights.stride(0) == 1)
        bags, width = output.shape
        sizes = (bags,) if for_gradients or not summed else tuple(offsets.shape)
        shapes = (0 if summed and by_fbgemm else indices.shape[0],), sizes, (bags, width) if longest else sizes
        dtype = torch.promote_types(indices.dtype, offsets.dtype)
        return output, *[table.new_empty(shape, dtype=dtype) for shape in shapes]

    OVERRIDES[str(op)] = check


_embedding_bag(aten._embedding_bag.default, True)
_embedding_bag(aten._embedding_bag_forward_only.default, False)

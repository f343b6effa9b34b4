"""unique, bincount, repeat_interleave and similar ops: sort and count on the device, and read the sizes from it."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.inference.indexing import scalar_type
from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.ops.data_dependent import nonzero
from lazytpu.frontend.recording.kernels import kernel

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
LIBRARY.define("lexicographic_order(Tensor rows) -> Tensor")
LIBRARY.define("repeat_interleave.counted(Tensor repeats, int count) -> Tensor")
LIBRARY.define("repeat_interleave.given(Tensor repeats, int count) -> Tensor")
OPS: Any = torch.ops.lazytpu


@override("lazytpu.lexicographic_order.default")
def infer_order(rows: torch.Tensor) -> torch.Tensor:
    """Return one index for each row."""
    return torch.empty(rows.shape[0], dtype=torch.int64, device="meta")


@override("lazytpu.repeat_interleave.counted", "lazytpu.repeat_interleave.given")
def infer_repeat_interleave(repeats: torch.Tensor, count: int) -> torch.Tensor:
    """Return as many indices as are counted."""
    return torch.empty(count, dtype=repeats.dtype, device="meta")


def _groups(first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the starts of groups, each element's group, and the group sizes, from marks that are true where a group
    begins."""
    starts = nonzero(first).reshape(-1)
    group = first.to(torch.int64).cumsum(0) - 1
    ends = torch.cat([starts[1:], starts.new_full((1,), first.numel())]) if first.numel() else starts
    return starts, group, ends - starts


def _differs(ordered: torch.Tensor) -> torch.Tensor:
    """Return True for each row of (n, …) that differs from the previous one, and for the first."""
    if ordered.shape[0] == 0:
        return torch.zeros(0, dtype=torch.bool, device=ordered.device)
    rows = (ordered[1:] != ordered[:-1]).reshape(ordered.shape[0] - 1, ordered.shape[1:].numel()).any(1)
    return torch.cat([torch.ones(1, dtype=torch.bool, device=ordered.device), rows])


def _check_unique(tensor: torch.Tensor, dim: int | None = None) -> None:
    """Raise torch's errors for complex numbers, and for slices without elements unless there are no slices."""
    if tensor.is_complex():
        raise NotImplementedError(f"\"unique\" not implemented for '{scalar_type(tensor.dtype)}'")
    if dim is None:
        return
    if tensor.dim() == 0:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-tensor.dim()}, {tensor.dim() - 1}], but got {dim})"
        )
    empty = list(tensor.shape).count(0)
    if tensor.shape[dim] == 0 and empty > 1:
        raise RuntimeError("Number of zero sized dimensions is more than one, so unique cannot be applied ")
    if tensor.shape[dim] and empty:
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")


def unique2(
    tensor: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The kernel of aten::_unique2: sorted distinct elements, the index of each element among them, and their counts.
    The last two are empty unless requested."""
    _check_unique(tensor)
    ordered, order = tensor.reshape(-1).sort(stable=True)
    starts, group, counts = _groups(_differs(ordered))
    nothing = group.new_empty(0)
    inverse = torch.empty_like(order).scatter_(0, order, group).reshape(tensor.shape) if return_inverse else nothing
    return ordered[starts], inverse, counts if return_counts else nothing


def unique(
    tensor: torch.Tensor, sorted: bool = True, return_inverse: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel of aten::_unique."""
    return unique2(tensor, sorted, return_inverse)[:2]


def unique_consecutive(
    tensor: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The kernel of aten::unique_consecutive: like unique, but only neighbours are merged."""
    if dim is not None:
        return unique_dim_consecutive(tensor, dim)
    _check_unique(tensor)
    rows = tensor.reshape(-1)
    starts, group, counts = _groups(_differs(rows))
    nothing = group.new_empty(0)
    inverse = group.reshape(tensor.shape) if return_inverse else nothing
    return rows[starts], inverse, counts if return_counts else nothing


def unique_dim_consecutive(
    tensor: torch.Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """aten::unique_dim_consecutive. All results are there whether asked for or not, as those of unique_dim are."""
    _check_unique(tensor, dim)
    rows = tensor.movedim(dim, 0)
    starts, group, counts = _groups(_differs(rows))
    return rows[starts].movedim(0, dim), group, counts


def unique_dim(
    tensor: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The kernel of aten::unique_dim: distinct slices along `dim`, in lexicographic order."""
    _check_unique(tensor, dim)
    rows = tensor.movedim(dim, 0)
    flat = rows.reshape(rows.shape[0], rows.shape[1:].numel())
    order = kernel(OPS.lexicographic_order.default).call(flat)
    starts, group, counts = _groups(_differs(flat[order]))
    inverse = torch.empty_like(order).scatter_(0, order, group)
    return rows[order][starts].movedim(0, dim), inverse, counts


_COUNTED = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def bincount(tensor: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """The kernel of aten::bincount.

    Raises torch's errors: RuntimeError for negative elements and for a tensor that is not 1-d, NotImplementedError for
    a non-integer dtype.
    """
    if tensor.dtype not in _COUNTED:
        raise NotImplementedError(f"\"bincount_cpu\" not implemented for '{scalar_type(tensor.dtype)}'")
    if tensor.dim() != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if weights is not None and weights.shape != tensor.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    size = minlength
    if tensor.numel():
        low, high = (int(v) for v in torch.stack([tensor.min(), tensor.max()]).tolist())
        if low < 0:
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        size = max(size, high + 1)
    if weights is None:
        ones = torch.ones_like(tensor, dtype=torch.int64)
        return torch.zeros(size, dtype=torch.int64, device=tensor.device).scatter_add_(0, tensor.long(), ones)
    dtype = weights.dtype if weights.dtype in (torch.float32, torch.float64) else torch.float64
    return torch.zeros(size, dtype=dtype, device=tensor.device).scatter_add_(0, tensor.long(), weights.to(dtype))


def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """The kernel of aten::repeat_interleave.Tensor: index i, repeats[i] times. Without `output_size`, the sum of the
    repeats is read.

    Raises torch's errors: RuntimeError when a count is negative, NotImplementedError for counts of another dtype.
    """
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        kind = scalar_type(repeats.dtype)
        raise NotImplementedError(f"\"repeat_interleave_cpu\" not implemented for '{kind}'")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    if output_size is not None:
        return kernel(OPS.repeat_interleave.given).call(repeats, output_size)
    low, total = (int(v) for v in torch.stack([repeats.min(), repeats.sum(dtype=torch.int64)]).tolist())
    if low < 0:
        raise RuntimeError("repeats can not be negative")
    return kernel(OPS.repeat_interleave.counted).call(repeats, total)


def equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """The kernel of aten::equal, a host read."""
    if left.shape != right.shape:
        return False
    if left.numel() == 0:
        return True
    return bool((left == right).all().item())


KERNELS: dict[str, Any] = {
    "_unique": unique,
    "_unique2": unique2,
    "bincount": bincount,
    "equal": equal,
    "repeat_interleave.Tensor": repeat_interleave,
    "unique_consecutive": unique_consecutive,
    "unique_dim": unique_dim,
    "unique_dim_consecutive": unique_dim_consecutive,
}

"""The shape, strides and refusals of products of groups: torch's meta function rejects all but bf16, which only GPUs
do."""

from __future__ import annotations

import torch

from lazytpu.frontend.inference.infer import override

ALIGNMENT = 16
"""Bytes of which a row of operands and results is a multiple, if it is not a column (GroupedMMUtils.h)."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _check_operand(name: str, x: torch.Tensor) -> None:
    if x.dtype not in DTYPES:
        dtype = {torch.float64: "Double", torch.int32: "Int", torch.int64: "Long"}.get(x.dtype, str(x.dtype))
        raise RuntimeError(f"Expected {name} to be Float32, BFloat16 or Float16 matrix, got {dtype}")


def _check_strides(x: torch.Tensor) -> None:
    """Raise RuntimeError unless the rows or the columns are contiguous, and aligned."""
    rows, columns = x.shape[-2:]
    (of_row, of_column), align = x.stride()[-2:], ALIGNMENT // x.element_size()
    if of_row == 1 and of_column >= max(1, rows):
        stride = of_column
    elif of_column == 1 and of_row >= max(1, columns):
        stride = of_row
    else:
        raise RuntimeError(
            f"Invalid strides/sizes, got {list(x.stride())} for strides and {list(x.shape)} for sizes"
        )
    if stride % align:
        raise RuntimeError("strides should be multiple of 16 bytes")


def _check(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> None:
    """Raise RuntimeError for operands that the CPU refuses, in its order (`_grouped_mm_validate_inputs`)."""
    for name, x in (("mat_a", self), ("mat_b", mat2)):
        _check_operand(name, x)
    for name, x in (("mat_a", self), ("mat_b", mat2)):
        if x.dim() not in (2, 3):
            raise RuntimeError(f"{name} has to be 2 or 3d")
    if not self.dim() == mat2.dim() == 2 and self.shape[-1] != mat2.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    _check_strides(self)
    _check_strides(mat2)
    if (offs is None) != (self.dim() == mat2.dim() == 3):
        raise RuntimeError(
            "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d"
        )
    if offs is not None and offs.dim() != 1:
        raise RuntimeError("offs has to be 1D")
    if offs is not None and offs.dtype != torch.int32:
        raise RuntimeError("Offsets have to be int32")
    if bias is not None:
        raise RuntimeError("Bias not supported yet")
    if out_dtype not in (None, self.dtype):
        raise RuntimeError("Grouped gemm output dtype must match `mat_a` dtype")


@override("aten._grouped_mm.default")
def grouped_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The result, whose rows are aligned: `frontend.ops.strided` leaves the gaps between them."""
    _check(self, mat2, offs, bias, out_dtype)
    groups = mat2.shape[0] if offs is None else offs.shape[0]
    if any(x.dim() == 3 and x.shape[0] != groups for x in (self, mat2)):
        raise RuntimeError(f"{'batched dimension has' if offs is None else 'matrix batch sizes have'} to match")
    batch = [groups] if self.dim() == mat2.dim() else []
    if self.dtype != mat2.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {self.dtype} != {mat2.dtype}")
    shape = [*batch, self.shape[-2], mat2.shape[-1]]
    return self.new_empty_strided(shape, aligned(shape, self.element_size()))


def aligned(shape: list[int], size: int) -> list[int]:
    """Return row-major strides whose rows are aligned, of elements of `size` bytes."""
    multiple = ALIGNMENT // size
    row = -(-shape[-1] // multiple) * multiple
    return [row, 1] if len(shape) == 2 else [shape[1] * row, row, 1]

"""torch's overlap checks on written tensors: does a tensor overlap itself, or partly overlap a tensor that is read?

The answers and messages are the same as in `at::has_internal_overlap` and `at::get_overlap_status`
(ATen/MemoryOverlap.cpp), derived from size, stride, offset and the identity of the storage. Every writing kernel checks
at record time. A program reads before it writes, so an overlap would not fail there, but would compute other values
than the CPU.
"""

from __future__ import annotations

import enum

from torch import Tensor


class Internal(enum.Enum):
    """Whether two indices of a tensor address one element; torch gives up (TOO_HARD) on most strided tensors."""

    NO = "no"
    YES = "yes"
    TOO_HARD = "too hard"


class Overlap(enum.Enum):
    """Whether two tensors share memory; FULL means the same elements in the same order."""

    NO = "no"
    FULL = "full"
    PARTIAL = "partial"
    TOO_HARD = "too hard"


def is_dense(tensor: Tensor) -> bool:
    """Return whether the tensor fills a block of memory, each element once, with its dimensions in any order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((t, n) for n, t in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def internal_overlap(tensor: Tensor) -> Internal:
    if is_dense(tensor):
        return Internal.NO
    expanded = any(t == 0 and n > 1 for n, t in zip(tensor.shape, tensor.stride(), strict=True))
    return Internal.YES if expanded else Internal.TOO_HARD


def overlap(a: Tensor, b: Tensor) -> Overlap:
    if a is b:
        return Overlap.FULL
    if not _share_storage(a, b) or a.numel() == 0 or b.numel() == 0:
        return Overlap.NO
    if not is_dense(a) or not is_dense(b):
        return Overlap.TOO_HARD
    (a_start, a_end), (b_start, b_end) = _bytes(a), _bytes(b)
    if (a_start, a_end) == (b_start, b_end):
        return Overlap.FULL if a.stride() == b.stride() else Overlap.PARTIAL
    return Overlap.PARTIAL if a_start < b_end and b_start < a_end else Overlap.NO


def check_no_internal_overlap(written: Tensor) -> None:
    """Raise torch's RuntimeError when two indices of `written` certainly address one element (an expanded
    dimension)."""
    if not written.is_contiguous() and internal_overlap(written) is Internal.YES:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


def check_no_partial_overlap(written: Tensor, read: Tensor) -> None:
    """Raise torch's RuntimeError when `written` overlaps `read` without being the same view.

    In-place ops read exactly the elements that they write.
    """
    if written is not read and _share_storage(written, read) and overlap(written, read) is Overlap.PARTIAL:
        raise RuntimeError(_SHARED)


def check_no_overlap(written: Tensor, read: Tensor) -> None:
    """Raise torch's RuntimeError when `written` and `read` are known to share an element."""
    if overlap(written, read) in (Overlap.PARTIAL, Overlap.FULL):
        raise RuntimeError(_SHARED)


_SHARED = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
    "location. Please clone() the tensor before performing the operation."
)


def _share_storage(a: Tensor, b: Tensor) -> bool:
    # The storage's Python object lives as long as the storage, so identity is enough.
    return a.untyped_storage() is b.untyped_storage()


def _bytes(dense: Tensor) -> tuple[int, int]:
    """Return the first byte of the storage that belongs to the tensor, and the byte after its last."""
    start = int(dense.storage_offset()) * dense.itemsize
    return start, start + dense.numel() * dense.itemsize

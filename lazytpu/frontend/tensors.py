"""Creation of tpu tensors, and access to their values."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from lazytpu import interrupts
from lazytpu.frontend import activation
from lazytpu.frontend.torch_private import (
    META,
    as_strided,
    empty_tensor,
    has_tensors_inside,
    is_stashed,
    is_wrapped,
    reinterpret,
    stash_in_thread,
    thread_stash,
)
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import State
from lazytpu.trace.value import EMPTY, Layout, Value, resident, row_major

DEVICE = torch.device("tpu", 0)
STASH = "lazytpu.recorder"

ROOT = State(None, None, None, 0, 0, 0)
LAZY_ROOT = State(None, None, None, 0, 0, 0)
_recorders: list[weakref.ref[Recorder]] = []
_making = threading.Lock()


def recorders() -> list[Recorder]:
    """Return the recorders that may have pending records: a thread's recorder lives as long as the thread and the
    values that it created."""
    return [alive for reference in list(_recorders) if (alive := reference()) is not None]


def recorder() -> Recorder:
    """Return the recorder of this logical thread: autograd's threads get the recorder of the thread that called
    backward (R6)."""
    if is_stashed(STASH):
        return thread_stash(STASH)
    interrupts.install()
    engine = activation.engine()
    created = Recorder(ROOT, engine.cut_trace, engine.plan_of, engine.lose_trace, LAZY_ROOT, engine.answers)
    with _making:
        _recorders[:] = [reference for reference in _recorders if reference() is not None] + [weakref.ref(created)]
    stash_in_thread(STASH, created)
    return created


@lru_cache(maxsize=4096)
def layout(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Layout:
    """Return the Layout of a tensor created with this size and stride, shared by all values of that kind.

    Raises NotImplementedError for a dtype that the device lacks, and RuntimeError for a size far too large for it.
    """
    engine = activation.engine()
    engine.check_dtype(dtype)
    engine.check_size(dtype, shape)
    return Layout(dtype, shape, stride)


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether the strides cover a block of memory without gaps or overlap, in some order of the dimensions."""
    if 0 in shape or stride == row_major(shape):
        return True
    step = 1
    for size, s in sorted(zip(shape, stride, strict=True), key=lambda d: (d[1], d[0])):
        if size != 1:
            if s != step:
                return False
            step *= size
    return True


def extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return the number of elements from the first to the last one that a tensor of this size and stride touches."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def wrap(value: Value) -> torch.Tensor:
    """Return a new tensor whose storage holds `value`, with the value's natural size and stride."""
    kind = value.layout
    tensor = empty_tensor(kind.shape, kind.dtype)
    if not kind.contiguous:
        tensor = reinterpret(tensor, kind.shape, kind.stride, 0)
    tensor.untyped_storage()._value = value  # pyright: ignore[reportAttributeAccessIssue]
    return tensor


def empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor whose memory nothing has written; it uses no buffer until it is written."""
    if is_dense(shape, stride):
        return wrap(resident(layout(dtype, shape, stride), EMPTY))
    size = extent(shape, stride)
    flat = wrap(resident(layout(dtype, (size,), (1,)), EMPTY))
    return as_strided(META, flat, shape, stride, 0)


def value_of(tensor: torch.Tensor) -> Value:
    """Return the value in the storage of a tpu tensor."""
    storage: Any = tensor.untyped_storage()
    return storage._value


def parts(tensor: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors with values of which `tensor` consists, each with its name in it.

    - A dense tensor of the device yields itself, named "".
    - A wrapper subclass yields the tensors inside it, at any depth.
    - A sparse tensor yields its indices and values.

    All other objects yield nothing: tensors on other devices, tensors that are only traced, and wrappers of torch.func.
    Attributes in `__tensor_flatten__` that are not tensors are skipped (a DTensor lists its mesh).
    """
    if not isinstance(tensor, torch.Tensor) or is_wrapped(tensor):
        return
    if has_tensors_inside(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _named(name, getattr(tensor, name))
    elif tensor.device.type != "tpu":
        return
    elif tensor.layout is torch.strided:
        if hasattr(tensor.untyped_storage(), "_value"):
            yield "", tensor
    elif tensor.layout is torch.sparse_coo:
        yield from _named("indices", tensor._indices())
        yield from _named("values", tensor._values())


def _named(name: str, inner: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for path, tensor in parts(inner):
        yield f"{name}.{path}" if path else name, tensor


def assign(tensor: torch.Tensor, value: Value) -> None:
    """Replace the value in a tensor's storage. Values are immutable, so storages may share one."""
    recorder().assign(tensor.untyped_storage(), value)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has a value of its own."""
    return next(parts(tensor), ("", None))[1] is tensor


def is_natural(tensor: torch.Tensor, kind: Layout) -> bool:
    """Return whether the tensor covers its storage like the tensor that created the storage."""
    return (
        tensor.shape == kind.shape
        and tensor.stride() == kind.stride
        and not tensor.storage_offset()
        and tensor.dtype is kind.dtype
    )

"""Kernels that copy: between tpu tensors, from the CPU, and to the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from lazytpu.frontend import activation, tensors
from lazytpu.frontend.lines import call_site
from lazytpu.frontend.observed import plain
from lazytpu.frontend.recording.creation import check_device
from lazytpu.frontend.recording.kernels import kernel
from lazytpu.frontend.recording.marks import ranges_of
from lazytpu.frontend.recording.overlap import check_no_internal_overlap
from lazytpu.frontend.torch_private import neg_view
from lazytpu.frontend.waits import Waiting
from lazytpu.trace.value import EMPTY, Value, again, resident

aten = torch.ops.aten


def read(value: Value, take: Callable[[Any], Any]) -> Any:
    """Return `take` of the buffer of a value, for which it may wait. All reads of values by the host are here.

    Raises the error that invalidated the value.
    """
    if value.buffer is None and value.recorder is not None:
        value.recorder.answer(value)
    if value.buffer is not None and value.buffer.host is not None:
        return take(materialize(value))
    with Waiting(value) as waiting:
        return take(materialize(value, waiting))


def materialize(value: Value, waiting: Waiting | None = None) -> Any:
    """Return the buffer of a value. For a pending value, run the records that it needs, and tell `waiting` of the cut.

    Raises the error that invalidated it.
    """
    if value.buffer is None:
        assert value.recorder is not None
        cut = value.recorder.read(value, call_site())
        if waiting is not None:
            waiting.cut = cut
    buffer: Any = value.buffer
    if buffer is None:
        raise RuntimeError(f"a value was never computed: the program that computes it was interrupted ({value})")
    if buffer.error is not None:
        raise again(buffer.error)
    return buffer


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor with the size, stride and contents of a tpu tensor, in memory of its own."""
    value = tensors.value_of(tensor)
    kind = value.layout
    size = tensors.extent(kind.shape, kind.stride)
    if value.buffer is EMPTY:
        flat = torch.zeros(size, dtype=kind.dtype)
    else:
        flat = read(value, lambda buffer: activation.engine().download(buffer, kind.dtype))
    if tensor.dtype is not kind.dtype:
        flat = flat.view(torch.uint8)
        flat = flat[: flat.numel() // tensor.dtype.itemsize * tensor.dtype.itemsize].view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def from_cpu(tensor: torch.Tensor, marked: torch.Tensor | None = None) -> Value:
    """Return a value with a snapshot of a CPU tensor; its layout is the tensor's when that is dense, else contiguous.

    Its dynamic dimensions are the ones marked on `marked`, the tensor from which it was derived, or else on `tensor`.
    """
    ranges = ranges_of(tensor if marked is None else marked)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    if not tensors.is_dense(shape, stride):
        tensor = tensor.contiguous()
        stride = tuple(tensor.stride())
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    kind = tensors.layout(tensor.dtype, shape, stride)
    return resident(kind, activation.engine().upload(flat, kind, call_site(), ranges))


def _resolved(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a lazily conjugated or negated tensor, or None for a tensor that is neither."""
    conjugated, negated = tensor.is_conj(), tensor.is_neg()
    if not conjugated and not negated:
        return None
    memory = neg_view(tensor) if negated else tensor  # clears the bit: a view of the memory as it is
    if conjugated:
        memory = kernel(aten._conj_physical.default).call(memory.conj())
    return kernel(aten.neg.default).call(memory) if negated else memory


_OF_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def copy_from(given: torch.Tensor | complex, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """The kernel of aten::_copy_from, which implements `target.copy_(given)` when either is on tpu.

    For `target.copy_(number)` torch passes the number.
    """
    number = not isinstance(given, torch.Tensor)
    marked = torch.tensor(given, dtype=_OF_NUMBERS[type(given)], device="cpu") if number else given
    source, target = plain(marked), plain(target)
    if hasattr(source.untyped_storage(), "_value") and hasattr(target.untyped_storage(), "_value"):
        # The attribute takes 0.1 us to read; torch takes 0.6 to return a tensor's device.
        if not (source.is_conj() or source.is_neg() or target.is_conj() or target.is_neg()):
            return _copy_on_device(source, target)
    resolved = _resolved(source) if source.device.type == "tpu" else source.resolve_conj().resolve_neg()
    source = source if resolved is None else resolved
    if target.is_neg():
        return copy_from(source.to(target.dtype).neg(), neg_view(target))
    if target.is_conj():
        return copy_from(source.conj_physical(), target.conj())
    if target.device.type != "tpu":
        if target.device.type == "meta":
            return target
        return target.copy_(to_cpu(source))
    kind = tensors.value_of(target).layout
    if source.device.type == "cpu":
        covers = tensors.is_natural(target, kind)
        if not covers:
            check_no_internal_overlap(target)
        _check_broadcast(source, target)
        if source.numel() == 1 and target.numel() != 1:
            return kernel(aten.fill_.Scalar).call(target, source.detach().to(target.dtype).item())
        ready = source.detach().to(target.dtype).expand(target.shape)
        if covers:
            shown = marked if source.shape == target.shape else ready
            tensors.assign(target, from_cpu(_laid_out(ready, target), shown))
            return target
        source = tensors.wrap(from_cpu(ready))
    elif source.device.type != "tpu":
        raise RuntimeError(f"cannot copy a tensor on {source.device} to {target.device}")
    return _copy_on_device(source, target)


def _copy_on_device(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Copy between tensors of the device that are neither lazily conjugated nor negated."""
    kind = tensors.value_of(target).layout
    if not target.is_contiguous():
        check_no_internal_overlap(target)
    if source.shape == target.shape and source.dtype is target.dtype and source.stride() == target.stride():
        shared = tensors.value_of(source)
        if tensors.is_natural(target, kind) and tensors.is_natural(source, shared.layout):
            tensors.assign(target, shared)  # a copy of the whole storage shares the value
            return target
        del shared  # it may be the overwritten value, which can be donated only when no name refers to it (R4)
        pending = tensors.value_of(target).buffer is None  # otherwise a step that fails restores the present value
        if pending and target.is_contiguous() and source.is_contiguous() and tensors.is_natural(target, kind):
            # A copy_ would take the overwritten value as an operand: after DDP's reduction, each gradient of the
            # program before it.
            copied = tensors.value_of(_recorded("clone")(source))
            if copied.layout.key == kind.key:
                tensors.assign(target, copied)
                return target
    if target.numel() == 0:
        _check_broadcast(source, target)
        return target
    return _recorded("copy_")(target, source)


@cache
def _recorded(name: str) -> Callable[..., Any]:
    """Return the kernel that records an op of aten."""
    return kernel(getattr(aten, name).default).call


def _check_broadcast(source: torch.Tensor, target: torch.Tensor) -> None:
    """Raise torch's RuntimeError when the source's shape does not broadcast to the target's."""
    if source.shape != target.shape:
        torch.empty(target.shape, device="meta").copy_(torch.empty(source.shape, device="meta"))


def _laid_out(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the CPU tensor with the strides of the tpu tensor to which it is copied."""
    if source.stride() == target.stride():
        return source
    return torch.empty_strided(target.shape, target.stride(), dtype=target.dtype).copy_(source)


def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The kernel of aten::_copy_from_and_resize."""
    return target.resize_(source.shape).copy_(source)


def local_scalar_dense(tensor: torch.Tensor) -> Any:
    """The kernel of aten::_local_scalar_dense, which implements `.item()`."""
    tensor = plain(tensor)
    value = tensors.value_of(tensor)
    dtype = value.layout.dtype
    if tensor.dtype is not dtype or value.buffer is EMPTY:
        return to_cpu(tensor).item()
    return read(value, lambda buffer: activation.engine().number(buffer, dtype, int(tensor.storage_offset())))


def clone(tensor: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """The kernel of aten::clone: shares the value when the clone has the layout of the storage, else copies the
    view."""
    tensor = plain(tensor)
    stride = _cloned_stride(tensor, memory_format)
    resolved = _resolved(tensor)
    if resolved is not None and resolved.stride() == stride:
        return resolved
    return _laid_out_as(tensor if resolved is None else resolved, stride)


def conj_physical(tensor: torch.Tensor) -> torch.Tensor:
    """The kernel of aten::_conj_physical. torch passes lazily conjugated tensors, whose conjugate is their memory."""
    return clone(tensor.conj()) if tensor.is_conj() else kernel(aten._conj_physical.default).call(tensor)


def _laid_out_as(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Return a copy with these strides."""
    kind = tensors.value_of(tensor).layout
    if tensors.is_natural(tensor, kind) and stride == kind.stride:
        return tensors.wrap(tensors.value_of(tensor))
    copy = tensors.empty(tuple(tensor.shape), stride, tensor.dtype)
    return copy if tensor.numel() == 0 else kernel(aten.copy_.default).call(copy, tensor)


def _cloned_stride(tensor: torch.Tensor, memory_format: torch.memory_format | None) -> tuple[int, ...]:
    """Return the strides of a clone: unchanged for a dense tensor, else dense in the same order of dimensions."""
    if memory_format in (None, torch.preserve_format) and aten.is_non_overlapping_and_dense.default(tensor):
        return tuple(tensor.stride())
    meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return tuple(torch.empty_like(meta, memory_format=memory_format or torch.preserve_format).stride())


_KEEPING = (None, torch.preserve_format)


def to_copy(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """The kernel of aten::_to_copy, with either side on tpu."""
    check_device(device)
    original, tensor = tensor, plain(tensor)
    device = tensor.device if device is None else device
    if tensor.device.type == "tpu" and (resolved := _resolved(tensor)) is not None:
        tensor = resolved
    dtype = dtype or tensor.dtype
    if device.type == "tpu" and tensor.device.type == "cpu" and dtype is tensor.dtype and memory_format in _KEEPING:
        if tensor.layout is torch.strided and tensors.is_dense(tuple(tensor.shape), tuple(tensor.stride())):
            # A batch of data: half the time of the general path below.
            return tensors.wrap(from_cpu(tensor, original))
    if device.type == "tpu" and tensor.device.type == "tpu" and dtype is tensor.dtype:
        return _laid_out_as(tensor, _cloned_stride(tensor, memory_format))
    if device.type == "tpu" and tensor.device.type == "tpu" and memory_format in _KEEPING:
        return kernel(aten._to_copy.default).call(tensor, dtype=dtype)
    stride = _cloned_stride(tensor, memory_format)
    if device.type == "tpu":
        copy = tensors.empty(tuple(tensor.shape), stride, dtype)
        if tensor.device.type == "tpu":
            return copy if tensor.numel() == 0 else kernel(aten.copy_.default).call(copy, tensor)
        return copy_from(tensor, copy)
    if device.type == "cpu" and dtype is tensor.dtype and not pin_memory:
        read = to_cpu(tensor)
        if read.stride() == stride and read.untyped_storage().nbytes() == read.nbytes:
            return read  # it owns its memory already
        return torch.empty_strided(tensor.shape, stride, dtype=dtype).copy_(read)
    copy = torch.empty_strided(tensor.shape, stride, dtype=dtype, device=device, pin_memory=bool(pin_memory))
    return copy if device.type == "meta" else copy.copy_(to_cpu(tensor))


KERNELS: dict[str, Any] = {
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from_and_resize,
    "_local_scalar_dense": local_scalar_dense,
    "clone": clone,
    "_conj_physical": conj_physical,
    "_to_copy": to_copy,
}

"""The functions that generated kernels call under the recorder's lock: an argument's part of the key, and new values
for results."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch

from lazytpu.frontend.tensors import wrap
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.value import Value


class Absent:
    """An argument that the caller left at its default; static, even for an argument that otherwise is a run-time
    number."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


def exact(value: Any) -> Any:
    """Return a static number's part of the key: its type counts, NaN equals itself, and -0.0 differs from 0.0 (R2)."""
    if value is None or value is ABSENT:
        return value
    plain = value and value == value and type(value) is not complex  # -0.0 may be a part of a complex number
    return (type(value), value if plain else repr(value))


def foreign(r: Recorder, value: Any) -> Any:
    """Return the key's part of a tensor argument that is not on tpu: None, a number, or a 0-d CPU tensor's number
    (R2)."""
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        r.numbers.append(value)
        return type(value)
    if value.device.type == "cpu" and value.dim() == 0:
        r.numbers.append(value.item())
        return ("cpu", value.dtype)
    if value.device.type == "tpu":
        raise RuntimeError("a tpu tensor without a value: its storage was made behind lazytpu's back")
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, tpu:0 and {value.device}!"
    )


def operands(r: Recorder, tensors: Any) -> Any:
    """Return the key's part of a list of tensors; the loop body is the same as for a single operand."""
    if tensors is None:
        return None
    e, tokens = r.epoch, []
    for t in tensors:
        try:
            v = t.untyped_storage()._value
        except AttributeError:
            tokens.append(foreign(r, t))
            continue
        k = v.slot if v.epoch == e else r.admit(v)
        o = v.layout
        if t.shape == o.shape and t.stride() == o.stride and not t.storage_offset() and t.dtype is o.dtype:
            tokens.append(k)
        else:
            tokens.append((k, t.shape, t.stride(), t.storage_offset(), t.dtype))
    return tuple(tokens)


def overwrite(r: Recorder, tensors: Any) -> None:
    """Create new values for the storages of a list of written tensors; the loop body is `Recorder.produce`."""
    e, slot, values = r.epoch, r.slots, r.values
    for t in tensors or ():
        storage = t.untyped_storage()
        value = Value(storage._value.layout, e, slot, None, r)
        slot += 1
        values.append(ref(value))
        storage._value = value
    r.slots = slot


def produce_all(r: Recorder, outs: Any) -> Any:
    """Create new values for the results of an op that has several; None stays None."""
    return [o if o is None else produce_all(r, o) if type(o) is tuple else r.produce(o) for o in outs]


def wrap_one(value: Value | None) -> torch.Tensor | None:
    """Return the tensor of one result among several."""
    return None if value is None else wrap(value)


def wrap_all(values: list[Value | None]) -> list[Any]:
    """Return the tensors of a list result."""
    return [wrap_one(v) for v in values]

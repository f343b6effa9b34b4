"""The value of a storage: one immutable array in a dense layout, pending or on the device."""

from __future__ import annotations

from typing import Any, Final, Protocol


class Layout:
    """The layout of a storage's array: the dtype, size and stride of the tensor that created the storage (R1).

    The strides are dense in some order of the dimensions; the array is row-major in that order. In the trie's keys, an
    input of this layout is `key`, and uninitialized memory of this layout is `empty_key`.
    """

    __slots__ = ("contiguous", "dtype", "empty_key", "key", "shape", "stride")

    def __init__(self, dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...]):
        self.dtype = dtype
        self.shape = shape
        self.stride = stride
        # With a size of 0 after the first dimension, torch's constructor for contiguous tensors returns other strides.
        self.contiguous = stride == row_major(shape) and 0 not in shape[1:]
        self.key = (dtype, shape, stride)
        self.empty_key = ("empty", dtype, shape, stride)

    @property
    def memory_order(self) -> list[int]:
        """The dimensions from the largest stride to the smallest; equal strides in the order of the dimensions."""
        return sorted(range(len(self.shape)), key=lambda dim: -self.stride[dim])

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """The array's shape: the sizes in memory order."""
        return tuple([self.shape[dim] for dim in self.memory_order])

    def __repr__(self) -> str:
        return f"Layout({self.dtype}, {self.shape}, {self.stride})"


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in elements, with torch's convention for sizes 0 and 1."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class DeviceBuffer(Protocol):
    """Device memory as the recorder sees it.

    `pins` counts the pending traces that use it. `error` is the error that invalidated it. `host` has its elements if
    the host knows them, else None; `constant` says whether it is a constant (see constants.py).
    """

    pins: int
    error: BaseException | None
    host: Any
    constant: bool


def again(error: BaseException) -> BaseException:
    """Return a copy of `error` without traceback and cause, for raising a stored error or storing a raised one.

    A traceback refers to the frames of all callers, and so to the user's tensors (R4).
    """
    copy = type(error).__new__(type(error))
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return copy


class Empty:
    """The buffer of memory that nothing has written: it takes no device memory, and reads as zeros."""

    pins = 0
    error = None

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Final = Empty()


class PendingIn(Protocol):
    """A recorder as a value sees it: methods to compute the value's buffer, and `lent`.

    `lent` has the value's slot here while another recorder's slot is stored in the value.
    """

    lent: dict[int, tuple[int, int]]

    def cut(self, cause: str | None = None, place: Any = None) -> Any:
        """Run all pending records."""
        ...

    def answer(self, value: Value) -> None:
        """Compute the value if nothing has to run for it."""
        ...

    def read(self, value: Value, place: Any = None) -> Any:
        """Run the records that the value needs, and return the cut."""
        ...


class Value:
    """An immutable array: the result of a record, or an input from the device.

    `buffer` is None while the value is pending in `recorder`; `slot` is its number in the trace `epoch`. Storages refer
    to values, and values never refer to storages or tensors. So a value lives exactly as long as it can be read (R4).
    """

    __slots__ = ("__weakref__", "buffer", "epoch", "layout", "recorder", "slot")

    buffer: Any
    epoch: int
    layout: Layout
    recorder: PendingIn | None
    slot: int

    def __init__(self, layout: Layout, epoch: int, slot: int, buffer: Any, recorder: PendingIn | None):
        self.layout = layout
        self.epoch = epoch
        self.slot = slot
        self.buffer = buffer
        self.recorder = recorder

    def __repr__(self) -> str:
        where = "pending" if self.buffer is None else repr(self.buffer)
        return f"Value({self.layout}, slot {self.slot} of trace {self.epoch}, {where})"


def resident(layout: Layout, buffer: Any) -> Value:
    """Return a value that is already on the device (or EMPTY), and in no trace."""
    return Value(layout, -1, -1, buffer, None)

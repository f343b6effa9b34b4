"""Execution of records on the host by torch's CPU kernels: which records are eligible, and how they run.

Values are 1-D CPU tensors of the elements in memory order, by slot. They are immutable while they are needed: an op
that writes gets a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import prod
from typing import Any, cast

import torch

from lazytpu.engine.cutting.host_random import RANDOM
from lazytpu.runtime.errors import RunError
from lazytpu.trace.extract import operands
from lazytpu.trace.trie import Number, Operand, Record
from lazytpu.trace.value import Layout

_MOVES = ("box", "cat", "clone", "copy", "stack", "repeat", "where", "with_box", "zero")
_FILLS = (
    "full",
    "full_like",
    "masked_fill",
    "new_full",
    "new_ones",
    "new_zeros",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
)
_EMPTY = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Names of ops whose results are uninitialized in torch, and zeros on devices."""
_COMPARISONS = (
    "eq",
    "ge",
    "gt",
    "isfinite",
    "isinf",
    "isnan",
    "le",
    "logical_and",
    "logical_not",
    "logical_or",
    "lt",
    "ne",
)
_ROUNDED_ONCE = ("_to_copy", "add", "div", "mul", "sub")
_PARTS_COMBINED = ("add", "div", "mean", "mul", "sub", "sum")
"""Ops that round parts of complex numbers several times, or multiply infinite parts by zero as torch's kernels do."""
_REDUCTIONS = ("all", "any", "mean", "sum")  # for floats, exact only with a single element
_OF_WHOLE_NUMBERS = (  # exact for integers: positions and masks in text generation
    "abs", "arange", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "clamp", "cumsum", "isin", "max",
    "maximum", "min", "minimum", "neg", "nonzero",
)  # fmt: skip
_EXACT = frozenset((*_MOVES, *_FILLS, *_EMPTY, *_COMPARISONS, *_ROUNDED_ONCE, *_REDUCTIONS, *_OF_WHOLE_NUMBERS))
_LIGHT = _EXACT | {"fill", "index_copy", "index_select", "tril", "triu"}
_DTYPES = frozenset(
    (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
)
_HALVES = (torch.float16, torch.bfloat16)
_FOREACH = "_foreach_"
_REFUSED = ("alpha", "rounding_mode", "out")  # these round twice or change the meaning


def _box(self: torch.Tensor, dims: list[int], starts: list[int], sizes: list[int]) -> torch.Tensor:
    for dim, start, size in zip(dims, starts, sizes, strict=True):
        self = self.narrow(dim, start, size)
    return self.clone()


def _with_box(self: torch.Tensor, box: torch.Tensor, dims: list[int], starts: list[int]) -> torch.Tensor:
    result = self.clone()
    window = result
    for dim, start in zip(dims, starts, strict=True):
        window = window.narrow(dim, start, box.shape[dim])
    window.copy_(box)
    return result


_OWN: dict[str, Callable[..., torch.Tensor]] = {
    "lazytpu.box.default": _box,
    "lazytpu.with_box.default": _with_box,
    "lazytpu.nonzero.default": lambda self, count: torch.nonzero(self),
}
"""Ops that torch does not have, and functions that compute them."""


def small(layout: Layout, elements: int) -> bool:
    """Return whether a value has a dtype that the host computes as devices do, and at most `elements` elements."""
    return layout.dtype in _DTYPES and prod(layout.shape) <= elements


def computable(record: Record, layouts: dict[int, Layout]) -> bool:
    """Return whether `compute` accepts a record. Floating-point results may be rounded differently than
    by its program."""
    if not str(record.op).startswith("aten.") and str(record.op) not in _OWN:
        return False
    if record.checks or (record.rng is not None and str(record.op) not in RANDOM):
        return False
    tensors = [operand for value in record.arguments.values() for operand in operands(value)]
    if any(operand.view is not None and operand.view[3] != layouts[operand.slot].dtype for operand in tensors):
        return False
    # Sums and products of matrices in half precision differ in how often kernels round within them.
    half = any(layout.dtype in _HALVES for layout in _made(record, layouts))
    if half and record.rng is None and _name(record) not in _EXACT and not _elementwise(record):
        return False
    # The integer that results from a NaN, or from a number out of range, depends on the device.
    floating = any(_floating(layouts[operand.slot]) for operand in tensors)
    integral = any(not _floating(layout) and layout.dtype is not torch.bool for layout in _made(record, layouts))
    return _name(record) not in ("_to_copy", "copy") or not floating or not integral


def _elementwise(record: Record) -> bool:
    name = _name(record)
    return torch.Tag.pointwise in record.op.tags or (name.startswith(_FOREACH) and not name.endswith("norm"))


def light(record: Record) -> bool:
    """Return whether a record does little work per element: it moves, fills or compares."""
    return _name(record) in _LIGHT


def exact(records: Sequence[Record], layouts: dict[int, Layout], limit: int) -> bool:
    """Return whether all records are `computable`, give the same bits on the host, and read at most `limit` elements
    per operand."""
    return all(_exact(record, layouts, limit) for record in records) and not _contracted(records, layouts)


def numeric(records: Sequence[Record], layouts: dict[int, Layout]) -> bool:
    """Return whether all values are single elements and all records, of lists too, give the same bits on the host."""
    numbers = all(prod(layout.shape) == 1 and layout.dtype in _DTYPES for layout in layouts.values())
    return numbers and all(_exact(r, layouts, 1, lists=True) for r in records) and not _contracted(records, layouts)


def last_uses(records: Sequence[Record], kept: Iterable[int]) -> list[set[int]]:
    """Return for each record the slots that it uses last, except those in `kept`."""
    last = {
        operand.slot: i
        for i, record in enumerate(records)
        for value in record.arguments.values()
        for operand in operands(value)
    }
    over: list[set[int]] = [set() for _ in records]
    for slot in last.keys() - set(kept):
        over[last[slot]].add(slot)
    return over


def compute(
    record: Record,
    flat: dict[int, torch.Tensor],
    layouts: dict[int, Layout],
    numbers: Sequence[Any],
    over: Collection[int] = (),
) -> list[int]:
    """Compute a record's results, add them to `flat`, and return their slots, those of empty inputs included. Raise
    whatever torch raises.

    Slots in `over` are not used afterwards, so they are overwritten in place.
    """
    # Allocate empty inputs, and the new values of written slots.
    allocated = {slot: layout for slot, layout, empty in record.admitted if empty}
    for slot, layout in allocated.items():
        flat[slot] = torch.zeros(prod(layout.shape), dtype=layout.dtype, device="cpu")
    latest: dict[int, int] = {}  # an op may write two views of one storage
    read = {x.slot for name, value in record.arguments.items() if name not in record.written for x in operands(value)}
    for name, slots in record.written.items():
        for operand, slot in zip(operands(record.arguments[name]), slots, strict=True):
            old = flat[latest.get(operand.slot, operand.slot)]
            flat[slot] = old if operand.slot in over and operand.slot not in read else old.clone()
            latest[operand.slot] = slot

    def argument(value: Any, written: bool) -> Any:
        if isinstance(value, Operand):
            slot = latest[value.slot] if written else value.slot
            return _view(flat[slot], layouts[slot], value)
        if isinstance(value, Number):
            number = numbers[value.index]
            return number if value.dtype is None else torch.tensor(number, dtype=value.dtype, device="cpu")
        if isinstance(value, list):
            return [argument(item, written) for item in cast("list[Any]", value)]
        return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value

    # Run the op on the CPU.
    arguments = {name: argument(value, name in record.written) for name, value in record.arguments.items()}
    if isinstance(arguments.get("device"), torch.device):
        arguments["device"] = torch.device("cpu")
    with torch.no_grad(), _as_they_are() if _name(record) in _FILLS else nullcontext():
        op: Any = _OWN.get(str(record.op)) or record.op
        returned = op(**arguments) if record.rng is None else _random(record, arguments, numbers)
        results = [result for result in _fresh(record, returned) if result is not None]
        present = [layout for layout in record.outs if layout is not None]
        # Store each result in memory order.
        for slot, layout, result in zip(record.out_slots, present, results, strict=True):
            if _name(record) in _EMPTY:
                result.zero_()
            if (result.dtype, tuple(result.shape)) != (layout.dtype, layout.shape):
                raise RunError(str(record.op), f"got {result.dtype} {tuple(result.shape)}, expected {layout}")
            if result.stride() == layout.stride:
                flat[slot] = result.as_strided((prod(layout.shape),), (1,))
            else:
                flat[slot] = torch.empty(prod(layout.shape), dtype=layout.dtype, device="cpu")
                flat[slot].as_strided(layout.shape, layout.stride).copy_(result)
    return [*allocated, *record.out_slots, *(slot for slots in record.written.values() for slot in slots)]


def _random(record: Record, arguments: dict[str, Any], numbers: Sequence[Any]) -> torch.Tensor:
    """Run a random op, which returns a new tensor or overwrites self."""
    assert record.rng is not None
    rng, self = (int(numbers[record.rng]), int(numbers[record.rng + 1])), arguments.get("self")
    layout = cast("Any", record.outs[0] if record.outs else self)
    drawn = RANDOM[str(record.op)](rng, (tuple(layout.shape), layout.dtype), **arguments)
    return drawn if record.outs else self.copy_(drawn)  # pyright: ignore[reportOptionalMemberAccess]


@contextmanager
def _as_they_are() -> Iterator[None]:
    """Disable flushing of denormals in the context: a fill value is copied, not computed, so a program keeps it."""
    flushing = sys.float_info.min / 2 == 0.0
    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushing)


def _fresh(record: Record, results: Any) -> Iterator[torch.Tensor | None]:
    """Yield the results of an op that are not aliases of arguments it writes."""
    returns = record.op._schema.returns
    for declared, result in zip(returns, results if len(returns) > 1 else [results][: len(returns)], strict=True):
        if declared.alias_info is None:
            yield from cast("list[torch.Tensor]", result) if isinstance(result, list) else [result]


def _view(flat: torch.Tensor, layout: Layout, operand: Operand) -> torch.Tensor:
    if operand.view is None:
        return flat.as_strided(layout.shape, layout.stride)
    size, stride, offset, _ = operand.view
    return flat.as_strided(size, stride, offset)


def _contracted(records: Sequence[Record], layouts: dict[int, Layout]) -> bool:
    """Return whether XLA may contract products and sums of floats into fused multiply-adds, which round once."""
    floating = [record for record in records if any(map(_floating, _made(record, layouts)))]
    names = {_name(record).removeprefix(_FOREACH) for record in floating}
    return "mul" in names and not names.isdisjoint(("add", "sub"))


def _made(record: Record, layouts: dict[int, Layout]) -> list[Layout]:
    """Return the layouts of the slots that a record creates or overwrites."""
    slots = [*record.out_slots, *(slot for slots in record.written.values() for slot in slots)]
    return [layouts[slot] for slot in slots]


def _floating(layout: Layout) -> bool:
    return layout.dtype.is_floating_point or layout.dtype.is_complex


def _name(record: Record) -> str:
    name = str(record.op).split(".")[1]
    return name.removesuffix("_") if record.written else name


def _exact(record: Record, layouts: dict[int, Layout], limit: int, *, lists: bool = False) -> bool:
    """Return whether one record gives the same bits on the host. With `lists`, an op of lists counts as that of their
    elements."""
    name = _name(record)
    of_lists = lists and name.startswith(_FOREACH)
    if of_lists:
        name = name.removeprefix(_FOREACH)
    if name not in _EXACT or any(n in record.arguments for n in _REFUSED) or not computable(record, layouts):
        return False
    if not of_lists and len(_made(record, layouts)) != 1:
        return False
    read = [operand for value in record.arguments.values() for operand in operands(value)]
    elements = [prod(layouts[x.slot].shape if x.view is None else x.view[0]) for x in read]
    if any(count > limit for count in elements):  # an expanded view repeats elements
        return False
    involved = [*(layouts[x.slot] for x in read), *_made(record, layouts)]
    if not any(map(_floating, involved)):
        return True
    if any(layout.dtype.is_complex for layout in involved) and name in _PARTS_COMBINED:
        return False
    return name not in _OF_WHOLE_NUMBERS and (name not in _REDUCTIONS or all(count == 1 for count in elements))

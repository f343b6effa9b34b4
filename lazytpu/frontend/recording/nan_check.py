"""The NaN check of debug mode: find the first op that produces a NaN or infinity from finite operands, and report
these."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from lazytpu.frontend import activation
from lazytpu.frontend.lines import user_line
from lazytpu.trace.extract import operands
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import EMPTY, Layout


class Watch:
    """One record that is about to run. It pins the operands, so that none is overwritten, until the results are
    checked."""

    def __init__(self, recorder: Recorder, record: Record):
        self.record = record
        self.numbers = list(recorder.numbers)
        self.values = recorder.values
        self.layouts: dict[int, Layout] = {slot: layout for slot, layout, _ in record.admitted}
        inputs = iter(recorder.buffers)
        self.buffers = {slot: EMPTY if empty else next(inputs) for slot, _, empty in record.admitted}
        for buffer in recorder.buffers:
            buffer.pins += 1

    def release(self) -> None:
        """Unpin the operands."""
        for buffer in self.buffers.values():
            if buffer is not EMPTY:
                buffer.pins -= 1

    def check(self) -> None:
        """Raise FloatingPointError, once the record has run, if a result is not finite though all operands are."""
        failures = [(name, count) for name, result in self._results() if (count := _not_finite(result))]
        if not failures or not all(map(_finite, (*self.numbers, *_static(self.record)))):
            return
        tensors = list(self._operands())
        if any(_not_finite(tensor) for _, tensor in tensors):
            return
        results = "; ".join(f"{name}: {count}" for name, count in failures)
        described = "".join(f"\n  {name}: {_statistics(tensor)}" for name, tensor in tensors)
        numbers = f"\n  numbers: {', '.join(map(repr, self.numbers))}" if self.numbers else ""
        raise FloatingPointError(
            f"{self.record.op} at {user_line()} produced non-finite results ({results}) from finite operands:"
            f"{described}{numbers}\n"
            "Keep such elements from the op (torch.where, clamp, an epsilon), or compute in a dtype of wider range."
        )

    def _operands(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, argument in self.record.arguments.items():
            for operand in operands(argument):
                buffer = self.buffers[operand.slot]
                if buffer is not EMPTY:
                    yield name, self._view(buffer, self.layouts[operand.slot], operand.view)

    def _results(self) -> Iterator[tuple[str, torch.Tensor]]:
        layouts = [layout for layout in self.record.outs if layout is not None]
        for i, (slot, layout) in enumerate(zip(self.record.out_slots, layouts, strict=True)):
            yield from self._result("the result" if len(layouts) == 1 else f"result {i}", slot, layout, None)
        for name, slots in self.record.written.items():
            for operand, slot in zip(operands(self.record.arguments[name]), slots, strict=True):
                yield from self._result(f"'{name}'", slot, self.layouts[operand.slot], operand)

    def _result(
        self, name: str, slot: int, layout: Layout, operand: Operand | None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        value = self.values[slot]()
        if value is not None and value.buffer is not None and value.buffer is not EMPTY:
            yield name, self._view(value.buffer, layout, None if operand is None else operand.view)

    def _view(self, buffer: Any, layout: Layout, view: Any) -> torch.Tensor:
        """Return the elements of a buffer as an argument sees them, on the CPU."""
        flat = activation.engine().download(buffer, layout.dtype)
        if view is None:
            return flat.as_strided(layout.shape, layout.stride)
        size, stride, offset, dtype = view
        if dtype is not layout.dtype:
            flat = flat.view(torch.uint8)
            flat = flat[: flat.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        return flat.as_strided(size, stride, offset)


def _static(record: Record) -> Iterator[Any]:
    for value in record.arguments.values():
        yield from value if isinstance(value, tuple) else (value,)


def _finite(number: Any) -> bool:
    if isinstance(number, complex):
        return math.isfinite(number.real) and math.isfinite(number.imag)
    return not isinstance(number, float) or math.isfinite(number)


def _not_finite(tensor: torch.Tensor) -> str:
    """Describe the number of NaN or infinite elements; empty if there are none."""
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return ""
    nans, infinities = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    if not nans and not infinities:
        return ""
    kinds = [f"{count} {word}" for count, word in ((nans, "NaN"), (infinities, "infinite")) if count]
    return f"{' and '.join(kinds)} of {tensor.numel()} elements"


def _statistics(tensor: torch.Tensor) -> str:
    kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    if tensor.dtype.is_complex:
        tensor = tensor.abs()
        kind += ", of magnitude"
    if not tensor.numel() or not (tensor.dtype.is_floating_point or tensor.dtype in _INTEGERS):
        return kind
    low, high, mean = (float(number) for number in (tensor.min(), tensor.max(), tensor.double().mean()))
    return f"{kind} from {low:.6g} to {high:.6g}, mean {mean:.6g}"


_INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}

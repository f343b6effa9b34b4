"""The result of a capture: the graph's records, its writes, and its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lazytpu.dynamo.placeholders import CaptureRecorder, NotOneRecord
from lazytpu.frontend import torch_private as private
from lazytpu.frontend.tensors import is_natural, value_of
from lazytpu.trace.trie import Record
from lazytpu.trace.value import EMPTY, Layout, Value

View = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]


@dataclass(frozen=True, slots=True)
class Input:
    """The tensor argument `index` itself (view None), or a view of its storage."""

    index: int
    view: View | None


@dataclass(frozen=True, slots=True)
class Fresh:
    """The value of `slot`, or a view of it. Results with the same slot share a storage."""

    slot: int
    view: View | None


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Memory that nothing has written. Results with the same `number` share a storage."""

    number: int
    layout: Layout
    view: View | None


@dataclass(frozen=True, slots=True)
class Static:
    """None or a number, as a constant of the graph."""

    value: Any


@dataclass(frozen=True, slots=True)
class RandomState:
    """The generator's state: before draw `index` in a forward graph, or argument `index` in a backward graph."""

    index: int


Result = Input | Fresh | Unwritten | Static | RandomState


@dataclass(frozen=True, slots=True)
class Expressed:
    """Records with expressions for their numbers.

    `symbols` maps a symbol to its (argument, dimension). `layouts` maps an argument to its layout with expressions.
    """

    records: tuple[Record, ...]
    symbols: Mapping[str, tuple[int, int]]
    layouts: Mapping[int, Layout]


@dataclass(frozen=True, slots=True)
class Capture:
    """A graph as records, for inputs of certain layouts.

    - `inputs`: slot -> index of the argument. `uploads`: slot -> constant of the graph.
    - `written`: argument -> slot of its storage's new value.
    - `values`: the layout of each slot that a storage holds afterwards, inputs excepted. `slots` counts all slots.
    - `numbers`: the run-time numbers. They are constants, except for the seed and offset of each random op.
    - `draws`: the indices of these seeds, each with its source. None is the generator; else (argument that is a
      generator state, number of draws after it).
    - `given`: (index of a number, index of the 0-d CPU argument that supplies it).
    - `results`: the results of the graph.
    - `expressed`: the records with expressions, if known.
    """

    records: tuple[Record, ...]
    inputs: dict[int, int]
    uploads: dict[int, Value]
    written: dict[int, int]
    values: dict[int, Layout]
    slots: int
    numbers: tuple[Any, ...]
    draws: tuple[tuple[int, tuple[int, int] | None], ...]
    given: tuple[tuple[int, int], ...]
    results: tuple[Result, ...]
    expressed: Expressed | None = None


class Summary:
    """Builds the `Capture`, in terms of the graph's arguments and the slots of its trace."""

    def __init__(self, inner: CaptureRecorder, stand_ins: Sequence[Any], before: Sequence[Value | None]):
        self.inner = inner
        self.stand_ins = stand_ins
        self.storages: dict[int, int] = {}  # storage -> the first argument with it
        self.inputs: dict[int, int] = {}
        self.values: dict[int, Layout] = {}
        self.unwritten: dict[int, int] = {}
        for index, value in enumerate(before):
            if value is not None:
                self.storages.setdefault(id(stand_ins[index].untyped_storage()), index)
                if value.epoch == inner.epoch:
                    self.inputs.setdefault(value.slot, index)

    def of(
        self,
        before: Sequence[Value | None],
        results: Sequence[Any],
        sources: dict[int, tuple[int, int]],
        expressed: Expressed | None,
    ) -> Capture:
        """Return the capture of a graph that returned `results`. `before` has the values that its arguments had."""
        written: dict[int, int] = {}
        for index in self.storages.values():
            value = value_of(self.stand_ins[index])
            if value is not before[index]:
                written[index] = self._slot(value)
        returned = tuple([self._result(result) for result in results])
        records = tuple(self.inner.state.records())
        draws = [record.rng for record in records if record.rng is not None]
        return Capture(
            records,
            self.inputs,
            {self.inner.slot(value): value for value in self.inner.uploads},
            written,
            self.values,
            self.inner.slots,
            tuple(self.inner.numbers),
            tuple([(index, sources.get(number)) for number, index in enumerate(draws)]),
            tuple(self.inner.given.items()),
            returned,
            expressed,
        )

    def _slot(self, value: Value) -> int:
        if value.epoch != self.inner.epoch:
            raise NotOneRecord("it keeps a constant")
        if value in self.inner.uploads:
            raise NotOneRecord("it returns a constant")
        if value.slot not in self.inputs:
            self.values[value.slot] = value.layout
        return value.slot

    def _result(self, result: Any) -> Result:
        if result is None or isinstance(result, bool | int | float | complex):
            return Static(result)
        if isinstance(result, RandomState):
            return result
        if not isinstance(result, torch.Tensor):
            raise NotOneRecord(f"it returns a {type(result).__name__}")
        if result.layout is not torch.strided:
            raise NotOneRecord("it returns a sparse tensor")
        if result.device.type != "tpu":
            raise NotOneRecord(f"it returns a tensor on {result.device}")
        if result.is_conj() or result.is_neg():
            raise NotOneRecord("it returns a tensor that is conjugated or negated lazily")
        for index, stand_in in enumerate(self.stand_ins):
            if result is stand_in:
                return Input(index, None)
        index = self.storages.get(id(result.untyped_storage()))
        if index is not None:
            return Input(index, view_of(result))
        value = value_of(result)
        view = None if is_natural(result, value.layout) else view_of(result)
        if value.buffer is EMPTY and value.epoch != self.inner.epoch:
            number = self.unwritten.setdefault(id(result.untyped_storage()), len(self.unwritten))
            return Unwritten(number, value.layout, view)
        return Fresh(self._slot(value), view)


def view_of(tensor: torch.Tensor) -> View:
    """Return a tensor's view of its storage."""
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype


def viewed(base: torch.Tensor, view: View) -> torch.Tensor:
    """Return a new tensor on the storage of `base`."""
    size, stride, offset, dtype = view
    return private.set_storage(
        private.META, private.empty_tensor((0,), dtype), base.untyped_storage(), offset, list(size), list(stride)
    )

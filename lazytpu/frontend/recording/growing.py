"""States of the trie that the engine makes by itself, since they differ from known ones in sizes alone: what it asks of
torch for them, and where they are looked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from lazytpu.frontend import activation
from lazytpu.frontend.inference.infer import infer
from lazytpu.frontend.recording.lines import user_line
from lazytpu.frontend.recording.tensors import empty, layout
from lazytpu.options import options
from lazytpu.ports import Inference
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import Number, Operand, Record, State
from lazytpu.trace.value import Layout


def grown(parent: State, key: tuple[Any, ...]) -> State | None:
    """The child of a state that its record was not seen at, if it is known but for its sizes."""
    if options.buckets == "off":
        return None
    if parent.grown:
        parent.grown = False  # once: the trace goes on in another way than most
        _grow_again(parent)
    elif parent.key is None and parent.recorded and not parent.grows:
        parent.grows = activation.engine().grows(parent)
    for grow in parent.grows:
        grow(parent, key, INFERENCE)
    return parent.next.get(key)


def _grow_again(state: State) -> None:
    """Let what is known by now grow along the states up to this one, and behind it: they may be older."""
    while state.parent is not None and not state.parent.grows:
        state = state.parent
    if state.parent is not None and state.key is not None:
        for grow in state.parent.grows:
            grow(state.parent, state.key, INFERENCE)


class _Inference(Inference):
    def layout(self, dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> Layout:
        return layout(dtype, shape, stride)

    def agrees(self, records: Sequence[Record], numbers: Iterable[int]) -> bool:
        layouts = Slots(records).layouts
        try:
            return all(_keys(_fresh(records[i], layouts)) == _keys(records[i].outs) for i in numbers)
        except Exception:  # noqa: BLE001  (torch refuses these sizes, in one of many ways: recording meets it again)
            return False

    def outs(self, record: Record, layouts: Mapping[int, Layout]) -> Sequence[Layout | None]:
        return _flat(_fresh(record, layouts))

    def at(self, record: Record) -> bool:
        return record.in_backward or record.line == user_line()


INFERENCE = _Inference()


def _fresh(record: Record, layouts: Mapping[int, Layout]) -> list[Any]:
    """The layouts of new results that torch infers for the arguments of a record."""
    bound = {name: _argument(value, layouts) for name, value in record.arguments.items()}
    results = infer(record.op, bound)
    returns = record.op._schema.returns
    return [result for result, ret in zip(results, returns, strict=True) if not _is_written(ret)]


def _is_written(ret: Any) -> bool:
    return ret.alias_info is not None and ret.alias_info.is_write


def _flat(outs: Any) -> list[Any]:
    flat: list[Any] = []
    for out in outs:
        flat.extend(_flat(out) if isinstance(out, tuple) else [out])
    return flat


def _keys(outs: Any) -> list[Any]:
    return [out.key if isinstance(out, Layout) else out for out in _flat(outs)]


def _argument(value: Any, layouts: Mapping[int, Layout]) -> Any:
    """An argument as the op has it; memory of tensors holds nothing."""
    if isinstance(value, Operand):
        if value.view is None:
            own = layouts[value.slot]
            return empty(own.shape, own.stride, own.dtype)
        size, stride, _, dtype = value.view
        return empty(size, stride, dtype)
    if isinstance(value, Number):
        return value.kind(1) if value.dtype is None else torch.ones((), dtype=value.dtype)
    if isinstance(value, list):
        return [_argument(v, layouts) for v in value]
    return value

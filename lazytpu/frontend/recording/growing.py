"""Derived states: states of the trie that differ from existing ones only in sizes. The engine creates them; this module
performs shape inference by torch for it, and looks them up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch

from lazytpu.frontend import activation
from lazytpu.frontend.inference.infer import derive, infer
from lazytpu.frontend.lines import user_line
from lazytpu.frontend.tensors import empty, layout
from lazytpu.options import options
from lazytpu.ports import Inference
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import Number, Operand, Record, State
from lazytpu.trace.value import Layout


def grown(parent: State, key: tuple[Any, ...]) -> State | None:
    """Return the derived child of a state for a record of new sizes; None if no child can be derived."""
    if options.buckets == "off":
        return None
    sizes = parent.sizes
    if sizes.grown:
        parent.sizes = sizes._replace(grown=False)  # only once: the trace continues differently from most
        _grow_again(parent)
    elif parent.key is None and parent.recorded and not sizes.grows:
        parent.sizes = sizes._replace(grows=activation.engine().grows(parent))
    for grow in parent.sizes.grows:
        grow(parent, key, INFERENCE)
    return parent.next.get(key)


def _grow_again(state: State) -> None:
    """Derive states again along the path to this state and behind it: these may be older than the known size
    relations."""
    while state.parent is not None and not state.parent.sizes.grows:
        state = state.parent
    if state.parent is not None and state.key is not None:
        for grow in state.parent.sizes.grows:
            grow(state.parent, state.key, INFERENCE)


class _Inference(Inference):
    def layout(self, dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> Layout:
        return layout(dtype, shape, stride)

    def agrees(self, records: Sequence[Record], numbers: Iterable[int]) -> bool:
        layouts = Slots(records).layouts
        try:
            return all(_keys(_fresh(records[i], layouts)) == _keys(records[i].outs) for i in numbers)
        except Exception:  # noqa: BLE001 (torch rejects these sizes in some way; recording raises it again)
            return False

    def derived(self, record: Record, layouts: Mapping[int, Layout]) -> Sequence[Layout | None]:
        bound = {name: _argument(value, layouts, _meta) for name, value in record.arguments.items()}
        return _flat(_new(record, derive(record.op, bound)))

    def at(self, record: Record) -> bool:
        return record.in_backward or record.line == user_line()


INFERENCE = _Inference()


def _fresh(record: Record, layouts: Mapping[int, Layout]) -> list[Any]:
    """Return the layouts of new results that torch infers for the arguments of a record."""
    bound = {name: _argument(value, layouts, empty) for name, value in record.arguments.items()}
    return _new(record, infer(record.op, bound))


def _new(record: Record, results: Sequence[Any]) -> list[Any]:
    """Return the results that are not written arguments."""
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


def _argument(value: Any, layouts: Mapping[int, Layout], tensor: Callable[..., torch.Tensor]) -> Any:
    """Return an argument as the op takes it. `tensor` creates an uninitialized tensor of a size, strides and dtype."""
    if isinstance(value, Operand):
        if value.view is None:
            natural = layouts[value.slot]
            return tensor(natural.shape, natural.stride, natural.dtype)
        size, stride, _, dtype = value.view
        return tensor(size, stride, dtype)
    if isinstance(value, Number):
        return value.kind(1) if value.dtype is None else torch.ones((), dtype=value.dtype)
    if isinstance(value, list | tuple):
        return [_argument(v, layouts, tensor) for v in cast("Sequence[Any]", value)]
    if isinstance(value, torch.device) and tensor is _meta:
        return torch.device("meta")
    return value


def _meta(size: Sequence[Any], stride: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")

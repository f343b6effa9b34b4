"""Ops that write a part of a view whose elements overlap (R1).

If the whole view were written, an element that the op leaves alone could overwrite one that it sets, where both are one
element of memory. So the op is applied to the memory instead of the view:

1. An op that sets elements is applied to a view of -1, with the numbers of its source's elements as source. The result
   is, for each element of the view, the number of the source element that is written there.
2. Of several elements of a view that are one element of memory, the largest number wins: the last write.
3. An op that adds, multiplies, or takes the larger is applied to a view of its identity, and the result is combined
   with the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from lazytpu.aten.indexing.gather import MASKS, indexed, take
from lazytpu.aten.indexing.scatter import KINDS, identity
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.scalars import KINDS as SCALARS
from lazytpu.aten.scalars import Scalar
from lazytpu.aten.views.access import Base, View, read, write
from lazytpu.aten.views.steps import INDEX, Take
from lazytpu.ir.types import dtype_of, numpy_dtype, shape_of

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

    Apply: TypeAlias = Callable[[dict[str, Any]], SSAValue]

__all__ = ["combined", "write_part"]

# op -> the name of the argument that it writes; None for zeros.
_SOURCES: dict[str, str | None] = {
    "aten::index_add_": "source",
    "aten::index_copy_": "source",
    "aten::index_fill_": "value",
    "aten::index_put_": "values",
    "aten::_index_put_impl_": "values",
    "aten::index_reduce_": "source",
    "aten::masked_fill_": "value",
    "aten::masked_scatter_": "source",
    "aten::put_": "source",
    "aten::scatter_": "src",
    "aten::scatter_add_": "src",
    "aten::scatter_reduce_": "src",
    "aten::tril_": None,
    "aten::triu_": None,
}
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def combined(op: OpOverload, bound: dict[str, Any]) -> str | None:
    """Return how an op that writes a part of `self` combines a new element with an old one: "set", "add", "mul", "max",
    "min" or "mean". None for ops that write all of it."""
    name = op._schema.name
    if name not in _SOURCES:
        return None
    if reduce := bound.get("reduce"):
        return reduce if reduce == "mean" else KINDS[reduce]
    return "add" if bound.get("accumulate") or name in ("aten::scatter_add_", "aten::index_add_") else "set"


def write_part(
    b: Builder, op: OpOverload, memory: SSAValue, base: Base, view: View, bound: dict[str, Any], apply: Apply
) -> SSAValue:
    """Return the storage's new value after `op`, which `combined` knows, wrote to the view.

    `apply` returns the op's result for other arguments than `bound`: a view of the same size, with the dtype of `self`.
    """
    count = base.extent * _bytes(base.dtype) // _bytes(view.dtype)
    flat_view = View((count,), (1,), 0, view.dtype)
    flat = read(b, memory, base, flat_view)
    places = b.reshape(Take((count,), 0, view.offset, view.size, view.stride).numbers(b), (prod(view.size), 1))
    kind, source = combined(op, bound), _SOURCES[op._schema.name]
    if source == "src" and source not in bound:
        source = "value"  # scatter_ of a number
    if source is None:
        new = _zeroed(b, flat, places, view, apply)
    elif kind in ("set", "mean"):
        new = (_set if kind == "set" else _averaged)(b, flat, places, view, bound, source, apply)
    else:
        assert kind is not None
        kind = "max" if (kind, view.dtype) == ("add", "i1") else kind
        new = _combine(b, flat, places, view, bound, kind, source, apply)
    return write(b, memory, base, flat_view, new)


def _zeroed(b: Builder, flat: SSAValue, places: SSAValue, view: View, apply: Apply) -> SSAValue:
    """`flat` with zeros at the elements that the op, applied to ones, makes zero."""
    kept = apply({"self": b.constant(1, INDEX, view.size)})
    least = _scattered(b, b.constant(1, INDEX, shape_of(flat)), places, kept, "min")
    return b.select(b.compare("EQ", least, full(b, 0, least)), full(b, 0, flat), flat)


def _set(
    b: Builder, flat: SSAValue, places: SSAValue, view: View, bound: dict[str, Any], source: str, apply: Apply
) -> SSAValue:
    """`flat` with the last element of the source that the op writes to each place."""
    value = _source(b, view, bound, source)
    if type(value) in SCALARS:
        value = Scalar(SCALARS[type(value)], value)
    if isinstance(value, Scalar):
        values, numbers = b.reshape(b.scalar(value, view.dtype), (1,)), Scalar("int", 0)
    else:
        count = prod(shape_of(value))
        values = b.reshape(b.convert(value, view.dtype), (count,))
        numbers = b.reshape(b.iota(INDEX, (count,), 0), shape_of(value))
    return _last(b, flat, places, apply({"self": b.constant(-1, INDEX, view.size), source: numbers}), values)


def _averaged(
    b: Builder, flat: SSAValue, places: SSAValue, view: View, bound: dict[str, Any], source: str, apply: Apply
) -> SSAValue:
    """`flat` with the means of the view at the elements that the op averages."""
    reached = _reached(b, view, bound, source, apply)
    numbers = b.reshape(b.iota(INDEX, (prod(view.size),), 0), view.size)
    numbered = b.select(b.compare("GT", reached, full(b, 0, reached)), numbers, full(b, -1, numbers))
    return _last(b, flat, places, numbered, b.reshape(apply({}), (prod(view.size),)))


def _reached(b: Builder, view: View, bound: dict[str, Any], source: str, apply: Apply) -> SSAValue:
    """1 where a reduction writes to the view, else 0."""
    ones = b.constant(1, INDEX, shape_of(bound[source]))
    return apply({"self": b.constant(0, INDEX, view.size), source: ones, "reduce": "amax", "include_self": True})


def _last(b: Builder, flat: SSAValue, places: SSAValue, numbered: SSAValue, values: SSAValue) -> SSAValue:
    """`flat` with the value of the largest number of each place; of -1 there is none."""
    if shape_of(values) == (0,):
        return flat
    winner = _scattered(b, b.constant(-1, INDEX, shape_of(flat)), places, numbered, "max")
    new = take(b, values, b.max(winner, full(b, 0, winner)), 0)
    return b.select(b.compare("GE", winner, full(b, 0, winner)), new, flat)


def _combine(
    b: Builder,
    flat: SSAValue,
    places: SSAValue,
    view: View,
    bound: dict[str, Any],
    kind: str,
    source: str,
    apply: Apply,
) -> SSAValue:
    """`flat` combined, by addition for example, with the op's result for a view of its identity. Without
    `include_self`, the old elements at the places that the op reaches are ignored."""
    neutral = identity(b, _REDUCTIONS[kind], b.constant(0, view.dtype, view.size))
    if bound.get("include_self") is False:
        reached = _reached(b, view, bound, source, apply)
        hit = _scattered(b, b.constant(0, INDEX, shape_of(flat)), places, reached, "max")
        flat = b.select(b.compare("GT", hit, full(b, 0, hit)), identity(b, _REDUCTIONS[kind], flat), flat)
        return _scattered(b, flat, places, apply({"self": neutral, "include_self": True}), kind)
    return _scattered(b, flat, places, apply({"self": neutral}), kind)


def _source(b: Builder, view: View, bound: dict[str, Any], name: str) -> Any:
    """The values that the op writes. Values placed by integer indices have an element for each place."""
    used = [i for i in bound.get("indices", ()) if i is not None]
    if used and not any(dtype_of(i) in MASKS for i in used):
        return b.broadcast_to(bound[name], indexed(b, view.size, bound["indices"], check=False).result)
    return bound[name]


def _scattered(b: Builder, flat: SSAValue, places: SSAValue, values: SSAValue, kind: str) -> SSAValue:
    """`flat` with the elements of a view combined into the element of memory that each of them is."""
    return b.scatter(
        flat,
        places,
        b.reshape(values, shape_of(places)[:1]),
        kind=kind,
        update_window_dims=(),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
        index_vector_dim=1,
    )


def _bytes(dtype: str) -> int:
    return numpy_dtype(dtype).itemsize

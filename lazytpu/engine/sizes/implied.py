"""Layouts of results that are implied by those of the operands, at all sizes alike.

What a derived state says of a result, Python sees at once, so it must be what torch says. For most records of a step
that is proven once, on the size expressions of a sample: of elementwise ops, products and a few more it is known here
which sizes results have. Of all others torch is asked at each new size (`Inference.agrees`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from lazytpu.aten.schema import functional
from lazytpu.engine.sizes.skeletons import STRUCTURE, dense_order
from lazytpu.ir.forms import Form, form
from lazytpu.trace.extract import operands
from lazytpu.trace.trie import Operand, Record

Sizes = tuple[Form, ...]


@dataclass(frozen=True)
class Shape:
    """The sizes of a tensor. A `dense` one is row-major without gaps; its strides may `vary`."""

    sizes: Sizes
    dense: bool
    varies: bool


Arguments = Mapping[str, Any]
"Of a record, by name: a Shape for a tensor, a Form for an integer."
Rule = Callable[[Arguments], "Sequence[Sizes] | None"]
"""The sizes of the results, which are dense, for which torch refuses none of the arguments; None where that is not
known. Symbols stand for sizes of at least 2."""


@dataclass
class Implied:
    """The shapes of the slots of a trace, record by record."""

    shapes: dict[int, Shape] = field(default_factory=dict[int, Shape])

    def add(self, record: Record, forms: Iterator[Form]) -> bool:
        """Whether the layouts of the next record's results are implied. `forms` are its integers, in the order of
        `skeletons.take_apart`."""
        for slot, layout, _ in record.admitted:
            self.shapes[slot] = _shape(layout.shape, layout.stride, forms)
        arguments = {
            name: value if name in STRUCTURE else self._argument(value, forms)
            for name, value in record.arguments.items()
        }
        outs = [_shape(layout.shape, layout.stride, forms) for layout in record.outs if layout is not None]
        self.shapes.update(zip(record.out_slots, outs, strict=True))
        for name, slots in record.written.items():
            for operand, slot in zip(operands(record.arguments[name]), slots, strict=True):
                self.shapes[slot] = self.shapes[operand.slot]
        if not any(map(_varies, (*arguments.values(), *outs))):
            return True
        rule = RULES.get(str(record.op)) or (_elementwise if _is_pointwise(record) else _unknown)
        expected = rule(arguments)
        if record.written:  # in place: the result is what is written
            targets = [arguments[name] for name in record.written]
            return expected is not None and not outs and [getattr(x, "sizes", None) for x in targets] == [*expected]
        return expected is not None and all(out.dense for out in outs) and [out.sizes for out in outs] == [*expected]

    def _argument(self, value: Any, forms: Iterator[Form]) -> Any:
        if type(value) is int:
            return next(forms)
        if isinstance(value, Operand):
            if value.view is None:
                return self.shapes[value.slot]
            size, stride, _, _ = value.view
            shape = _shape(size, stride, forms)
            next(forms)  # where it begins
            return shape
        if isinstance(value, list | tuple):
            return [self._argument(each, forms) for each in cast("Sequence[Any]", value)]
        return value


def _shape(size: Sequence[int], stride: Sequence[int], forms: Iterator[Form]) -> Shape:
    order = dense_order(size, stride)
    sizes = tuple([next(forms) for _ in size])
    strides = [next(forms) for _ in size] if order is None else []
    return Shape(sizes, order == tuple(range(len(sizes))), any(each.number is None for each in (*sizes, *strides)))


def _varies(value: Any) -> bool:
    if isinstance(value, Shape):
        return value.varies
    if isinstance(value, Form):
        return value.number is None
    return isinstance(value, list) and any(map(_varies, cast("list[Any]", value)))


def _is_pointwise(record: Record) -> bool:
    op = functional(record.op) if record.written else record.op
    return op is not None and torch.Tag.pointwise in op.tags


def _unknown(arguments: Arguments) -> None:
    return None


def _broadcast(*shapes: Sizes) -> Sizes | None:
    """The sizes of what is computed of tensors of these sizes element by element."""
    result: list[Form] = []
    for i in range(1, max(map(len, shapes), default=0) + 1):
        sizes = {shape[-i] for shape in shapes if len(shape) >= i} - {form(1)}
        if len(sizes) > 1:
            return None
        result.insert(0, next(iter(sizes), form(1)))
    return tuple(result)


def _dense(*values: Any) -> bool:
    return all(isinstance(value, Shape) and value.dense for value in values)


def _elementwise(arguments: Arguments) -> Sequence[Sizes] | None:
    """Of dense tensors; the order of the dimensions of others may depend on their strides."""
    values = list(arguments.values())
    given = [value for value in values if isinstance(value, Shape)]
    if not _dense(*given) or any(isinstance(value, list) for value in values):
        return None
    sizes = _broadcast(*[value.sizes for value in given])
    return None if sizes is None else [sizes]


def _like(name: str) -> Rule:
    """A result like the argument of this name."""

    def rule(arguments: Arguments) -> Sequence[Sizes] | None:
        return [arguments[name].sizes] if _dense(arguments[name]) else None

    return rule


def _like_both(arguments: Arguments) -> Sequence[Sizes] | None:
    """A gradient of a result of the same sizes."""
    grad, output = arguments["grad_output"], arguments["output"]
    return [grad.sizes] if _dense(grad, output) and grad.sizes == output.sizes else None


def _product(left: str, right: str, added: str = "") -> Rule:
    """A product of matrices, or of batches of them, to which something may be added."""

    def rule(arguments: Arguments) -> Sequence[Sizes] | None:
        one, other = arguments[left].sizes, arguments[right].sizes
        if len(one) != len(other) or one[-1] != other[-2] or one[:-2] != other[:-2]:
            return None
        sizes = *one[:-1], other[-1]
        return [sizes] if not added or _broadcast(arguments[added].sizes, sizes) == sizes else None

    return rule


def _sum(arguments: Arguments) -> Sequence[Sizes] | None:
    value, dims = arguments["self"], arguments["dim"]
    if not _dense(value):
        return None
    rank = len(value.sizes)
    gone = {dim % rank for dim in dims} if dims and rank else set(range(rank))
    if arguments.get("keepdim"):
        return [tuple([form(1) if i in gone else size for i, size in enumerate(value.sizes)])]
    return [tuple([size for i, size in enumerate(value.sizes) if i not in gone])]


def _layer_norm(arguments: Arguments) -> Sequence[Sizes] | None:
    value, inner = arguments["input"], tuple(arguments["normalized_shape"])
    if not _dense(value) or not _fits_inner(arguments, inner):
        return None
    outer = value.sizes[: len(value.sizes) - len(inner)]
    means = *outer, *[form(1)] * len(inner)
    return [value.sizes, means, means]


def _layer_norm_backward(arguments: Arguments) -> Sequence[Sizes] | None:
    value, grad, inner = arguments["input"], arguments["grad_out"], tuple(arguments["normalized_shape"])
    if not _dense(value, grad) or value.sizes != grad.sizes or not _fits_inner(arguments, inner):
        return None
    means = *value.sizes[: len(value.sizes) - len(inner)], *[form(1)] * len(inner)
    if any(arguments[name].sizes != means for name in ("mean", "rstd")):
        return None
    return [sizes for sizes, asked in zip((value.sizes, inner, inner), arguments["output_mask"], strict=True) if asked]


def _fits_inner(arguments: Arguments, inner: Sizes) -> bool:
    weights = [arguments.get(name) for name in ("weight", "bias")]
    own = arguments["input"].sizes
    return own[len(own) - len(inner) :] == inner and all(w is None or w.sizes == inner for w in weights)


def _stack(arguments: Arguments) -> Sequence[Sizes] | None:
    values = cast("list[Shape]", arguments["tensors"])
    if not _dense(*values) or len({value.sizes for value in values}) != 1:
        return None
    sizes = list(values[0].sizes)
    sizes.insert(arguments.get("dim", 0) % (len(sizes) + 1), form(len(values)))
    return [tuple(sizes)]


def _cat(arguments: Arguments) -> Sequence[Sizes] | None:
    values = cast("list[Shape]", arguments["tensors"])
    if not _dense(*values) or any(size == form(0) for value in values for size in value.sizes):
        return None
    shapes = [value.sizes for value in values]
    dim = arguments.get("dim", 0) % max(1, len(shapes[0]))
    if len({(*sizes[:dim], *sizes[dim + 1 :]) for sizes in shapes}) != 1 or len(set(map(len, shapes))) != 1:
        return None
    total = form(0)
    for sizes in shapes:
        total = total + sizes[dim]
    return [(*shapes[0][:dim], total, *shapes[0][dim + 1 :])]


def _copy(arguments: Arguments) -> Sequence[Sizes] | None:
    """In place, whatever the strides."""
    own, other = arguments["self"].sizes, arguments["src"]
    return [own] if isinstance(other, Shape) and _broadcast(own, other.sizes) == own else None


RULES: Mapping[str, Rule] = {
    "aten.mm.default": _product("self", "mat2"),
    "aten.bmm.default": _product("self", "mat2"),
    "aten.addmm.default": _product("mat1", "mat2", "self"),
    "aten.baddbmm.default": _product("batch1", "batch2", "self"),
    "aten.sum.dim_IntList": _sum,
    "aten.mean.dim": _sum,
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.copy_.default": _copy,
    "aten._softmax.default": _like("self"),
    "aten._log_softmax.default": _like("self"),
    "aten._softmax_backward_data.default": _like_both,
    "aten._log_softmax_backward_data.default": _like_both,
    "aten.gelu.default": _elementwise,
    "aten.gelu_backward.default": _elementwise,
    "aten.ones_like.default": _like("self"),
    "aten.zeros_like.default": _like("self"),
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
}
"""By op. All others but elementwise ones are unknown."""

"""Scaled dot-product attention as one op, forward and backward.

Query [batch, heads, L, E], key [batch, kv heads, S, E], value [batch, kv heads, S, V], of one float dtype; query head h
attends to key head h // (heads / kv heads). The output, [batch, heads, L, V], is

    softmax(scale · query·keyᵀ + bias, masked) · value

with scores and probabilities in f32 for f16 and bf16. `decompose-attention` writes this out in other ops; on a TPU,
`flash-attention` takes a kernel for it where that pays.

    %5 = lazytpu.attention %q, %k, %v, %mask extra = "bias" causal = true scale = 0.125 precision = highest : ...

A query that sees no key, because masks hide them all, gives what `hidden` says: `zeros`, as torch's function; `nan`, as
the softmax of a row of -inf; `mean`, of all values, as the softmax of a row of one large negative number. Hidden scores
have no gradient; with `added`, because the mask was added to the scores, they have the softmax's, which is other than 0
for such queries alone.

`extra` names the operands after the value, in this order: `bias` (i1: False hides; a float: is added; it broadcasts to
the scores [batch, heads, L, S]), `scale` (0-d, in the scores' dtype), `offset` (0-d i32), `dropout` (four 0-d: the
probability to keep, f32; what is kept is multiplied by, in the scores' dtype; seed and offset, ui64). Kept is what
has 24 random bits below 2^24 times that probability, the upper ones of `random_bits` of the scores' shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import AnyTensorType, FloatAttr, IntegerAttr, f64, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import base, irdl_op_definition, prop_def, result_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer

from lazytpu.ir.base import FALSE, FLAG, INT, TENSOR, WORD, TensorOp, check_dtype, integer, one_of
from lazytpu.ir.contractions import PRECISIONS
from lazytpu.ir.literals import from_literal, parse_literal, to_text
from lazytpu.ir.types import dtype_of, shape_of, string, tensor_type, type_of

EXTRA = ("bias", "scale", "offset", "dropout")
"What `extra` may name, in the order of the operands."
DTYPES = frozenset(("f16", "bf16", "f32", "f64"))

SCALE = base(FloatAttr)
UNSCALED = FloatAttr(1.0, f64)
ZERO = IntegerAttr(0, i64)
NOTHING = string("")
HIDDEN = ("zeros", "nan", "mean")
"What a query that sees no key gives."
ZEROS = string("zeros")


@dataclass(frozen=True)
class Attention:
    """What one attention computes: the operands and properties of both ops."""

    query: SSAValue
    key: SSAValue
    value: SSAValue
    bias: SSAValue | None = None
    factor: SSAValue | None = None
    "The scale when it is a run-time number."
    offset: SSAValue | None = None
    "How far the queries' positions are ahead of the keys', when it is not known to be 0."
    dropout: tuple[SSAValue, SSAValue, SSAValue, SSAValue] | None = None
    causal: bool = False
    "Query i sees key j only if j <= i + offset."
    window: int = 0
    "Query i sees key j only if i + offset - window < j; 0: all."
    scale: float = 1.0
    precision: str = "highest"
    "Of the products, when they are of f32."
    hidden: str = "zeros"
    "What a query that sees no key gives, one of `HIDDEN`."
    added: bool = False
    "Whether hidden scores have a gradient."

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores, [batch, heads, L, S]."""
        return (*shape_of(self.query)[:3], shape_of(self.key)[2])

    @property
    def operands(self) -> tuple[SSAValue, ...]:
        found = (self.query, self.key, self.value, self.bias, self.factor, self.offset, *(self.dropout or ()))
        return tuple(x for x in found if x is not None)

    def properties(self) -> dict[str, Attribute]:
        given = (self.bias, self.factor, self.offset, self.dropout)
        extra = ",".join(name for name, x in zip(EXTRA, given, strict=True) if x is not None)
        return {
            "extra": string(extra),
            "causal": IntegerAttr(int(self.causal), FALSE.type),
            "window": IntegerAttr(self.window, i64),
            "scale": FloatAttr(self.scale, f64),
            "precision": string(self.precision),
            "hidden": string(self.hidden),
            "added": IntegerAttr(int(self.added), FALSE.type),
        }


class _AttentionOp(TensorOp):
    """What both ops share: operands after the first few by name, and the scale as a number."""

    inputs = var_operand_def(TENSOR)
    extra = prop_def(WORD, NOTHING)
    causal = prop_def(FLAG, FALSE)
    window = prop_def(INT, ZERO)
    scale = prop_def(SCALE, UNSCALED)
    precision = prop_def(WORD)
    hidden = prop_def(WORD, ZEROS)
    added = prop_def(FLAG, FALSE)

    def print_property(self, name: str, printer: Printer) -> None:
        if name == "scale":
            printer.print_string(to_text(self.properties[name]))
        elif name == "extra":
            printer.print_attribute(self.properties[name])
        else:
            super().print_property(name, printer)

    @classmethod
    def parse_property(cls, name: str, parser: Parser) -> Attribute:
        return from_literal(parse_literal(parser), "f64") if name == "scale" else super().parse_property(name, parser)

    def described(self, operands: Sequence[SSAValue]) -> Attention:
        """What is computed, given the operands from the query on; raises ValueError where they do not fit `extra`."""
        extra = _extra(self.properties["extra"])
        wanted = 3 + len(extra) + 3 * ("dropout" in extra)
        if len(operands) != wanted:
            raise ValueError(
                f"expected {wanted} operands from the query on, for extra = {list(extra)}; got {len(operands)}"
            )
        rest = list(operands[3:])
        bias = rest.pop(0) if "bias" in extra else None
        factor = rest.pop(0) if "scale" in extra else None
        offset = rest.pop(0) if "offset" in extra else None
        dropout = (rest[0], rest[1], rest[2], rest[3]) if "dropout" in extra else None
        scale = self.properties["scale"]
        assert isinstance(scale, FloatAttr)
        query, key, value = operands[:3]
        return Attention(
            query,
            key,
            value,
            bias,
            factor,
            offset,
            dropout,
            causal=bool(integer(self.properties["causal"])),
            window=integer(self.properties["window"]),
            scale=scale.value.data,
            precision=one_of(self.properties["precision"], PRECISIONS, "precision"),
            hidden=one_of(self.properties["hidden"], HIDDEN, "hidden"),
            added=bool(integer(self.properties["added"])),
        )


@irdl_op_definition
class AttentionOp(_AttentionOp):
    """The output."""

    name = "lazytpu.attention"
    result = result_def(TENSOR)

    @property
    def attention(self) -> Attention:
        return self.described(self.operands)

    def infer(self) -> Sequence[AnyTensorType]:
        return (attention_type(self.attention),)


@irdl_op_definition
class AttentionBackwardOp(_AttentionOp):
    """Gradients of query, key and value (and of a float bias, with `of_bias`) from that of the output, the first
    operand. Nothing else of the forward op is needed: what both compute is shared in one program, and computed anew in
    another (https://arxiv.org/abs/2205.14135)."""

    name = "lazytpu.attention_backward"
    of_bias = prop_def(FLAG, FALSE)
    gradients = var_result_def(TENSOR)

    HEAD: ClassVar = None

    @property
    def attention(self) -> Attention:
        return self.described(self.operands[1:])

    def infer(self) -> Sequence[AnyTensorType]:
        if not self.operands:
            raise ValueError("expected the output's gradient as the first operand")
        return gradient_types(self.operand_type(0), self.attention, bool(integer(self.of_bias)))


def _extra(prop: Attribute) -> tuple[str, ...]:
    text = getattr(prop, "data", "")
    names = tuple(text.split(",")) if text else ()
    if names != tuple(name for name in EXTRA if name in names):
        raise ValueError(f"extra is {text!r}; expected some of {', '.join(EXTRA)}, in this order, with commas between")
    return names


def attention_type(of: Attention) -> AnyTensorType:
    """The type of the output; raises ValueError where operands do not fit each other."""
    query, key, value = shapes = [shape_of(x) for x in (of.query, of.key, of.value)]
    dtype = dtype_of(of.query)
    check_dtype(dtype, DTYPES, "a query")
    if any(len(shape) != 4 for shape in shapes) or {dtype_of(of.key), dtype_of(of.value)} != {dtype}:
        given = ", ".join(str(x.type) for x in (of.query, of.key, of.value))
        raise ValueError(f"query, key and value are 4-d (batch, heads, length, width) and of one dtype; got {given}")
    if query[0] != key[0] or query[3] != key[3] or key[:3] != value[:3]:
        raise ValueError(f"batch, length or width of query {query}, key {key} and value {value} do not fit")
    if query[1] % max(key[1], 1):
        raise ValueError(f"the heads of the query ({query[1]}) are not a multiple of those of the key ({key[1]})")
    _check_extra(of)
    return tensor_type(dtype, (*query[:3], value[3]))


def _check_extra(of: Attention) -> None:
    if of.bias is not None:
        shape, scores = shape_of(of.bias), of.scores
        fits = len(shape) <= 4 and all(n in (1, m) for n, m in zip(reversed(shape), reversed(scores), strict=False))
        if not fits or dtype_of(of.bias) not in DTYPES | {"i1"}:
            raise ValueError(f"bias is i1 or a float and broadcasts to the scores {list(scores)}; got {of.bias.type}")
    if of.factor is not None and (shape_of(of.factor) != () or of.scale != 1.0):
        raise ValueError(f"scale is a number or a 0-d operand; got {of.scale} and {of.factor.type}")
    if of.offset is not None and of.offset.type != tensor_type("i32", ()):
        raise ValueError(f"offset is tensor<i32>; got {of.offset.type}")
    own = "f64" if dtype_of(of.query) == "f64" else "f32"
    numbers = (("f32", "probability to keep"), (own, "factor"), ("ui64", "seed"), ("ui64", "offset"))
    for (dtype, what), x in zip(numbers, of.dropout or (), strict=False):
        if x.type != tensor_type(dtype, ()):
            raise ValueError(f"the {what} of dropout is tensor<{dtype}>; got {x.type}")
    if of.window < 0:
        raise ValueError(f"window is {of.window}; expected a number of keys, or 0 for all")


def gradient_types(grad: AnyTensorType, of: Attention, of_bias: bool) -> list[AnyTensorType]:
    """The types of the gradients; raises ValueError where the output's has another type than the output."""
    output = attention_type(of)
    if grad != output:
        raise ValueError(f"the output's gradient is {grad}; expected the output's type {output}")
    found = [type_of(x) for x in (of.query, of.key, of.value)]
    if not of_bias:
        return found
    if of.bias is None or dtype_of(of.bias) == "i1":
        raise ValueError("of_bias asks for the gradient of a float bias, and there is none")
    return [*found, type_of(of.bias)]

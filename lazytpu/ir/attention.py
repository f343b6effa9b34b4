"""Scaled dot-product attention as one op, forward and backward.

Query [batch, heads, L, E], key [batch, kv heads, S, E], value [batch, kv heads, S, V], of one float dtype; query head h
attends to key head h // (heads / kv heads). The output, [batch, heads, L, V], is

    softmax(scale · query·keyᵀ + bias, masked) · value

with scores and probabilities in f32 for f16 and bf16. `decompose-attention` decomposes it into other ops; on a TPU,
`flash-attention` uses a kernel for it where that pays.

    %5 = lazytpu.attention %q, %k, %v, %mask extra = "bias" causal = true scale = 0.125 precision = highest : ...

A query that sees no key, because masks hide all of them, gives what `hidden` says: `zeros`, as torch's function does;
`nan`, the softmax of a row of -inf; or `mean`, of all values, from the softmax of a row of one large negative number.
Hidden scores have no gradient. With `added`, for a mask that is added to the scores, they have the gradient of the
softmax, which is nonzero only for such queries.

`extra` names the operands after the value, in this order: `bias` (i1: False hides; float: added; broadcasts to the
scores [batch, heads, L, S]), `scale` (0-d, of the scores' dtype), `offset` (0-d i32), `dropout` (four 0-d operands: the
keep probability, f32; the factor of what is kept, of the scores' dtype; seed and offset, ui64). A probability is kept
if the upper 24 bits of its `random_bits`, drawn in the scores' shape, are below 2^24 times the keep probability.
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
"The names that `extra` may have, in the order of the operands."
DTYPES = frozenset(("f16", "bf16", "f32", "f64"))

SCALE = base(FloatAttr)
UNSCALED = FloatAttr(1.0, f64)
ZERO = IntegerAttr(0, i64)
NOTHING = string("")
HIDDEN = ("zeros", "nan", "mean")
"The results of a query that sees no key."
ZEROS = string("zeros")


@dataclass(frozen=True)
class Attention:
    """The operands and properties of an attention, which both ops share."""

    query: SSAValue
    key: SSAValue
    value: SSAValue
    bias: SSAValue | None = None
    factor: SSAValue | None = None
    "The scale when it is a run-time number."
    offset: SSAValue | None = None
    "How far the positions of queries are ahead of those of keys; None for 0."
    dropout: tuple[SSAValue, SSAValue, SSAValue, SSAValue] | None = None
    causal: bool = False
    "Query i sees key j only if j <= i + offset."
    window: int = 0
    "Query i sees key j only if i + offset - window < j; 0 for no window."
    scale: float = 1.0
    precision: str = "highest"
    "Precision of the products of f32."
    hidden: str = "zeros"
    "The result of a query that sees no key, one of `HIDDEN`."
    added: bool = False
    "Whether hidden scores have a gradient."

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores, [batch, heads, L, S]."""
        return (*shape_of(self.query)[:3], shape_of(self.key)[2])

    @property
    def operands(self) -> tuple[SSAValue, ...]:
        optional = (self.query, self.key, self.value, self.bias, self.factor, self.offset, *(self.dropout or ()))
        return tuple(x for x in optional if x is not None)

    def properties(self) -> dict[str, Attribute]:
        operands = (self.bias, self.factor, self.offset, self.dropout)
        extra = ",".join(name for name, x in zip(EXTRA, operands, strict=True) if x is not None)
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
    """The common base of both ops: optional operands named by `extra`, and the properties."""

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
        """The attention with these operands, from the query on. Raises ValueError where they do not match `extra`."""
        extra = _extra(self.properties["extra"])
        expected = 3 + len(extra) + 3 * ("dropout" in extra)
        if len(operands) != expected:
            raise ValueError(
                f"expected {expected} operands from the query on, for extra = {list(extra)}; got {len(operands)}"
            )
        extras = list(operands[3:])
        bias = extras.pop(0) if "bias" in extra else None
        factor = extras.pop(0) if "scale" in extra else None
        offset = extras.pop(0) if "offset" in extra else None
        dropout = (extras[0], extras[1], extras[2], extras[3]) if "dropout" in extra else None
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
    """Scaled dot-product attention, [batch, heads, L, V]."""

    name = "lazytpu.attention"
    result = result_def(TENSOR)

    @property
    def attention(self) -> Attention:
        return self.described(self.operands)

    def infer(self) -> Sequence[AnyTensorType]:
        return (attention_type(self.attention),)


@irdl_op_definition
class AttentionBackwardOp(_AttentionOp):
    """Gradients of query, key and value (and of a float bias, with `of_bias`) from the gradient of the output, the
    first operand. No other value of the forward op is needed: what both ops compute is shared within a program, and
    recomputed across programs (https://arxiv.org/abs/2205.14135)."""

    name = "lazytpu.attention_backward"
    of_bias = prop_def(FLAG, FALSE)
    gradients = var_result_def(TENSOR)

    HEAD: ClassVar = None

    @property
    def attention(self) -> Attention:
        return self.described(self.operands[1:])

    def infer(self) -> Sequence[AnyTensorType]:
        if not self.operands:
            raise ValueError("expected the gradient of the output as the first operand")
        return gradient_types(self.operand_type(0), self.attention, bool(integer(self.of_bias)))


def _extra(prop: Attribute) -> tuple[str, ...]:
    text = getattr(prop, "data", "")
    names = tuple(text.split(",")) if text else ()
    if names != tuple(name for name in EXTRA if name in names):
        raise ValueError(f"extra is {text!r}; expected names from {', '.join(EXTRA)}, in this order, comma-separated")
    return names


def attention_type(of: Attention) -> AnyTensorType:
    """The type of the output. Raises ValueError where operands do not match."""
    query, key, value = shapes = [shape_of(x) for x in (of.query, of.key, of.value)]
    dtype = dtype_of(of.query)
    check_dtype(dtype, DTYPES, "a query")
    if any(len(shape) != 4 for shape in shapes) or {dtype_of(of.key), dtype_of(of.value)} != {dtype}:
        types = ", ".join(str(x.type) for x in (of.query, of.key, of.value))
        raise ValueError(
            f"query, key and value must be 4-d (batch, heads, length, width) and of one dtype; got {types}"
        )
    if query[0] != key[0] or query[3] != key[3] or key[:3] != value[:3]:
        raise ValueError(f"batch, length or width of query {query}, key {key} and value {value} do not match")
    if query[1] % max(key[1], 1):
        raise ValueError(f"the heads of the query ({query[1]}) are not a multiple of those of the key ({key[1]})")
    _check_extra(of)
    return tensor_type(dtype, (*query[:3], value[3]))


def _check_extra(of: Attention) -> None:
    if of.bias is not None:
        shape, scores = shape_of(of.bias), of.scores
        fits = len(shape) <= 4 and all(n in (1, m) for n, m in zip(reversed(shape), reversed(scores), strict=False))
        if not fits or dtype_of(of.bias) not in DTYPES | {"i1"}:
            raise ValueError(
                f"bias must be i1 or a float and broadcast to the scores {list(scores)}; got {of.bias.type}"
            )
    if of.factor is not None and (shape_of(of.factor) != () or of.scale != 1.0):
        raise ValueError(f"scale must be a number or a 0-d operand; got {of.scale} and {of.factor.type}")
    if of.offset is not None and of.offset.type != tensor_type("i32", ()):
        raise ValueError(f"offset must be tensor<i32>; got {of.offset.type}")
    scores_dtype = "f64" if dtype_of(of.query) == "f64" else "f32"
    numbers = (("f32", "keep probability"), (scores_dtype, "factor"), ("ui64", "seed"), ("ui64", "offset"))
    for (dtype, role), x in zip(numbers, of.dropout or (), strict=False):
        if x.type != tensor_type(dtype, ()):
            raise ValueError(f"the {role} of dropout must be tensor<{dtype}>; got {x.type}")
    if of.window < 0:
        raise ValueError(f"window is {of.window}; expected a number of keys, or 0 for all")


def gradient_types(grad: AnyTensorType, of: Attention, of_bias: bool) -> list[AnyTensorType]:
    """The types of the gradients. Raises ValueError when `grad` is not the type of the output, and for `of_bias`
    without a float bias."""
    output = attention_type(of)
    if grad != output:
        raise ValueError(f"the gradient of the output is {grad}; expected the type of the output, {output}")
    types = [type_of(x) for x in (of.query, of.key, of.value)]
    if not of_bias:
        return types
    if of.bias is None or dtype_of(of.bias) == "i1":
        raise ValueError("of_bias asks for the gradient of a float bias, but there is none")
    return [*types, type_of(of.bias)]

"""Scaled dot-product attention as one op, forward and backward (see lazytpu/ir/attention.py).

query [batch, heads, L, E], key [batch, kv heads, S, E], value [batch, kv heads, S, V]; the batch dim is optional.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from lazytpu.aten.linalg.contractions import ACCUMULATOR
from lazytpu.aten.pointwise.operands import wide
from lazytpu.aten.random.draws import keep_and_scale
from lazytpu.aten.registry import rule
from lazytpu.ir.attention import Attention
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder

Stream = tuple["SSAValue", "SSAValue"]


def _batched(b: Builder, x: SSAValue) -> SSAValue:
    return x if len(shape_of(x)) == 4 else b.reshape(x, [1, *shape_of(x)])


def _attention(
    b: Builder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    bias: SSAValue | None,
    causal: bool,
    scale: Scalar | None,
    dropout: tuple[Scalar, Stream] | None = None,
) -> Attention:
    """The operands and options of the dialect's op; the scale defaults to 1/√E."""
    compute = ACCUMULATOR.get(dtype_of(query), dtype_of(query))
    factor, number = None, 1 / sqrt(shape_of(query)[-1])
    if scale is not None and scale.plan is not None:
        factor, number = b.scalar(scale, compute), 1.0
    elif scale is not None:
        number = float(scale.value)
    drop = None if dropout is None else (*keep_and_scale(b, dropout[0], compute), *dropout[1])
    operands = _batched(b, query), _batched(b, key), _batched(b, value)
    return Attention(*operands, bias, factor, dropout=drop, causal=causal, scale=number, precision=b.precision)


@rule("lazytpu.attention.default", specialized=("scale",))
def attention(
    b: Builder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    bias: SSAValue | None,
    causal: bool,
    scale: Scalar | None,
) -> SSAValue:
    """The output, [batch, heads, L, V]."""
    return b.reshape(b.attention(_attention(b, query, key, value, bias, causal, scale)), b.out[0][1])


@rule("lazytpu.attention_dropout.default", numbers=("dropout",), specialized=("scale",), random=True)
def attention_dropout(
    b: Builder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    bias: SSAValue | None,
    causal: bool,
    scale: Scalar | None,
    dropout: Scalar,
    rng: Stream,
) -> tuple[SSAValue, ...]:
    """(output, seed, offset), the last two as i64: the backward op draws the same numbers from that stream."""
    output = b.attention(_attention(b, query, key, value, bias, causal, scale, (dropout, rng)))
    seed, offset = (b.bitcast_convert(x, "i64") for x in rng)
    return b.reshape(output, b.out[0][1]), seed, offset


@rule("lazytpu.attention_backward.default", numbers=("dropout",), specialized=("scale",))
def attention_backward(
    b: Builder,
    grad: SSAValue,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    bias: SSAValue | None,
    seed: SSAValue | None,
    offset: SSAValue | None,
    causal: bool,
    scale: Scalar | None,
    dropout: Scalar,
    of_bias: bool,
) -> tuple[SSAValue | None, ...]:
    """Gradients of (query, key, value, bias)."""
    drop = None
    if seed is not None and offset is not None:
        drop = dropout, (b.bitcast_convert(seed, "ui64"), b.bitcast_convert(offset, "ui64"))
    forward = _attention(b, query, key, value, bias, causal, scale, drop)
    of_bias = of_bias and bias is not None
    gradients = b.attention_backward(_batched(b, grad), forward, of_bias)
    reshaped = [b.reshape(x, shape_of(of_what)) for x, of_what in zip(gradients, (query, key, value), strict=False)]
    return *reshaped, gradients[3] if of_bias else None


@rule("aten._transform_bias_rescale_qkv.default")
def biased_heads(
    b: Builder, qkv: SSAValue, qkv_bias: SSAValue, num_heads: int
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Queries, keys and values [batch, heads, length, features] of a projection [batch, length, 3 heads features] with
    its bias; the queries are divided by the root of their features. f16 and bf16 are rounded once."""
    batch, length, _ = shape_of(qkv)
    dtype, (_, _, _, features) = b.out[0]
    compute = wide(dtype)
    bias = b.broadcast_in_dim(b.convert(qkv_bias, compute), shape_of(qkv), [2])
    total = b.add(b.convert(qkv, compute), bias)
    heads = b.transpose(b.reshape(total, (batch, length, 3, num_heads, features)), (2, 0, 3, 1, 4))
    query, key, value = (
        b.reshape(b.slice(heads, (i, 0, 0, 0, 0), (i + 1, batch, num_heads, length, features)), b.out[0][1])
        for i in range(3)
    )
    query = b.mul(query, b.constant(1 / sqrt(features), compute, shape_of(query)))
    return b.convert(query, dtype), b.convert(key, dtype), b.convert(value, dtype)

"""Attention: a mask hides the padding of the keys, which a kernel applies in its tiles, and multiplied padding is 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from xdsl.ir import SSAValue

from lazytpu.ir import attention as ops
from lazytpu.ir.attention import Attention
from lazytpu.ir.base import integer
from lazytpu.ir.types import dtype_of, shape_of
from lazytpu.passes.padding.dims import Dim, Refused, contiguous, merged, merged_all
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Walk, rule

DECOMPOSE = "run decompose-attention before the sizes are annotated"


@rule(ops.AttentionOp)
def attention(w: Walk, op: ops.AttentionOp) -> Sequence[Padded]:
    """Hide padded keys. The result has the batch, heads and length of the query and the width of the value."""
    of = op.attention
    batch, query, key = _lengths(w, of)
    width = w.dims(of.value)[3]
    _clean(w, op, of, query, key, first=0)
    return [Padded((batch, w.dims(of.query)[1], query, width))]


@rule(ops.AttentionBackwardOp)
def backward(w: Walk, op: ops.AttentionBackwardOp) -> Sequence[Padded]:
    """Mask the gradient of padded queries, so that they add 0 to the gradients of keys and values."""
    of = op.attention
    batch, query, key = _lengths(w, of)
    merged_all([w.dims(op.operands[0])[:1], (batch,)])
    merged(w.dims(op.operands[0])[2], query)
    if integer(op.of_bias) and (query.padded or key.padded or batch.padded):
        raise Refused(f"the gradient of a bias is summed over a sized dimension; {DECOMPOSE}")
    if query.padded and of.hidden == "nan" and (of.bias is not None or not _sees_itself(w, of, query, key)):
        raise Refused(f"queries in the padding may see no key, which gives NaN; {DECOMPOSE}")
    if query.padded or key.padded:
        w.mask_operand(op, 0, [2], 0)
    _clean(w, op, of, query, key, first=1)
    heads = [w.dims(x)[1] for x in (of.query, of.key)]
    q = (batch, heads[0], query, w.dims(of.query)[3])
    k, v = ((batch, heads[1], key, w.dims(x)[3]) for x in (of.key, of.value))
    bias = [w.dims(of.bias)] if of.bias is not None and len(op.results) > 3 else []
    return [Padded(dims) for dims in (q, k, v, *bias)]


def _clean(
    w: Walk, op: ops.AttentionOp | ops.AttentionBackwardOp, of: Attention, query: Dim, key: Dim, first: int
) -> None:
    """Set the padding of query, key and value to 0, and of an added bias, so that all probabilities are finite; hide
    padded keys.

    Forward and backward ops do this in the same way, so that they share computations.
    """
    if query.padded or key.padded:
        for index in range(first, first + 3):
            w.mask_operand(op, index, [2], 0)
    if query.padded and of.bias is not None and dtype_of(of.bias) != "i1":
        w.mask_operand(op, first + 3, range(len(w.dims(of.bias))), 0)
    if key.padded:
        _hide(w, op, of, query, key, first)


def _lengths(w: Walk, of: Attention) -> tuple[Dim, Dim, Dim]:
    """Return the dimensions of the batch, the queries and the keys. Raise Refused if other dimensions are padded."""
    q, k, v = (w.dims(x) for x in (of.query, of.key, of.value))
    if any(dims[i].padded for dims in (q, k, v) for i in (1, 3)):
        raise Refused("the heads or the width of an attention are sized")
    batch, key = merged(merged(q[0], k[0]), v[0]), merged(k[2], v[2])
    if of.dropout is not None and (q[2].padded or key.padded):
        raise Refused(f"dropout of an attention draws bits for sized scores; {DECOMPOSE}")
    if of.bias is not None:
        _check_bias(w, of.bias, (batch, q[1], q[2], key))
    return batch.settled, q[2].settled, key.settled


def _check_bias(w: Walk, bias: SSAValue, scores: Sequence[Dim]) -> None:
    """Raise Refused if the padding of a bias differs from the padding of the scores."""
    dims = w.dims(bias)
    for dim, score in zip(dims, scores[len(scores) - len(dims) :], strict=True):
        if dim.size == score.size and (dim.size > 1 or dim.padded):
            merged(dim, score)
        elif dim.padded:
            raise Refused("a sized dimension of a bias is repeated")


def _sees_itself(w: Walk, of: Attention, query: Dim, key: Dim) -> bool:
    """Return whether each query sees the key at its own index and none after it, so that no true query sees padding."""
    ahead = key.total - query.total
    return of.causal and of.offset is None and key.size >= query.size and ahead.range(w.shared.symbols)[0] >= 0


def _hide(
    w: Walk, op: ops.AttentionOp | ops.AttentionBackwardOp, of: Attention, query: Dim, key: Dim, first: int
) -> None:
    """Hide the padding of the keys from all queries, by an i1 bias, or by -inf in an added bias.

    Nothing is needed if each query only sees keys up to its own index.
    """
    contiguous(key)
    if of.hidden == "mean":
        raise Refused(f"queries that see no key take the mean of all keys, padding included; {DECOMPOSE}")
    least = key.total.range(w.shared.symbols)[0]
    if of.hidden == "nan" and least < 1:
        raise Refused(f"an attention over {key.total} keys, which may be none, is 0, and NaN where they are hidden")
    if _sees_itself(w, of, query, key):
        return
    if of.bias is not None and dtype_of(of.bias) != "i1":
        if least < 1:
            raise Refused(f"a bias is added to the scores of {key.total} keys, which may be none; {DECOMPOSE}")
        op.operands[first + 3] = _hidden_by_infinity(w, op.operands[first + 3], key)
        return
    b, operands, scores = w.builder, list(op.operands), of.scores
    mask = w.mask((key,), (0,))
    assert mask is not None
    if of.bias is None:
        operands.insert(first + 3, b.broadcast_in_dim(mask, (1, 1, 1, scores[3]), (3,)))
    else:
        bias_shape = shape_of(of.bias)
        shape = [*([1] * (4 - len(bias_shape))), *bias_shape][:3] + [scores[3]]
        wide = b.broadcast_to(of.bias, shape)
        operands[first + 3] = b.and_(wide, b.broadcast_in_dim(mask, shape, (3,)))
    op.operands = operands
    described = replace(of, bias=operands[first + 3])
    op.properties["extra"] = described.properties()["extra"]


def _hidden_by_infinity(w: Walk, bias: SSAValue, key: Dim) -> SSAValue:
    """Return an added bias with -inf in the padding of the keys, whose scores are 0: softmax gives them no weight."""
    shape, dims = shape_of(bias), w.dims(bias)
    if shape[-1:] != (key.size,):  # broadcast along the keys
        shape, dims = (*shape[:-1], key.size), (*dims[:-1], key)
        bias = w.builder.broadcast_to(bias, shape)
        w.shared.values[bias] = Padded(tuple(dims))
    return w.masked(bias, [len(shape) - 1], -inf)

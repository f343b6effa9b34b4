"""`flash-attention`: attention by a kernel that keeps no scores, where it pays; elsewhere written out.

    %3 = lazytpu.attention %q, %k, %v causal = true scale = 0.125
    %4, %5, %6 = lazytpu.attention_backward %g, %q, %k, %v causal = true scale = 0.125
    ->
    %0 = lazytpu.mul %q, 0.125
    %3, %1 = lazytpu.template flash_attention %0, %k, %v {causal = true, ...}                      %1: log-sum-exp
    %2, %5, %6 = lazytpu.template flash_attention_backward %g, %3, %1, %0, %k, %v {causal = true, ...}
    %4 = lazytpu.mul %2, 0.125

The backward kernel needs the output and the log-sum-exp of each row. It asks for the forward kernel's own, which `cse`
shares; in a program of its own it computes them anew. What `refusal` refuses is written out as `decompose-attention`
does, and simplified as the rest of the module was.

Needs: a target that has the kernel. Guarantees: no attention op is left. The kernel rounds the scaled query to the
operands' dtype, and otherwise where the written out form does: scores, softmax and sums are f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter

from lazytpu.ir.attention import Attention, AttentionBackwardOp, AttentionOp
from lazytpu.ir.base import integer
from lazytpu.ir.builder import Builder
from lazytpu.ir.template import Param
from lazytpu.ir.types import dtype_of, numel, shape_of
from lazytpu.passes.canonicalize import CanonicalizePass
from lazytpu.passes.constant_folding import ConstantFoldingPass
from lazytpu.passes.cse import CsePass
from lazytpu.passes.dce import DcePass
from lazytpu.passes.decompose_attention import decompose
from lazytpu.passes.patterns.attention_masks import bias_of, offset_of, positions, read
from lazytpu.passes.patterns.rewriting import RewriteBuilder

LANES = 128
"Lengths are multiples of this: a block of keys fills the lanes of a vector register."
WIDEST = 256
"The widest head whose blocks fit the vector memory."
LEAST = 1 << 24
"""Bytes of f32 scores from which on the kernel pays. docs/attention.md has the figures."""

Values = tuple[SSAValue, ...]


@dataclass(frozen=True)
class FlashAttentionPass(ModulePass):
    """Attention ops into calls of a kernel."""

    name = "flash-attention"
    least: int = LEAST

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        found = [each for each in op.walk() if isinstance(each, AttentionOp | AttentionBackwardOp)]
        if not found:
            return
        written_out = False
        for each in found:
            of = with_mask_read(each)
            if refusal(of, self.least) or _of_bias(each):
                decompose(each)
                written_out = True
            else:
                _call(each, of)
        CsePass().apply(ctx, op)
        if written_out:
            for cleanup in (ConstantFoldingPass(), CanonicalizePass(), CsePass(), DcePass()):
                cleanup.apply(ctx, op)


def refusal(of: Attention, least: int = LEAST) -> str | None:
    """Why the kernel does not compute this attention; None when it does."""
    if of.dropout is not None:
        return "the kernel has no dropout"
    if of.bias is not None and not _hides_keys(of.bias) and (not _is_mask(of.bias) or of.causal or of.window):
        return f"a bias for each query, {of.bias.type}, is not a mask alone and the same for all heads"
    return refusal_of(dtype_of(of.query), of.scores, (shape_of(of.query)[3], shape_of(of.value)[3]), least)


def refusal_of(dtype: str, scores: Sequence[int], widths: tuple[int, int], least: int = LEAST) -> str | None:
    """Why the kernel does not take operands of this dtype, scores [batch, heads, L, S] and widths of the heads of query
    and value; None when it does."""
    _, _, queries, keys = scores
    if dtype not in ("bf16", "f32"):
        return f"the kernel takes bf16 and f32, not {dtype}"
    if queries % LANES or keys % LANES:
        return f"lengths of {queries} and {keys} are not multiples of {LANES}"
    if max(widths) > WIDEST or any(width % 8 for width in widths):
        return f"heads of {widths[0]} and {widths[1]} are wider than {WIDEST} or not multiples of 8"
    if numel(scores) * 4 < least:
        return f"the scores, {numel(scores) * 4:,} bytes, are few enough to be kept"
    return None


def _of_bias(op: AttentionOp | AttentionBackwardOp) -> bool:
    return isinstance(op, AttentionBackwardOp) and bool(integer(op.of_bias))


def _hides_keys(bias: SSAValue) -> bool:
    """Whether a bias is a mask of keys alone: i1, one row for all queries and heads."""
    return dtype_of(bias) == "i1" and all(size == 1 for size in shape_of(bias)[-3:-1])


def _is_mask(bias: SSAValue) -> bool:
    """Whether a bias is a mask of queries and keys that all heads share."""
    return dtype_of(bias) == "i1" and all(size == 1 for size in shape_of(bias)[-3:-2])


def with_mask_read(op: AttentionOp | AttentionBackwardOp) -> Attention:
    """What an op computes, with a mask that hides by position said as `causal`, `window` and `offset`."""
    of = op.attention
    if of.bias is None or dtype_of(of.bias) != "i1" or _hides_keys(of.bias) or of.causal or of.window:
        return of
    visible = read(of.bias, 4)
    found = None if visible is None else positions(visible)
    if visible is None or found is None:
        return of
    b = RewriteBuilder(op, PatternRewriter(op))
    keys = bias_of(b, visible, of.scores[0], of.scores[3])
    offset, window = found
    return replace(of, bias=keys, causal=visible.last is not None, window=window, offset=offset_of(b, offset))


def _call(op: AttentionOp | AttentionBackwardOp, of: Attention) -> None:
    rewriter = PatternRewriter(op)
    b = RewriteBuilder(op, rewriter)
    query = _scaled(b, of.query, of)
    visible = _visible(b, of)
    mask = () if of.bias is None or visible else (_stored(b, of.bias),)
    operands = (query, of.key, of.value, *visible, *(() if of.offset is None else (of.offset,)), *mask)
    params: dict[str, Param] = {"causal": of.causal, "window": of.window, "precision": of.precision}
    params |= {"masked": bool(visible), "shifted": of.offset is not None, "stored": bool(mask)}
    dtype, (batch, heads, length, _) = dtype_of(query), shape_of(query)
    types = [(dtype, (batch, heads, length, shape_of(of.value)[3])), ("f32", (batch, heads, length))]
    output, sums = b.template("flash_attention", operands, types, **params)
    if isinstance(op, AttentionOp):
        rewriter.replace(op, (), (output,))
        return
    given = (op.operands[0], output, sums, *operands)
    types = [(dtype, shape_of(x)) for x in (of.query, of.key, of.value)]
    made = b.template("flash_attention_backward", given, types, **params)
    rewriter.replace(op, (), (_scaled(b, made[0], of), *made[1:]))


def _scaled(b: Builder, x: SSAValue, of: Attention) -> SSAValue:
    """x · scale, rounded once: in bf16 the scale itself would be rounded."""
    if of.factor is None and of.scale == 1.0:
        return x
    shape = shape_of(x)
    if of.factor is None:
        factor = b.constant(of.scale, "f32", shape)
    else:
        factor = b.broadcast_to(b.convert(of.factor, "f32"), shape)
    return b.convert(b.mul(b.convert(x, "f32"), factor), dtype_of(x))


def _stored(b: Builder, bias: SSAValue) -> SSAValue:
    """A mask of queries and keys as [batch or 1, L, S]."""
    shape = shape_of(bias)
    return b.reshape(bias, (shape[0] if len(shape) == 4 else 1, *shape[-2:]))


def _visible(b: Builder, of: Attention) -> Values:
    """The keys that a mask of keys lets see, [batch, S]; nothing without one."""
    if of.bias is None or not _hides_keys(of.bias):
        return ()
    batch, keys = of.scores[0], of.scores[-1]
    shape = shape_of(of.bias)
    rows = b.reshape(of.bias, [shape[0] if len(shape) == 4 else 1, shape[-1]])
    return (b.broadcast_to(rows, (batch, keys)),)

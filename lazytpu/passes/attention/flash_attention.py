"""`flash-attention`: compute attention by a kernel that stores no scores where that pays; decompose it elsewhere.

    %3 = lazytpu.attention %q, %k, %v causal = true scale = 0.125
    %4, %5, %6 = lazytpu.attention_backward %g, %q, %k, %v causal = true scale = 0.125
    ->
    %0 = lazytpu.mul %q, 0.125
    %3, %1 = lazytpu.template flash_attention %0, %k, %v {causal = true, ...}                      %1: log-sum-exp
    %2, %5, %6 = lazytpu.template flash_attention_backward %g, %3, %1, %0, %k, %v {causal = true, ...}
    %4 = lazytpu.mul %2, 0.125

The backward kernel needs the output and the log-sum-exp of each row. It calls the forward kernel for them, which `cse`
shares in one program; in a program of its own, they are computed again. Attention for which `refusal` gives a reason is
decomposed as by `decompose-attention`, and simplified as the rest of the module was.

Needs: a target that has the kernel. Guarantees: no attention op is left. The kernel rounds the scaled query to the
operands' dtype, and otherwise rounds where the decomposed form does: scores, softmax and sums are f32.
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
from lazytpu.passes.attention.decompose_attention import decompose, kept_below
from lazytpu.passes.attention.masks import bias_of, offset_of, positions, read, segments_of
from lazytpu.passes.canonicalize import CanonicalizePass
from lazytpu.passes.constant_folding import ConstantFoldingPass
from lazytpu.passes.cse import CsePass
from lazytpu.passes.dce import DcePass
from lazytpu.passes.patterns.rewriting import RewriteBuilder

WIDEST = 256
"The widest head whose blocks fit the vector memory."
LEAST = 1 << 24
"""Bytes of f32 scores from which the kernel pays. docs/attention.md has the figures."""
BY_BLOCKS = 8
"Multiple of LEAST from which blocks of XLA ops pay; they read the keys from memory again for each block."

Values = tuple[SSAValue, ...]


@dataclass(frozen=True)
class FlashAttentionPass(ModulePass):
    """Lowers attention ops to calls of a kernel."""

    name = "flash-attention"
    least: int = LEAST

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        attentions = [o for o in op.walk() if isinstance(o, AttentionOp | AttentionBackwardOp)]
        if not attentions:
            return
        decomposed = False
        for attention in attentions:
            of = with_mask_read(attention)
            by_blocks = unfit(of) is not None or _of_bias(attention)
            if refusal(of, self.least * (BY_BLOCKS if by_blocks else 1)):
                decompose(attention)
                decomposed = True
            elif by_blocks:
                _by_blocks(attention, of)
            else:
                _call(attention, of)
        CsePass().apply(ctx, op)
        if decomposed:
            for cleanup in (ConstantFoldingPass(), CanonicalizePass(), CsePass(), DcePass()):
                cleanup.apply(ctx, op)


def refusal(of: Attention, least: int = LEAST) -> str | None:
    """Return the reason for which this attention is decomposed; None when the kernel pays."""
    return refusal_of(dtype_of(of.query), of.scores, least)


def refusal_of(dtype: str, scores: Sequence[int], least: int = LEAST) -> str | None:
    """Return the reason for which attention of this dtype and of scores [batch, heads, L, S] is decomposed; None when
    the kernel pays."""
    if dtype == "f64":
        return "attention of f64 is computed with the scores in memory"
    if numel(scores) * 4 < least:
        return f"the scores, {numel(scores) * 4:,} bytes, are small enough to be stored"
    return None


def unfit(of: Attention) -> str | None:
    """Return the reason for which the kernel cannot compute this attention, so that blocks of XLA ops do; None when it
    can."""
    if of.dropout is not None:
        return "the kernel does not support dropout"
    if of.bias is not None and not _hides_keys(of.bias) and (not _is_mask(of) or of.causal or of.window):
        return f"a bias for each query, {of.bias.type}, must be a mask shared by all heads, without other masks"
    dtype, widths = dtype_of(of.query), (shape_of(of.query)[3], shape_of(of.value)[3])
    if dtype not in ("bf16", "f32"):
        return f"the kernel supports bf16 and f32, not {dtype}"
    if max(widths) > WIDEST or any(width % 8 for width in widths):
        return f"heads are {widths[0]} and {widths[1]} wide; the kernel takes multiples of 8 up to {WIDEST}"
    return None


def _of_bias(op: AttentionOp | AttentionBackwardOp) -> bool:
    return isinstance(op, AttentionBackwardOp) and bool(integer(op.of_bias))


def _hides_keys(bias: SSAValue) -> bool:
    """Whether a bias is a mask of keys only: i1, one row for all queries and heads."""
    return dtype_of(bias) == "i1" and all(size == 1 for size in shape_of(bias)[-3:-1])


def _is_mask(of: Attention) -> bool:
    """Whether the bias is a mask of queries and keys that all heads share."""
    assert of.bias is not None
    *outer, queries, keys = shape_of(of.bias)
    return dtype_of(of.bias) == "i1" and (queries, keys) == of.scores[2:] and all(size == 1 for size in outer[-1:])


@dataclass(frozen=True)
class Packed(Attention):
    """An attention whose queries see only the keys of their own segment."""

    segments: tuple[SSAValue, SSAValue] | None = None
    "The ids of queries and keys, as `segments_of` makes them."


def with_mask_read(op: AttentionOp | AttentionBackwardOp) -> Packed:
    """The attention of an op, with a mask that depends only on positions expressed by `causal`, `window` and `offset`,
    and one that compares segments by their ids."""
    of = Packed(**vars(op.attention))
    if of.bias is None or dtype_of(of.bias) != "i1" or _hides_keys(of.bias) or of.causal or of.window:
        return of
    visible = read(of.bias, 4, packed=True)
    bounds = None if visible is None else positions(visible)
    if visible is None or bounds is None:
        return of
    b = RewriteBuilder(op, PatternRewriter(op))
    keys = bias_of(b, visible, of.scores[0], of.scores[3])
    offset, window = bounds
    segments = segments_of(b, visible, of.scores[0], of.scores[2])
    bounded = replace(of, causal=visible.last is not None, window=window, offset=offset_of(b, offset))
    return replace(bounded, bias=keys, segments=segments)


def _call(op: AttentionOp | AttentionBackwardOp, of: Packed) -> None:
    rewriter = PatternRewriter(op)
    b = RewriteBuilder(op, rewriter)
    operands, params = _operands(b, of)
    dtype, (batch, heads, length, _) = dtype_of(of.query), shape_of(of.query)
    types = [(dtype, (batch, heads, length, shape_of(of.value)[3])), ("f32", (batch, heads, length))]
    output, sums = b.template("flash_attention", operands, types, **params)
    if isinstance(op, AttentionOp):
        rewriter.replace(op, (), (output,))
        return
    arguments = (op.operands[0], output, sums, *operands)
    types = [(dtype, shape_of(x)) for x in (of.query, of.key, of.value)]
    gradients = b.template("flash_attention_backward", arguments, types, **params)
    rewriter.replace(op, (), (_scaled(b, gradients[0], of), *gradients[1:]))


def _by_blocks(op: AttentionOp | AttentionBackwardOp, of: Packed) -> None:
    rewriter = PatternRewriter(op)
    b = RewriteBuilder(op, rewriter)
    operands, params = _operands(b, of)
    types = [(dtype_of(x.type), shape_of(x)) for x in op.results]
    if isinstance(op, AttentionOp):
        rewriter.replace(op, (), tuple(b.template("attention_by_blocks", operands, types, **params)))
        return
    params |= {"of_bias": _of_bias(op)}
    if len(types) > 3:
        types[3] = (types[3][0], shape_of(operands[3]))
    gradients = b.template("attention_by_blocks_backward", (op.operands[0], *operands), types, **params)
    other_gradients = [b.reshape(x, shape_of(result)) for x, result in zip(gradients[1:], op.results[1:], strict=True)]
    rewriter.replace(op, (), (_scaled(b, gradients[0], of), *other_gradients))


def _operands(b: Builder, of: Packed) -> tuple[Values, dict[str, Param]]:
    """The operands of the templates, from the query on, and their parameters."""
    extra: dict[str, Values] = {}
    if of.bias is not None:
        missing = 4 - len(shape_of(of.bias))
        extra["bias"] = (b.reshape(of.bias, (*(1,) * missing, *shape_of(of.bias))),)
    if of.offset is not None:
        extra["offset"] = (of.offset,)
    if of.segments is not None:
        extra["segments"] = of.segments
    if of.dropout is not None:
        keep, factor, *stream = of.dropout
        words = [b.bitcast_convert(x, "ui32") for x in stream]
        extra["dropout"] = (kept_below(b, keep), b.convert(factor, "f32"), *words)
    params: dict[str, Param] = {"causal": of.causal, "window": of.window, "precision": of.precision}
    params |= {"hidden": of.hidden, "added": of.added, "extra": ",".join(extra)}
    extra_operands = [x for values in extra.values() for x in values]
    return (_scaled(b, of.query, of), of.key, of.value, *extra_operands), params


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

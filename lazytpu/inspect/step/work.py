"""What an op computes and moves, before any compiler has seen it."""

from __future__ import annotations

from math import log2, prod

from xdsl.ir import Attribute, Operation

from lazytpu.ir.attention import AttentionBackwardOp, AttentionOp
from lazytpu.ir.collectives import lists_of
from lazytpu.ir.contractions import ConvolutionOp, DotGeneralOp, conv_layout
from lazytpu.ir.types import bitwidth, dtype_of, ints, numel, shape_of, type_of

PASSES = {"default": 1, "high": 3, "highest": 6}
"Passes of the matrix unit over bfloat16 parts of float32 operands, by precision (`jax.lax.Precision` says the same)."

FREE = frozenset(("constant", "dense_constant", "iota", "number", "broadcast_in_dim", "reshape"))
"Ops that compute nothing, or nothing that is not made where it is used."

COLLECTIVES = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"))


def size_of(kind: Attribute) -> int:
    """Bytes of a tensor type, without padding; a boolean takes one byte an element. 0 for what is no tensor."""
    try:
        found = type_of(kind)
        return numel(shape_of(found)) * max(1, bitwidth(dtype_of(found)) // 8)
    except ValueError:
        return 0


def members_of(op: Operation) -> int:
    """How many devices a collective is among; 0 for another op."""
    if op.name.removeprefix("lazytpu.") not in COLLECTIVES:
        return 0
    return 2 if "groups" not in op.properties else max(map(len, lists_of(op.properties["groups"])), default=1)


def flops(op: Operation) -> float:
    """Arithmetic operations; a multiplication and its addition are two. One for each element that an op makes, or that
    a reduction reads, whatever the function."""
    kind = op.name.removeprefix("lazytpu.")
    if kind in FREE or not op.results or kind.startswith("func."):
        return 0.0
    made = float(sum(numel(shape_of(result)) for result in op.results))
    if isinstance(op, DotGeneralOp):
        shape = shape_of(op.lhs)
        return 2.0 * made * prod(shape[d] for d in ints(op.lhs_contract))
    if isinstance(op, ConvolutionOp):
        layout, window = conv_layout(op.layout.data), shape_of(op.kernel)
        return 2.0 * made * window[layout.kernel_in] * prod(window[d] for d in layout.kernel_spatial)
    if isinstance(op, AttentionOp | AttentionBackwardOp):
        return _attention(op)
    read = float(sum(numel(shape_of(value)) for value in op.operands))
    if kind == "sort":
        return made * max(1.0, log2(max(made, 2.0)))
    return max(made, read) if kind in ("reduce", "argreduce", "reduce_window", "cumulative") else made


def _attention(op: AttentionOp | AttentionBackwardOp) -> float:
    """Two products forward, five backward, over the scores [batch, heads, L, S]; half of them when causal."""
    found = op.attention
    width = shape_of(found.query)[3] + shape_of(found.value)[3]
    times = (1.0 if isinstance(op, AttentionOp) else 2.5) * (0.5 if found.causal else 1.0)
    return 2.0 * width * prod(found.scores) * times


def passes_of(op: Operation) -> int:
    """How often the matrix unit goes over the operands of a product; 0 for what is none."""
    if not isinstance(op, DotGeneralOp | ConvolutionOp | AttentionOp | AttentionBackwardOp):
        return 0
    wide = dtype_of(op.operands[0]) in ("f32", "f64", "c64", "c128")
    precision = getattr(op.properties.get("precision"), "data", "default")
    return PASSES.get(precision, 1) if wide else 1

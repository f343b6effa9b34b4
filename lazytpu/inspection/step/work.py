"""The work of an op of the dialect, independent of any compiler."""

from __future__ import annotations

from math import log2, prod

from xdsl.ir import Operation

from lazytpu.inspection.tpu.kernels import Estimate
from lazytpu.ir.attention import AttentionBackwardOp, AttentionOp
from lazytpu.ir.attention_work import PASSES, AttentionSize
from lazytpu.ir.contractions import ConvolutionOp, DotGeneralOp, conv_layout
from lazytpu.ir.control import RegionOp, WhileOp
from lazytpu.ir.groups import check_groups, lists_of
from lazytpu.ir.template import TemplateOp, from_attribute
from lazytpu.ir.types import bitwidth, dtype_of, ints, numel, shape_of
from lazytpu.passes.patterns.trips import trips

KERNELS = {"attention": ("fwd",), "attention_backward": ("dq", "dkv")}
KERNELS |= {"flash_attention": ("fwd",), "flash_attention_backward": ("dq", "dkv")}
"Attention op, or template that calls its kernels -> the kernels."

LANES = {
    "erf": 24, "erfc": 24, "erf_inv": 30, "tanh": 6, "exp": 4, "expm1": 8, "log": 6, "log1p": 8, "logistic": 6, "sin":
    30, "cos": 30, "tan": 40, "pow": 16, "div": 4, "rsqrt": 3, "sqrt": 4, "cbrt": 10, "atan2": 30, "rem": 10,
    "random_bits": 60, "attention_by_blocks": 20, "attention_by_blocks_backward": 40,
}  # fmt: skip
"""Vector instructions per element, where there is more than one. erf: by libtpu's estimate for v6e, a fused GELU of 3
million elements takes 18,400 cycles more than its product, 6 per register, with four instructions each."""

FREE = frozenset(("constant", "dense_constant", "iota", "number", "broadcast_in_dim", "reshape"))
"Ops that compute nothing, or whose result is recomputed at every use."

COLLECTIVES = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"))


def members_of(op: Operation) -> int:
    """Return the number of devices in a collective; 0 for other ops."""
    if op.name.removeprefix("lazytpu.") not in COLLECTIVES:
        return 0
    return 2 if "groups" not in op.properties else check_groups(lists_of(op.properties["groups"]))


def flops(op: Operation) -> float:
    """Return the arithmetic operations of an op; a multiply-add is two.

    Ops other than products count `LANES` per element that they produce, and reductions one per element that they read.
    A branch counts its more expensive side, and a loop one iteration if their number is unknown.
    """
    kind = op.name.removeprefix("lazytpu.")
    if kind in FREE or not op.results or kind.startswith("func."):
        return 0.0
    if isinstance(op, RegionOp):
        of_regions = [sum(map(flops, region.block.ops)) for region in op.regions]
        return (trips(op) or 1) * sum(of_regions) if isinstance(op, WhileOp) else max(of_regions)
    results = float(sum(numel(shape_of(result)) for result in op.results))
    if isinstance(op, DotGeneralOp):
        shape = shape_of(op.lhs)
        return 2.0 * results * prod(shape[d] for d in ints(op.lhs_contract))
    if isinstance(op, ConvolutionOp):
        layout, window = conv_layout(op.layout.data), shape_of(op.kernel)
        return 2.0 * results * window[layout.kernel_in] * prod(window[d] for d in layout.kernel_spatial)
    if (estimate := estimate_of(op)) is not None:
        return estimate.flops
    if (scores := _scores_of(op)) is not None:
        return scores * LANES[_named(op)]
    read = float(sum(numel(shape_of(value)) for value in op.operands))
    if kind == "sort":
        return results * max(1.0, log2(max(results, 2.0)))
    return (
        max(results, read)
        if kind in ("reduce", "argreduce", "reduce_window", "cumulative")
        else results * LANES.get(kind, 1)
    )


def _named(op: Operation) -> str:
    """Return the op's kind, or the name of a template."""
    return op.template_name.data if isinstance(op, TemplateOp) else op.name.removeprefix("lazytpu.")


def attention_of(op: Operation) -> AttentionSize | None:
    """Return the size of the attention that an op computes by kernels; None for other ops."""
    name = _named(op)
    if name not in KERNELS:
        return None
    if isinstance(op, AttentionOp | AttentionBackwardOp):
        q, k, v, causal, window = (of := op.attention).query, of.key, of.value, of.causal, of.window
    else:
        assert isinstance(op, TemplateOp)
        first = 3 if name.endswith("backward") else 0
        q, k, v = op.operands[first : first + 3]
        causal, window = (from_attribute(op.params.data[option]) for option in ("causal", "window"))
    (batch, heads, queries, width), (_, key_heads, keys, _) = shape_of(q), shape_of(k)
    itemsize = bitwidth(dtype_of(q)) // 8
    return AttentionSize(
        batch, heads, key_heads, queries, keys, width, shape_of(v)[3], itemsize, bool(causal), int(str(window))
    )


def estimate_of(op: Operation) -> Estimate | None:
    """Return the cost of an attention op's kernels; None for other ops."""
    size = attention_of(op)
    if size is None:
        return None
    works = [size.work(work) for work in KERNELS[_named(op)]]
    flops, transcendentals, moved = (
        float(sum(getattr(work, name) for work in works)) for name in ("flops", "transcendentals", "bytes")
    )
    return Estimate(flops, transcendentals, moved, passes_of(op))


def _scores_of(op: Operation) -> float | None:
    """Return the number of scores of attention by blocks, whose vector work dominates; None for other ops."""
    if not _named(op).startswith("attention_by_blocks"):
        return None
    first = 1 if _named(op).endswith("backward") else 0
    return float(prod(shape_of(op.operands[first])[:3]) * shape_of(op.operands[first + 1])[2])


def passes_of(op: Operation) -> int:
    """Return the passes of the matrix unit over the operands of a product; 0 for other ops."""
    if not isinstance(op, DotGeneralOp | ConvolutionOp) and _named(op) not in KERNELS:
        return 0
    wide = dtype_of(op.operands[0]) in ("f32", "f64", "c64", "c128")
    attribute = op.params.data.get("precision") if isinstance(op, TemplateOp) else op.properties.get("precision")
    precision = getattr(attribute, "data", "default")
    return PASSES.get(precision, 1) if wide else 1

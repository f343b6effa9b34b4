"""`overlap-collectives`: overlap communication with compute.

    builtin.module attributes {lazytpu.replicas = 4 : i64}
    ->
    builtin.module attributes {lazytpu.replicas = 4 : i64, lazytpu.compile_options = {
        xla_jf_crs_combiner_threshold_in_bytes = 4194304 : i64,
        xla_tpu_enable_sparse_core_collective_offload_all_reduce = true,
        xla_jf_auto_cross_replica_sharding = false, ...}}

for a module that reduces 8 MiB or more, in tensors large enough to be reduced asynchronously; gathers and scatters have
options of their own, from 2 MiB on. By default the TPU compiler merges all reductions into one, which waits for
the last gradient; or, where a gradient is used only to update a weight, it splits the reduction into a reduce-scatter
and an all-gather, so that each chip updates a part. It gathers and scatters synchronously. Either way the communication
is fully exposed. With these options it forms buckets of `bucket_bytes`, starts each as soon as its operands are ready,
and hides it behind compute.

Needs: the `generation` of a TPU; without one, or on one that has no options here, the pass does nothing. Guarantees:
the ops are unchanged.

The pass forms no buckets itself: merging operands into all_reduces of several operands, in the order in which they are
ready, gave the schedule that the compiler finds within the threshold, to the microsecond (docs/collectives.md has the
figures). Nor does it reorder ops: the latency-hiding scheduler does, once it knows the latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from lazytpu.ir.collectives import AllGatherOp, AllReduceOp, ReduceScatterOp
from lazytpu.ir.module import Option, add_options
from lazytpu.ir.types import bitwidth, dtype_of, numel, shape_of

MIB = 2**20

ASYNC_BYTES = 2**16
"""Least bytes of an operand that is reduced asynchronously: xla_tpu_sparse_core_all_reduce_offload_min_size_in_bytes of
libtpu 0.0.42.1. Smaller operands are merged into one synchronous reduction, which costs little."""

WORTHWHILE: Mapping[type[Operation], int] = {AllReduceOp: 8 * MIB, AllGatherOp: 2 * MIB, ReduceScatterOp: 2 * MIB}
"""Total bytes of a kind of collective from which it pays. Asynchronous operands live in HBM, so a program that would
have kept its gradients in VMEM reads and writes them once more: 3 MB reduced on four v6e take 90 us instead of 80, 17
MB 182 instead of 229. Gathers and scatters pay from the smallest sizes that were tried: 2 MB of parameters, gathered
and scattered, take 81 us instead of 100, 8 MB 290 instead of 341."""

BUCKET = "xla_jf_crs_combiner_threshold_in_bytes"

Options: TypeAlias = Mapping[str, Option]


def _on_sparse_core(collective: str) -> dict[str, Option]:
    """The options by which the SparseCore does a collective while the TensorCore computes.

    The multiplier: the scheduler underestimates the latency of such a collective and starts it too late; beyond 8
    nothing changes (3 MB of all_reduce in three buckets on four v6e: 27 us exposed with 1, 19 with 2, 9 with 4, 8 with
    8).
    """
    return {
        f"xla_tpu_enable_sparse_core_collective_offload_{collective}": True,
        f"xla_tpu_sparse_core_{collective}_latency_multiplier": 8,
        "xla_tpu_use_tc_device_shape_on_sc": True,
    }


# A reduction that is split for an update in parts is never asynchronous.
WHOLE: Options = {"xla_jf_auto_cross_replica_sharding": False}
UNFUSED: Options = {"xla_tpu_enable_async_collective_fusion_fuse_all_reduce": False}
SPARSE_CORE: Mapping[type[Operation], Options] = {
    AllReduceOp: {**WHOLE, **UNFUSED, **_on_sparse_core("all_reduce")},
    AllGatherOp: _on_sparse_core("all_gather"),
    ReduceScatterOp: _on_sparse_core("reduce_scatter"),
}
# The TensorCore does a part of the reduction in each of the fusions that follow it; later generations reject this.
CONTINUATION: Mapping[type[Operation], Options] = {
    AllReduceOp: {
        **WHOLE,
        "xla_enable_async_all_reduce": True,
        "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
    },
}
ASYNCHRONOUS: Mapping[str, Mapping[type[Operation], Options]] = {
    "v5e": CONTINUATION,
    "v5p": SPARSE_CORE,
    "v6e": SPARSE_CORE,
}
"""The options of each generation for each collective. Not tpu7x: with SPARSE_CORE it still reduces synchronously
(libtpu 0.0.42.1), and in more pieces."""


@dataclass(frozen=True)
class OverlapCollectivesPass(ModulePass):
    """Sets the compiler options that hide communication behind compute."""

    name = "overlap-collectives"

    generation: str | None = None
    bucket_bytes: int = 4 * MIB

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kind, options in ASYNCHRONOUS.get(self.generation or "", {}).items():
            if asynchronous_bytes(op, kind) >= WORTHWHILE[kind]:
                add_options(op, {**options, BUCKET: self.bucket_bytes})


def asynchronous_bytes(module: ModuleOp, kind: type[Operation]) -> int:
    """The bytes that collectives of a kind send asynchronously: of operands, or of the results of gathers."""
    collectives = [op for op in module.walk() if isinstance(op, kind)]
    values = [x for op in collectives for x in (op.results if kind is AllGatherOp else op.operands)]
    sizes = [numel(shape_of(x)) * bitwidth(dtype_of(x)) // 8 for x in values]
    return sum(size for size in sizes if size >= ASYNC_BYTES)

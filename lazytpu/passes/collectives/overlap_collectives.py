"""`overlap-collectives`: overlap the reduction of gradients with the backward pass.

    builtin.module attributes {lazytpu.replicas = 4 : i64}
    ->
    builtin.module attributes {lazytpu.replicas = 4 : i64, lazytpu.compile_options = {
        xla_jf_crs_combiner_threshold_in_bytes = 4194304 : i64,
        xla_tpu_enable_sparse_core_collective_offload_all_reduce = true,
        xla_jf_auto_cross_replica_sharding = false, ...}}

for a module that reduces 8 MiB or more, in tensors large enough to be reduced asynchronously. By default the TPU
compiler merges all reductions into one, which waits for the last gradient; or, where a gradient is used only to update
a weight, it splits the reduction into a reduce-scatter and an all-gather, so that each chip updates a part. Either way
the communication is fully exposed. With these options it forms buckets of `bucket_bytes`, starts each as soon as its
gradients are ready, and hides it behind the rest of the backward pass.

Needs: the `generation` of a TPU; without one, or on one that has no options here, the pass does nothing. Guarantees:
the ops are unchanged.

The pass forms no buckets itself: merging operands into all_reduces of several operands, in the order in which they are
ready, gave the schedule that the compiler finds within the threshold, to the microsecond (docs/collectives.md has the
figures). Nor does it reorder ops: the latency-hiding scheduler does, once it knows the latency.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from lazytpu.ir.collectives import AllReduceOp
from lazytpu.ir.module import Option, add_options
from lazytpu.ir.types import bitwidth, dtype_of, numel, shape_of

MIB = 2**20

ALONE = 2**16
"""Least bytes of an operand that is reduced asynchronously: xla_tpu_sparse_core_all_reduce_offload_min_size_in_bytes of
libtpu 0.0.42.1. Smaller operands are merged into one synchronous reduction, which costs little."""

WORTHWHILE = 8 * MIB
"""Total bytes from which it pays. Asynchronous operands live in HBM, so a program that would have kept its gradients in
VMEM reads and writes them once more: 3 MB on four v6e take 90 us instead of 80, 17 MB 182 instead of 229."""

BUCKET = "xla_jf_crs_combiner_threshold_in_bytes"

# A reduction that is split for an update in parts is never asynchronous.
WHOLE = {"xla_jf_auto_cross_replica_sharding": False}
# The SparseCore reduces while the TensorCore computes. The multiplier: the scheduler underestimates the latency of such
# a reduction and starts it too late; beyond 8 nothing changes (3 MB in three buckets on four v6e: 27 us exposed with 1,
# 19 with 2, 9 with 4, 8 with 8).
SPARSE_CORE: dict[str, Option] = {
    **WHOLE,
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
    "xla_tpu_use_tc_device_shape_on_sc": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": False,
    "xla_tpu_sparse_core_all_reduce_latency_multiplier": 8,
}
# The TensorCore does a part of the reduction in each of the fusions that follow it; later generations reject this.
CONTINUATION: dict[str, Option] = {
    **WHOLE,
    "xla_enable_async_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
}
# Not tpu7x: with SPARSE_CORE it still reduces synchronously (libtpu 0.0.42.1), and in more pieces.
ASYNCHRONOUS = {"v5e": CONTINUATION, "v5p": SPARSE_CORE, "v6e": SPARSE_CORE}


@dataclass(frozen=True)
class OverlapCollectivesPass(ModulePass):
    """Sets the compiler options that hide reductions behind compute."""

    name = "overlap-collectives"

    generation: str | None = None
    bucket_bytes: int = 4 * MIB

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        options = ASYNCHRONOUS.get(self.generation or "")
        if options is not None and sum(size for size in reduced_bytes(op) if size >= ALONE) >= WORTHWHILE:
            add_options(op, {**options, BUCKET: self.bucket_bytes})


def reduced_bytes(module: ModuleOp) -> Iterator[int]:
    """The bytes of each operand of each all_reduce."""
    for op in module.walk():
        if isinstance(op, AllReduceOp):
            for x in op.operands:
                yield numel(shape_of(x)) * bitwidth(dtype_of(x)) // 8

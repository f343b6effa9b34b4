"""`overlap-collectives`: reduce gradients while the backward pass goes on.

    builtin.module attributes {lazytpu.replicas = 4 : i64}
    ->
    builtin.module attributes {lazytpu.replicas = 4 : i64, lazytpu.compile_options = {
        xla_jf_crs_combiner_threshold_in_bytes = 4194304 : i64,
        xla_tpu_enable_sparse_core_collective_offload_all_reduce = true,
        xla_jf_auto_cross_replica_sharding = false, ...}}

for a module that reduces 8 MiB or more, in tensors large enough that the compiler lets them travel on their own. The
TPU compiler by itself merges all reductions into one, which waits for the last gradient; or, where the weights are all
that a gradient is for, it reduces and gathers them in halves, so that each chip updates a part. Either way nothing
waits for less: all of it is exposed. With these options it makes buckets of `bucket_bytes`, starts each when its
gradients are there, and schedules the backward pass behind it.

Needs: a TPU's `generation`; on one without options here, or that is not known, it does nothing. Guarantees: the ops
are not touched.

It makes no buckets itself: operands merged into all_reduces of several operands, in the order in which they are ready,
gave the schedule that the compiler finds within the threshold, to the microsecond (docs/collectives.md has the
figures). Nor does it reorder: the latency hiding scheduler does, once the latency is known to it.
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
"""Bytes of an operand that may travel asynchronously: xla_tpu_sparse_core_all_reduce_offload_min_size_in_bytes of
libtpu 0.0.42.1. Smaller ones are merged into one synchronous reduction, of little cost."""

WORTHWHILE = 8 * MIB
"""Bytes from which it pays. What travels asynchronously lies in HBM, and programs that would have kept their gradients
in VMEM read and write it once more: 3 MB on four v6e take 90 us instead of 80, 17 MB 182 instead of 229."""

BUCKET = "xla_jf_crs_combiner_threshold_in_bytes"

# Halves of a reduction, for an update in parts, are never asynchronous.
WHOLE = {"xla_jf_auto_cross_replica_sharding": False}
# The SparseCore reduces while the TensorCore computes. The multiplier: the scheduler takes the latency of such a
# reduction for less than the links need, and starts it too late; from 8 on nothing changes (3 MB in three buckets on
# four v6e: 27 us exposed with 1, 19 with 2, 9 with 4, 8 with 8).
SPARSE_CORE: dict[str, Option] = {
    **WHOLE,
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
    "xla_tpu_use_tc_device_shape_on_sc": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": False,
    "xla_tpu_sparse_core_all_reduce_latency_multiplier": 8,
}
# The TensorCore does a part of the reduction in each of the fusions that come after it; later generations refuse this.
CONTINUATION: dict[str, Option] = {
    **WHOLE,
    "xla_enable_async_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
}
# With SPARSE_CORE's a tpu7x keeps reducing synchronously (libtpu 0.0.42.1), in more pieces: it gets none.
ASYNCHRONOUS = {"v5e": CONTINUATION, "v5p": SPARSE_CORE, "v6e": SPARSE_CORE}


@dataclass(frozen=True)
class OverlapCollectivesPass(ModulePass):
    """Options of the compiler for reductions behind compute."""

    name = "overlap-collectives"

    generation: str | None = None
    bucket_bytes: int = 4 * MIB

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        options = ASYNCHRONOUS.get(self.generation or "")
        if options is not None and sum(each for each in reduced_bytes(op) if each >= ALONE) >= WORTHWHILE:
            add_options(op, {**options, BUCKET: self.bucket_bytes})


def reduced_bytes(module: ModuleOp) -> Iterator[int]:
    """Bytes of each operand of an all_reduce."""
    for op in module.walk():
        if isinstance(op, AllReduceOp):
            for x in op.operands:
                yield numel(shape_of(x)) * bitwidth(dtype_of(x)) // 8

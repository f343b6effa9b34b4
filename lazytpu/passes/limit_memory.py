"""`limit-memory`: have the compiler rematerialize values until the program fits a memory limit.

    builtin.module { ... }
    -> builtin.module attributes {lazytpu.compile_options = {xla_tpu_max_hbm_size_mib = 4096 : i64}} { ... }

The TPU compiler computes the peak use of HBM, after fusion and with tile padding, and rematerializes the cheapest
values until that fits the chip; this pass lowers the memory size that the compiler assumes. A limit that it cannot meet
is a compilation error. A pass that rematerialized on this IR made programs larger (docs/passes.md): it cannot predict
the compiler's fusions, whose inner values are never kept.

Needs: a program for a TPU. Guarantees: the ops are unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from lazytpu.ir.module import add_options

LIMIT = "xla_tpu_max_hbm_size_mib"
"Option of libtpu 0.0.42.1. It limits all of a program's HBM, arguments and results included."
MIB = 2**20


@dataclass(frozen=True)
class LimitMemoryPass(ModulePass):
    """Limits the HBM that a program may use."""

    name = "limit-memory"
    limit: int = 0
    """Bytes, rounded down to whole MiB; 0 for all memory of the chip."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.limit:
            if self.limit < MIB:
                raise ValueError(f"limit is {self.limit} bytes; expected 0, or at least {MIB} (1 MiB)")
            add_options(op, {LIMIT: self.limit // MIB})

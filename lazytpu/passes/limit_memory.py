"""`limit-memory`: let the compiler compute values again rather than keep them, until a program fits a limit.

    builtin.module { ... }
    -> builtin.module attributes {lazytpu.compile_options = {xla_tpu_max_hbm_size_mib = 4096 : i64}} { ... }

The TPU's compiler counts what lies in HBM at once, after fusion and with the padding of tiles, and computes again what
is cheapest until that is no more than the chip has; here it is told that the chip has less. A limit out of its reach is
an error of the compilation. A pass on this IR that did the same made programs larger (docs/passes.md): it does not know
what the compiler fuses, and so never keeps.

Needs: a program that is compiled for a TPU. Guarantees: the ops are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from lazytpu.ir.module import add_options

LIMIT = "xla_tpu_max_hbm_size_mib"
"The option of libtpu 0.0.42.1. It counts all that a program has in HBM, arguments and results included."
MIB = 2**20


@dataclass(frozen=True)
class LimitMemoryPass(ModulePass):
    """The most bytes of HBM that a program may take."""

    name = "limit-memory"
    limit: int = 0
    "Bytes, of which the compiler is told whole MiB; 0 for what the chip has."

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.limit:
            if self.limit < MIB:
                raise ValueError(f"limit is {self.limit} bytes; expected 0, or at least {MIB} (1 MiB)")
            add_options(op, {LIMIT: self.limit // MIB})

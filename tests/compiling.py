"""XLA options for tests that check values of programs, and not their optimization."""

from __future__ import annotations

from lazytpu.runtime.xla.jax_private import WITHOUT_FUSION_EMITTERS

QUICK: dict[str, bool | int | str] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    **WITHOUT_FUSION_EMITTERS,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Options that halve the compile time of XLA:CPU: no LLVM optimizations and no MLIR fusion emitters. Empty with
`pytest --optimized`."""


def as_flags() -> str:
    """Return the options as a value of XLA_FLAGS, for a process that a test starts."""
    return " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())

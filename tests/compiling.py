"""Options of XLA for tests of what programs compute, not of how well XLA compiles them."""

from __future__ import annotations

from lazytpu.runtime.xla.jax_private import WITHOUT_FUSION_EMITTERS

QUICK: dict[str, bool | int | str] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    **WITHOUT_FUSION_EMITTERS,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Half of the time of XLA:CPU: LLVM without its optimizations, and without the MLIR that fusions go through. Empty with
`pytest --optimized`."""


def as_flags() -> str:
    """The same for a program that a test starts, as its variable XLA_FLAGS."""
    return " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())

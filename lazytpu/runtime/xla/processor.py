"""The processor of this machine, and the limit on its instructions that XLA:CPU may use: none that compute in half
precision.

With native half arithmetic (AVX512-FP16), LLVM fuses a float16 product and a sum into one multiply-add. That rounds
once, whereas torch, and programs of one op each, round twice; under cancellation the results differ widely. No compile
option prevents this, and LLVM also removes explicit rounding. Without those instructions, every float16 op is a float32
op and a rounding. So XLA is kept from all of AVX-512: its flag has no finer step. The cost is small, as XLA:CPU uses
vectors of 256 bits even there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

FLAG = "--xla_cpu_max_isa"
MAX_ISA = "AVX2"


@cache
def facts() -> Mapping[str, str]:
    """Return the fields of /proc/cpuinfo for the first core; empty on other systems than Linux."""
    try:
        core = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        core = ""
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in core.splitlines())}


def has_half_arithmetic() -> bool:
    """Whether this is an x86 processor that adds and multiplies float16 without converting it."""
    return "avx512_fp16" in facts().get("flags", "").split()


@contextmanager
def without_half_arithmetic() -> Iterator[None]:
    """Keep a first client of XLA that is made inside the context from using half-precision instructions. XLA reads
    XLA_FLAGS once, when a process makes its first client, so the flag is set for that time only. It is not added if the
    user caps the instruction set, or if XLA_FLAGS names a file of flags."""
    before = os.environ.get("XLA_FLAGS")
    file = before is not None and before.strip() != "" and not before.lstrip().startswith("-")
    if file or not has_half_arithmetic() or FLAG in (before or ""):
        yield
        return
    os.environ["XLA_FLAGS"] = f"{before or ''} {FLAG}={MAX_ISA}".strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = before

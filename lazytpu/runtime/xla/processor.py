"""The processor of this machine, and which of its instructions XLA:CPU may use: none that compute in half precision.

Where there is native half arithmetic (AVX512-FP16), LLVM makes one fused multiply-add of a float16 product that is
added to something. It rounds once, where torch, and programs of one op each, round twice: under cancellation much of
the result is another. No option of a compilation stops that, and neither does rounding spelled out, which LLVM sees
through. Without those instructions every float16 op is one in float32 and a rounding, so XLA is kept from all of
AVX-512: its flag knows no finer step. It costs little, as XLA:CPU works in vectors of 256 bits even there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

FLAG = "--xla_cpu_max_isa"
MOST = "AVX2"


@cache
def facts() -> Mapping[str, str]:
    """What Linux says of the first core, by name; empty elsewhere."""
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
    """Inside, a first client of XLA uses no instructions for half precision. XLA reads XLA_FLAGS once, when a process
    makes its first client, so they hold one flag more for that time. A cap of the user's own stays, and so does the
    name of a file of flags."""
    before = os.environ.get("XLA_FLAGS")
    file = before is not None and before.strip() != "" and not before.lstrip().startswith("-")
    if file or not has_half_arithmetic() or FLAG in (before or ""):
        yield
        return
    os.environ["XLA_FLAGS"] = f"{before or ''} {FLAG}={MOST}".strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = before

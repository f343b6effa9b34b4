"""Ops that a platform's compiler lacks. Such an op raises at its call, on that platform and in a rehearsal for it.
Otherwise the cut would fail, far from the user's line, or the process would crash, as on a TPU.

Ops that a compiler lacks and lazytpu computes in another way are in `lazytpu.lowering.templates`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend import activation
from lazytpu.trace.value import Layout


@dataclass(frozen=True)
class Lack:
    """Ops (a regular expression) that a platform lacks for some `dtypes` of operands and results; for all dtypes if
    empty.

    `instead` tells the user what to do.
    """

    platform: str
    ops: str
    reason: str
    instead: str
    dtypes: frozenset[torch.dtype] = frozenset()

    def covers(self, op: str, dtypes: frozenset[torch.dtype]) -> bool:
        return re.match(self.ops, op) is not None and (not self.dtypes or not self.dtypes.isdisjoint(dtypes))


LACKS = (
    Lack(
        "tpu",
        r"aten\.(linalg_eig|_linalg_eigvals)\.",
        "XLA has no eigenvalues of general matrices on a TPU",
        "torch.linalg.eigh where the matrix is symmetric or Hermitian, or compute them on the CPU: x.cpu()",
    ),
    Lack(
        "tpu",
        r"aten\.nextafter",
        "the compiler of a TPU, which has float64 in two parts, has no next number of it",
        "float32: x.to(torch.float32), or compute it on the CPU: x.cpu()",
        frozenset({torch.float64}),
    ),
    Lack(
        "tpu",
        r"aten\.convolution",
        "the compiler of a TPU has no convolution of int64",
        "float32, or float64 for sums above 2^24, or compute it on the CPU: x.cpu()",
        frozenset({torch.int64}),
    ),
    # libtpu 0.0.42: convert, divide, abs, pad, transpose, tanh, power and others crash the compiler or are rejected by
    # it; add, multiply, exp and sums work.
    Lack(
        "tpu",
        "",
        "the compiler of a TPU has no complex128, which float64 becomes in a Fourier transform",
        "float32 or complex64, to which complex128 is converted before it is moved there, or compute it on the CPU: "
        "x.cpu()",
        frozenset({torch.complex128}),
    ),
)
"The ops that each platform lacks."


def check_platform(op: OpOverload, bound: dict[str, Any], results: Any, platform: str | None) -> None:
    """Raise NotImplementedError when `platform` (None: the device's) lacks the op at these dtypes. `results` are the
    layouts of its results."""
    platform = platform or activation.device().platform()
    lacks = [lack for lack in LACKS if lack.platform == platform]
    if not lacks:
        return
    dtypes = frozenset(_dtypes([*bound.values(), results]))
    for lack in lacks:
        if lack.covers(str(op), dtypes):
            raise NotImplementedError(f"{op}: {lack.reason}. Use {lack.instead}")


def _dtypes(values: Any) -> Iterator[torch.dtype]:
    """Yield the dtypes of tensors and layouts, and of the storages behind views."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _dtypes(value)
        elif isinstance(value, Layout):
            yield value.dtype
        elif isinstance(value, torch.Tensor):
            yield value.dtype
            stored: Any = getattr(value.untyped_storage(), "_value", None)
            if stored is not None:
                yield stored.layout.dtype

"""The entries of torch's op database, their names, and the samples drawn of each."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

from tools.conformance.rows import DTYPES


@dataclass(frozen=True)
class Entry:
    """One op of the database at one dtype. `seed` selects other values and another random stream."""

    name: str
    info: OpInfo
    dtype: torch.dtype
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.name} {str(self.dtype).removeprefix('torch.')}"

    @property
    def differentiable(self) -> bool:
        """Whether the CPU has gradients of it at this dtype."""
        return self.dtype in self.info.supported_backward_dtypes("cpu")

    def start(self, stream: int = 0) -> int:
        """Return the seed of one of the entry's streams of random numbers, the same in every process."""
        return (zlib.crc32(self.name.encode()) + self.seed + stream) & 0x7FFFFFFF

    def samples(self, k: int) -> list[tuple[int, SampleInput]]:
        """Return at most k samples, with their numbers, spread evenly over all of torch's; 0 takes all."""
        # Not by `sample_inputs`: that looks for a test of unittest in all frames of the stack, which takes longer than
        # most ops.
        set_rng_seed(self.start())
        return spread(list(self.info.sample_inputs_func(self.info, "cpu", self.dtype, self.differentiable)), k)

    def error_inputs(self, k: int) -> list[tuple[int, ErrorInput]]:
        """The inputs that the op must refuse. torch has them without a dtype: they count for float32."""
        if self.info.error_inputs_func is None or self.dtype is not torch.float32:
            return []
        set_rng_seed(self.start())
        return spread(list(self.info.error_inputs_func(self.info, "cpu")), k)


def spread(items: list[Any], k: int) -> list[tuple[int, Any]]:
    """At most k items (0: all) with their positions, the first and the last among them."""
    n = len(items)
    positions = range(n) if not k or n <= k else sorted({round(i * (n - 1) / max(1, k - 1)) for i in range(k)})
    return [(i, items[i]) for i in positions]


@cache
def table() -> dict[str, OpInfo]:
    """Every op of the database by its name; variants are `name.variant`."""
    by_name = {f"{info.name}.{info.variant_test_name}".rstrip("."): info for info in op_db}
    assert len(by_name) == len(op_db), "two entries of the database share a name"
    return by_name


def entries(
    dtypes: tuple[str, ...] = DTYPES, only: str = "", seed: int = 0, of: Mapping[str, Any] | None = None
) -> Iterator[Entry]:
    """Return all entries whose name contains a match of `only`, at the given dtypes that the CPU supports for the op.
    `of` are infos by name that replace the database's."""
    for name in dtypes:
        dtype = getattr(torch, name)
        for op, info in (table() if of is None else of).items():
            if re.search(only, op) and dtype in info.supported_dtypes("cpu"):
                yield Entry(op, info, dtype, seed)

"""Arguments of records that depend on sizes without being numbers, such as the key of a custom kernel.

A kernel's key identifies its computation for operands of certain shapes. Its family returns the key for other shapes,
so that a trace can be rebuilt at other sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Kind = tuple[Any, tuple[int, ...]]
"(dtype, shape) of an operand or result"


class Member(Protocol):
    """A kernel for operands of certain shapes. All members of a `family` are the same kernel at different sizes."""

    @property
    def family(self) -> Any: ...

    def at(self, operands: Sequence[Kind | None]) -> tuple[str, Sequence[Kind]]:
        """Return the family's key for other operands, and the kinds of its results. An operand that is None is
        unchanged.

        Raises ValueError, TypeError, RuntimeError or NotImplementedError if the kernel does not support these operands.
        """
        ...


MEMBERS: dict[str, Member] = {}
"Key -> kernel, for all kernels of this process."

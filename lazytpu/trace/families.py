"""Arguments of records that follow from sizes and are no numbers: the key of a custom kernel says what it computes for
operands of some shapes. Its family knows the keys for others, so that a trace can be put together at other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Kind = tuple[Any, tuple[int, ...]]
"dtype and shape"


class Member(Protocol):
    """A kernel for operands of some shapes. Those of one `family` are one kernel at several sizes."""

    @property
    def family(self) -> Any: ...

    def at(self, operands: Sequence[Kind | None]) -> tuple[str, Sequence[Kind]]:
        """The key for other operands, and the results that this kernel has for them; None is an operand as it was.
        Raises ValueError, TypeError, RuntimeError or NotImplementedError where there is none."""
        ...


MEMBERS: dict[str, Member] = {}
"By key, the kernels that this process knows."

"""Symbolic sizes as torch's `SymInt`s: torch's decompositions and its meta kernels in Python compute with them.

torch asks the node behind a SymInt for every operation. This node passes the operation to the `Size`
(`lazytpu.ir.symbolic`), which computes a form, keeps a guard, or raises LostSize. Checked against torch 2.13's
`torch/csrc/utils/python_symnode.h` and `torch/fx/experimental/sym_node.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from lazytpu.ir.symbolic import Size


class SizeNode:
    """The node of a SymInt, a SymBool, or a SymFloat that is a size."""

    def __init__(self, value: Any, *, is_float: bool = False):
        self.value, self._is_float = value, is_float

    def is_int(self) -> bool:
        return not self._is_float and not isinstance(self.value, bool)

    def is_float(self) -> bool:
        return self._is_float

    def is_bool(self) -> bool:
        return isinstance(self.value, bool)

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return isinstance(self.value, Size)

    def is_constant(self) -> bool:
        return not self.is_symbolic()

    def maybe_as_int(self) -> int | None:
        return self.value if type(self.value) is int else None

    def wrap_int(self, number: int) -> SizeNode:
        return SizeNode(number)

    def wrap_bool(self, value: bool) -> SizeNode:
        return SizeNode(value)

    def wrap_float(self, number: float) -> SizeNode:
        return SizeNode(number, is_float=True)

    def sym_float(self) -> SizeNode:
        return SizeNode(self.value, is_float=True)

    def clone(self) -> SizeNode:
        return self

    @property
    def expr(self) -> Any:
        """A symbol for sympy, by which torch finds sizes that depend on values of tensors: this is none."""
        import sympy

        return sympy.Symbol(repr(self.value), integer=True) if self.is_symbolic() else sympy.sympify(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    str = _graph_repr = __str__ = __repr__

    # torch needs a number in C++: only a size that is the same everywhere has one.

    def guard_int(self, file: str, line: int) -> int:
        return operator.index(self.value)

    def int_(self) -> int:
        return operator.index(self.value)

    def guard_float(self, file: str, line: int) -> float:
        return float(self.value)

    def guard_bool(self, file: str, line: int) -> bool:
        return bool(self.value)

    guard_or_false = guard_or_true = statically_known_true = expect_true = guard_size_oblivious = guard_bool

    def bool_(self) -> bool:
        return bool(self.value)

    def neg(self) -> SizeNode:
        return SizeNode(-self.value)

    def sym_sum(self, nodes: Sequence[SizeNode]) -> SizeNode:
        return SizeNode(sum(node.value for node in nodes))

    def sym_not(self) -> SizeNode:
        return SizeNode(not self.value)

    def float_truediv(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.value / other.value, is_float=True)

    int_truediv = truediv = float_truediv


python_dispatch: Callable[[], AbstractContextManager[Any]] = nullcontext
"""A context in which torch computes shapes in Python, where its C++ takes no symbolic sizes. `lazytpu.wiring` sets it
to torch's own, which has a private name."""


def _computed(function: Callable[[Any, Any], Any]) -> Callable[[SizeNode, SizeNode], SizeNode]:
    return lambda node, other: SizeNode(function(node.value, other.value))


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "and_", "or_", "pow")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "sym_min": min,
    "sym_max": max,
    "sym_and": operator.and_,
    "sym_or": operator.or_,
    "int_floordiv": operator.floordiv,
    "pow_by_natural": operator.pow,
}
for _name, _function in _BINARY.items():
    setattr(SizeNode, _name, _computed(_function))


def to_torch(value: Any) -> Any:
    """Sizes in nested lists and tuples as SymInts."""
    if isinstance(value, Size):
        return torch.SymInt(SizeNode(value))
    if type(value) in (list, tuple):
        return type(value)(map(to_torch, value))
    return value


def from_torch(value: Any) -> Any:
    """SymInts, and SymFloats that are sizes, in nested lists and tuples as sizes or numbers."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.value
    if type(value) in (list, tuple, torch.Size):
        return (list if type(value) is list else tuple)(map(from_torch, value))
    return value

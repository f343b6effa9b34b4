"""The base class of all ops of the dialect, and helpers for their verification.

Ops are pure, and their operands and results are tensors. Result types are inferred from operands and properties by one
function, which the builder and the verifier share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import ClassVar

from xdsl.dialects.builtin import (
    AnyTensorType,
    AnyTensorTypeConstr,
    DenseArrayBase,
    IntegerAttr,
    StringAttr,
    i1,
    i64,
)
from xdsl.ir import Attribute
from xdsl.irdl import base, eq, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from lazytpu.ir.assembly import AssembledOp
from lazytpu.ir.literals import is_integer_attr
from lazytpu.ir.sizes import check_names
from lazytpu.ir.types import int_array, listed, shape_of, type_of

TENSOR = AnyTensorTypeConstr
INT = IntegerAttr.constr(eq(i64))
"An integer property."
FLAG = IntegerAttr.constr(eq(i1))
"A boolean property."
INTS = DenseArrayBase.constr(eq(i64))
"""A list of integers that determine the function of the op: dimensions, a permutation, strides of a window."""
SIZE_LIST = DenseArrayBase.constr(eq(i64))
"""A list of integers that may be sizes: one program may run with different values (`pad-sizes`)."""
WORD = base(StringAttr)
"A property that is a keyword or a name."
NONE = int_array(())
ONE = IntegerAttr(1, i64)
FALSE = IntegerAttr(0, i1)


class TensorOp(AssembledOp):
    """An op of the `lazytpu` dialect."""

    traits = traits_def(Pure())
    LOCAL: ClassVar[bool] = True
    "Whether its validity follows from its types, properties and annotation alone, which are small enough to be kept."

    def infer(self) -> Sequence[AnyTensorType]:
        """The result types, inferred from operands and properties. Raises ValueError when these are inconsistent."""
        raise NotImplementedError(f"{self.name} has no type rule")

    @property
    def sized(self) -> AbstractSet[str]:
        """The names of this op's integers that may be sizes. All other integers are structure: a different value needs
        another program."""
        return _size_lists(type(self))

    def verify_(self) -> None:
        try:
            check_names(self, {*self.sized, "result"})
            for value in (*self.operands, *self.results):
                shape_of(value)  # rejects dynamic shapes and foreign element types
            expected = list(self.infer())
        except ValueError as error:
            raise VerifyException(f"{self.name}: {error}") from error
        actual = list(self.result_types)
        if expected != actual:
            raise VerifyException(f"{self.name}: expected result types {show(expected)}, got {show(actual)}")

    def operand_type(self, index: int) -> AnyTensorType:
        return type_of(self.operands[index])

    def result_type(self, index: int = 0) -> AnyTensorType:
        return type_of(self.results[index])


@cache
def _size_lists(op: type[TensorOp]) -> AbstractSet[str]:
    properties = op.get_irdl_definition().properties
    return frozenset(name for name, definition in properties.items() if definition.constr is SIZE_LIST)


def show(types: Iterable[Attribute]) -> str:
    """The text of types in error messages."""
    return ", ".join(str(t) for t in types) or "none"


def integer(prop: Attribute) -> int:
    """The value of an integer property; 0 or 1 for a boolean one."""
    if not is_integer_attr(prop):
        raise ValueError(f"expected an integer, got {prop}")
    # xDSL normalizes a true i1 to -1.
    return abs(prop.value.data) if prop.type == i1 else prop.value.data


def one_of(prop: Attribute, allowed: Iterable[str], what: str) -> str:
    """The text of a string property. Raises ValueError unless it is one of the allowed keywords."""
    word = prop.data if isinstance(prop, StringAttr) else str(prop)
    if word not in allowed:
        raise ValueError(f"{what} must be one of {', '.join(allowed)}; got {word!r}")
    return word


def check_dtype(dtype: str, allowed: frozenset[str], what: str = "an operand") -> None:
    if dtype not in allowed:
        raise ValueError(f"expected {what} of dtype {listed(allowed)}; got {dtype}")


def check_dim(dim: int, rank: int, what: str = "dim") -> int:
    """The dimension, if 0 <= dim < rank. Raises ValueError otherwise."""
    if not 0 <= dim < rank:
        raise ValueError(f"{what} is {dim}; expected 0 <= {what} < {rank} (the rank)")
    return dim


def check_dims(dims: Sequence[int], rank: int, what: str = "dims") -> None:
    """Raises ValueError unless the dimensions are distinct and each is 0 <= dim < rank."""
    for dim in dims:
        check_dim(dim, rank, what)
    if len(set(dims)) != len(dims):
        raise ValueError(f"{what} are {list(dims)}; expected distinct dimensions")


def check_sorted(dims: Sequence[int], what: str) -> None:
    """Raises ValueError unless dimension numbers ascend, which StableHLO requires where their order is arbitrary."""
    if list(dims) != sorted(dims):
        raise ValueError(f"{what} are {list(dims)}; expected ascending dimensions {sorted(dims)}")


def check_length(values: Sequence[int], length: int, what: str) -> None:
    if len(values) != length:
        raise ValueError(f"{what} is {list(values)}; expected {length} numbers, got {len(values)}")

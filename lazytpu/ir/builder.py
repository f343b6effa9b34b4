"""The builder of ops, with inferred result types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Block, Operation, SSAValue

from lazytpu.ir import jax_call, random, sorting, template
from lazytpu.ir.building.attention import AttentionMethods
from lazytpu.ir.building.collectives import CollectiveMethods
from lazytpu.ir.building.contractions import ContractionMethods
from lazytpu.ir.building.core import flag_prop, integer_prop
from lazytpu.ir.building.indexing import IndexingMethods
from lazytpu.ir.building.pointwise import PointwiseMethods
from lazytpu.ir.building.reductions import ReductionMethods
from lazytpu.ir.types import Shape, dtype_of, shape_of, string, tensor_type, type_of


class Materializable(Protocol):
    """A number in a trace: a constant or a run-time number."""

    def materialize(self, b: Builder, dtype: str, /) -> SSAValue: ...


class Builder(
    PointwiseMethods, ReductionMethods, ContractionMethods, IndexingMethods, AttentionMethods, CollectiveMethods
):
    """Appends ops to a block, or inserts them before one of its ops, and returns their results.

    Arguments are checked as ops are built: ValueError says what was expected and what it got.
    """

    def __init__(self, block: Block, before: Operation | None = None):
        super().__init__(block, before)
        self.checks: list[tuple[SSAValue, str, str]] = []
        "Registered value checks: (0-d i1 that must be true, message, name of the exception)."
        self.out: list[tuple[str, Shape]] = []
        "(dtype, shape) expected of each result of the op now being imported."
        self.precision = "highest"
        "Precision of f32 contractions that the program requests."

    def scalar(self, number: Materializable, dtype: str) -> SSAValue:
        """A recorded number as a 0-d tensor: a constant, or an element of the pack of run-time numbers."""
        return number.materialize(self, dtype)

    def random_bits(self, seed: SSAValue, offset: SSAValue, shape: Sequence[int], dtype: str = "ui32") -> SSAValue:
        """Random bits that depend only on (seed, offset) and the row-major index of each element."""
        result = random.random_bits_type(type_of(seed), type_of(offset), shape, dtype)
        return self.one(random.RandomBitsOp, (seed, offset), result)

    def sort(self, xs: Sequence[SSAValue], dim: int, descending: bool = False) -> list[SSAValue]:
        """All of xs, reordered by the stable sort of the first along `dim`; NaN is the largest."""
        types = sorting.sort_types([type_of(x) for x in xs], dim)
        props = {"dim": integer_prop(dim), "descending": flag_prop(descending)}
        return list(self.op(sorting.SortOp, xs, types, props).results)

    def template(
        self,
        name: str,
        /,
        operands: Sequence[SSAValue],
        results: Sequence[tuple[str, Sequence[int]]],
        **params: template.Param,
    ) -> list[SSAValue]:
        """A call of the template `name`; `results` are the (dtype, shape) that it returns for these arguments."""
        types = [tensor_type(dtype, shape) for dtype, shape in results]
        attributes = DictionaryAttr({key: template.to_attribute(value) for key, value in params.items()})
        props = {"name": string(name), "params": attributes}
        return list(self.op(template.TemplateOp, operands, types, props).results)

    def jax_call(
        self, body: str, /, operands: Sequence[SSAValue], results: Sequence[tuple[str, Sequence[int]]]
    ) -> list[SSAValue]:
        """A call of the custom kernel whose body is known by the key `body`; `results` are the (dtype, shape) that it
        returns."""
        types = [tensor_type(dtype, shape) for dtype, shape in results]
        return list(self.op(jax_call.JaxCallOp, operands, types, {"body": string(body)}).results)

    def check(self, ok: SSAValue, message: str, error: str = "IndexError") -> None:
        """Register a value check: unless all of `ok` (i1) is true, reading a value that depends on it raises `message`.

        `error` names the exception: IndexError, RuntimeError, ValueError, ZeroDivisionError or torch's LinAlgError.
        """
        if dtype_of(ok) != "i1":
            raise ValueError(f"a check must be i1; got {ok.type}")
        passed = self.reduce("and", ok, range(len(shape_of(ok))))
        self.checks.append((passed, message, error))

    def add(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("add", x, y)

    def sub(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("sub", x, y)

    def mul(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("mul", x, y)

    def div(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("div", x, y)

    def max(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("max", x, y)

    def min(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("min", x, y)

    def and_(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("and", x, y)

    def or_(self, x: SSAValue, y: SSAValue) -> SSAValue:
        return self.binary("or", x, y)

    def not_(self, x: SSAValue) -> SSAValue:
        return self.unary("not", x)

    def neg(self, x: SSAValue) -> SSAValue:
        return self.unary("neg", x)

    def exp(self, x: SSAValue) -> SSAValue:
        return self.unary("exp", x)

    def log(self, x: SSAValue) -> SSAValue:
        return self.unary("log", x)

    def sqrt(self, x: SSAValue) -> SSAValue:
        return self.unary("sqrt", x)

    def rsqrt(self, x: SSAValue) -> SSAValue:
        return self.unary("rsqrt", x)

    def abs(self, x: SSAValue) -> SSAValue:
        return self.unary("abs", x)

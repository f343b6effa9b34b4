"""The builder of ops, with inferred result types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from lazytpu.ir import jax_call, random, sorting, template
from lazytpu.ir.building.associative_scan import Combine, build_associative_scan
from lazytpu.ir.building.attention import AttentionMethods
from lazytpu.ir.building.collectives import CollectiveMethods
from lazytpu.ir.building.contractions import ContractionMethods
from lazytpu.ir.building.control import Filling, build_if, build_repeat, build_scan, build_while
from lazytpu.ir.building.core import flag_prop, integer_prop
from lazytpu.ir.building.reductions import ReductionMethods
from lazytpu.ir.building.regions import RegionMethods
from lazytpu.ir.types import Shape, dtype_of, shape_of, string, tensor_type, type_of


class Materializable(Protocol):
    """A number in a trace: a constant or a run-time number."""

    def materialize(self, b: Builder, dtype: str, /) -> SSAValue: ...


class Builder(RegionMethods, ReductionMethods, ContractionMethods, AttentionMethods, CollectiveMethods):
    """Appends ops to a block, or inserts them before one of its ops, and returns their results.

    Arguments are checked as ops are built: ValueError says what was expected and what it got.
    """

    def __init__(self, block: Block, before: Operation | None = None):
        super().__init__(block, before)
        self.out: list[tuple[str, Shape]] = []
        "(dtype, shape) expected of each result of the op now being imported."
        self.precision = "highest"
        "Precision of f32 contractions that the program requests."

    def scalar(self, number: Materializable, dtype: str) -> SSAValue:
        """A recorded number as a 0-d tensor: a constant, or an element of the pack of run-time numbers."""
        return number.materialize(self, dtype)

    def nested(self, types: Sequence[Attribute]) -> Builder:
        inner = Builder(Block(arg_types=types))
        inner.outer, inner.location, inner.precision = self, self.location, self.precision
        inner.identities = self.identities
        return inner

    def number(self, pack: SSAValue, index: int) -> SSAValue:
        """Element `index` of a 1-D pack of run-time numbers (0-d). In a region it is read outside and captured."""
        return super().number(pack, index) if self.outer is None else self.outer.number(pack, index)

    def if_(
        self, condition: SSAValue, then: Filling, orelse: Filling, operands: Sequence[SSAValue] = ()
    ) -> list[SSAValue]:
        """Return the results of `then(b, *operands)` if the condition (0-d i1) is true, else of `orelse(b, *operands)`.

        Each function receives the builder of its region. Both return one value or several, of the same types. Only one
        of the regions runs. They may also use values that are not among the operands.
        """
        return build_if(self, condition, then, orelse, operands)

    def while_(
        self, carried: Sequence[SSAValue], cond: Filling, body: Filling, invariants: Sequence[SSAValue] = ()
    ) -> list[SSAValue]:
        """The carried values after as many iterations as `cond(b, *carried, *invariants)` is true (0-d i1).

        `body(b, *carried, *invariants)` returns the next carried values, of the same types. Both get the builder of
        their region, and may also use values from outside, which are invariants too."""
        return build_while(self, carried, cond, body, invariants)

    def repeat(
        self, times: int | SSAValue, carried: Sequence[SSAValue], body: Filling, invariants: Sequence[SSAValue] = ()
    ) -> list[SSAValue]:
        """The carried values after `times` iterations of `body(b, i, *carried, *invariants)`; i, a 0-d i32, counts
        from 0."""
        return build_repeat(self, times, carried, body, invariants)

    def scan(
        self,
        carried: Sequence[SSAValue],
        xs: Sequence[SSAValue],
        body: Filling,
        length: int,
        reverse: bool = False,
        invariants: Sequence[SSAValue] = (),
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        """The carried values after `length` steps, and the outputs of all steps, stacked along a new first dimension.

        `body(b, *carried, *rows, *invariants)` gets x[i] of each of xs, whose first dimension is `length`, and returns
        the next carried values and then the outputs of the step. With `reverse` the steps go from the last row to the
        first; outputs stay beside their rows."""
        return build_scan(self, carried, xs, body, length, reverse, invariants)

    def associative_scan(self, combine: Combine, xs: Sequence[SSAValue]) -> list[SSAValue]:
        """The results y[0] = x[0], y[i] = combine(y[i - 1], x[i]) along the first dimension, for all of xs at once.

        `combine(left, right)` gets values of any number of rows, and combines them row by row; it must be associative.
        It is called about 2 log2(length) times, and no loop is built."""
        return build_associative_scan(self, combine, xs)

    def random_bits(
        self,
        seed: SSAValue,
        offset: SSAValue,
        shape: Sequence[int],
        dtype: str = "ui32",
        *,
        index: SSAValue | None = None,
    ) -> SSAValue:
        """Random bits that depend only on (seed, offset) and the row-major index of each element, or its `index`."""
        counted = () if index is None else (index,)
        types = [type_of(x) for x in counted]
        result = random.random_bits_type(type_of(seed), type_of(offset), shape, dtype, *types)
        return self.one(random.RandomBitsOp, (seed, offset, *counted), result)

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
        """Call the template `name`; `results` are the (dtype, shape) that it returns for these arguments."""
        types = [tensor_type(dtype, shape) for dtype, shape in results]
        attributes = DictionaryAttr({key: template.to_attribute(value) for key, value in params.items()})
        props = {"name": string(name), "params": attributes}
        return list(self.op(template.TemplateOp, operands, types, props).results)

    def jax_call(
        self,
        body: str,
        /,
        operands: Sequence[SSAValue],
        results: Sequence[tuple[str, Sequence[int]]],
        sharding: str = "",
        padding: str = "",
    ) -> list[SSAValue]:
        """Call the custom kernel whose body has the key `body`; `results` are the (dtype, shape) that it returns, and
        `sharding` and `padding` are its rules."""
        types = [tensor_type(dtype, shape) for dtype, shape in results]
        props = {"body": string(body), "sharding": string(sharding), "padding": string(padding)}
        return list(self.op(jax_call.JaxCallOp, operands, types, props).results)

    def check(self, ok: SSAValue, message: str, error: str = "IndexError") -> None:
        """Register a value check: unless all elements of `ok` (i1) are true, reading a value that depends on it raises
        `message`.

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

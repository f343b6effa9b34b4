"""The builder of lowering rules: one MLIR module under construction, with its interned types and attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from xdsl.ir import Attribute, SSAValue

from lazytpu.ir.base import TensorOp
from lazytpu.ir.types import (
    FLOATS8,
    array_dtype,
    dtype_of,
    extremes,
    is_complex,
    is_float,
    is_unsigned,
    numpy_dtype,
    shape_of,
)
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import func, ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo

_ELEMENTS: dict[str, Callable[[], ir.Type]] = {
    # As bits: XLA:CPU changes the bits of a NaN when it moves 8-bit floats, and no TPU supports all formats.
    **dict.fromkeys(FLOATS8, lambda: ir.IntegerType.get_unsigned(8)),
    "f16": lambda: ir.F16Type.get(),
    "bf16": lambda: ir.BF16Type.get(),
    "f32": lambda: ir.F32Type.get(),
    "f64": lambda: ir.F64Type.get(),
    "c64": lambda: ir.ComplexType.get(ir.F32Type.get()),
    "c128": lambda: ir.ComplexType.get(ir.F64Type.get()),
}

Words: TypeAlias = "tuple[ir.Value, ir.Value]"
"""Two ui32 tensors: the high and low halves of 64 bits."""

# The elementwise StableHLO op of each kind of reduction or scatter. Of floats, see `Emission.extreme`.
COMBINERS = {
    "add": "stablehlo.add",
    "mul": "stablehlo.multiply",
    "max": "stablehlo.maximum",
    "min": "stablehlo.minimum",
    "peak": "stablehlo.maximum",
    "total": "stablehlo.add",
    "and": "stablehlo.and",
    "or": "stablehlo.or",
}

# Ops that only move elements.
_MOVES = frozenset(f"stablehlo.{name}" for name in ("reshape", "transpose", "slice", "broadcast_in_dim", "reverse"))


class Emission:
    """A StableHLO module under construction. Rules run in its context, at the current insertion point and location."""

    def __init__(
        self, module: ir.Module, platform: str | None = None, replicas: int = 1, mesh: tuple[int, ...] | None = None
    ) -> None:
        self.module = module
        self.platform = platform
        """The platform that templates are lowered for; None for the platform of this process."""
        self.replicas = replicas
        self.mesh = mesh
        """The mesh along whose axes all groups of the module lie; None if there is none."""
        # xDSL types are looked up by id (hashing one costs 5 us), and kept alive so that ids are not reused.
        self._types: dict[int, tuple[Attribute, ir.RankedTensorType]] = {}
        self._tensors: dict[tuple[str, tuple[int, ...]], ir.RankedTensorType] = {}
        self._elements: dict[str, ir.Type] = {}
        self._attributes: dict[Any, Any] = {}
        self._functions: dict[Any, str] = {}
        self._symbols: set[str] = {"main"}
        self.constants: set[SSAValue] = set()
        "The values that no argument of a function or region reaches, and those without elements: XLA may fold them."
        self.keys: dict[int, Words] = {}
        "The keys of streams of random bits that are derived together, by the id of the op (lowering/random.py)."

    # Types and attributes

    def element(self, dtype: str) -> ir.Type:
        """The element type of a dtype name."""
        element = self._elements.get(dtype)
        if element is None:
            if dtype == "c128" and self.target == "tpu":
                # Recording rejects it op by op; programs recorded elsewhere, or compiled graphs, fail here.
                raise NotImplementedError("the compiler of a TPU has no complex128: use complex64, or the CPU")
            if dtype in _ELEMENTS:
                element = _ELEMENTS[dtype]()
            elif is_unsigned(dtype):
                element = ir.IntegerType.get_unsigned(int(dtype[2:]))
            else:
                element = ir.IntegerType.get_signless(int(dtype[1:]))
            self._elements[dtype] = element
        return element

    def tensor(self, dtype: str, shape: Iterable[int] = ()) -> ir.RankedTensorType:
        """The type `tensor<shape x dtype>`."""
        key = (dtype, tuple(shape))
        tensor = self._tensors.get(key)
        if tensor is None:
            tensor = self._tensors[key] = ir.RankedTensorType.get(key[1], self.element(dtype))
        return tensor

    def type(self, kind: Attribute) -> ir.RankedTensorType:
        """The MLIR type of an xDSL tensor type."""
        entry = self._types.get(id(kind))
        if entry is None:
            entry = self._types[id(kind)] = (kind, self.tensor(dtype_of(kind), shape_of(kind)))
        return entry[1]

    def result(self, op: TensorOp, index: int = 0) -> ir.RankedTensorType:
        """The MLIR type of an op's result."""
        return self.type(op.results[index].type)

    def attribute(self, key: Any, make: Callable[[], Any]) -> Any:
        """The result of `make()`, cached under the key."""
        attribute = self._attributes.get(key)
        if attribute is None:
            attribute = self._attributes[key] = make()
        return attribute

    # Building

    def create(self, name: str, operands: Sequence[ir.Value], result: ir.Type) -> ir.Value:
        """An op without attributes and with one result. Takes 2.3 us, jaxlib's typed builders 4 to 5."""
        return ir.Operation.create(name, results=[result], operands=operands).result

    def constant(self, value: bool | int | float | complex, dtype: str, shape: Iterable[int] = ()) -> ir.Value:
        """A tensor whose elements are all `value`, rounded to the dtype."""
        kind = self.tensor(dtype, shape)
        if is_float(dtype) and dtype not in FLOATS8 and not isinstance(value, complex):
            splat = ir.DenseElementsAttr.get_splat(kind, ir.FloatAttr.get(kind.element_type, float(value)))
        else:
            # An array of one element is a splat of any shape; IntegerAttr cannot hold the upper half of ui64.
            splat = self.dense(np.array([value], numpy_dtype(dtype)), dtype, kind.shape)
        return hlo.constant(splat)

    def dense(self, table: np.ndarray[Any, Any], dtype: str, shape: Iterable[int]) -> ir.DenseElementsAttr:
        """A table as an attribute; a table of one number is a splat."""
        data: Any = table.view(array_dtype(dtype)) if dtype in FLOATS8 else table
        return ir.DenseElementsAttr.get(data, type=self.element(dtype), shape=list(shape))

    @property
    def target(self) -> str:
        """The platform that the module is emitted for: "cpu", "tpu", ..."""
        return self.platform or client.platform()

    def convert(self, x: ir.Value, dtype: str) -> ir.Value:
        """x converted to a dtype; x itself when it has that dtype."""
        kind = ir.RankedTensorType(x.type)
        if kind.element_type == self.element(dtype):
            return x
        return self.create("stablehlo.convert", [self.settled(x)], self.tensor(dtype, kind.shape))

    def settled(self, x: ir.Value) -> ir.Value:
        """Return x, protected from being recomputed with other rounding by its users.

        XLA:CPU offloads a reduction, together with the arithmetic before it, to a library (YNNPACK) that computes
        bfloat16 and 8-bit values in float32. Intermediate values are not rounded, integers do not wrap around, and the
        result differs from single ops. The library takes only ops that it supports. The ops used here are not
        supported, change no element, and cost nothing besides a reduction (docs/modes.md). Arguments need no
        protection.
        """
        element = ir.RankedTensorType(x.type).element_type
        if element not in (self.element(dtype) for dtype in ("bf16", "i8", "ui8")) or _is_argument(x):
            return x
        if self.target != "cpu":
            return x
        if element == self.element("bf16"):
            return hlo.reduce_precision(x, 8, 7)
        dtype = "i8" if element == self.element("i8") else "ui8"
        low, high = (self.constant(limit, dtype) for limit in extremes(dtype))
        return hlo.clamp(low, x, high)

    def binary(self, name: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """Build the StableHLO op `name` ("add", "multiply", ...) on two operands of one type, which the result has,
        too."""
        return self.create(f"stablehlo.{name}", [x, y], x.type)

    def compare(self, direction: str, x: ir.Value, y: ir.Value, dtype: str) -> ir.Value:
        """Build x `direction` y (EQ, LT, ...) as i1; `dtype` is the operands' dtype."""
        order = "FLOAT" if is_float(dtype) or is_complex(dtype) else "SIGNED"
        if is_unsigned(dtype) or dtype == "i1":
            order = "UNSIGNED"
        return hlo.compare(
            x,
            y,
            self.attribute(direction, lambda: hlo.ComparisonDirectionAttr.get(direction)),
            compare_type=self.attribute(order, lambda: hlo.ComparisonTypeAttr.get(order)),
        )

    def extreme(self, kind: str, x: ir.Value, y: ir.Value, dtype: str) -> ir.Value:
        """Build the greater of x and y for "max", the lesser for "min"; of floats, NaN if either is NaN, and x of two
        zeros.

        Floats are compared and selected. XLA:CPU offloads `maximum`, `minimum` and `clamp` before a reduction, and the
        reduction by one of them, to YNNPACK, which loses NaN. Backends also differ in the zero that they keep.
        """
        if not is_float(dtype):
            return self.binary("maximum" if kind == "max" else "minimum", x, y)
        beyond = self.compare("GT" if kind == "max" else "LT", y, x, dtype)
        if not _is_number(y):
            beyond = self.binary("or", beyond, self.compare("NE", y, y, dtype))
        return self.create("stablehlo.select", [beyond, y, x], x.type)

    def combiner(self, region: ir.Region, kind: str, dtype: str, one_op: bool = False) -> None:
        """Fill the body of a reduction or scatter, which combines two 0-d values of `dtype`. `set` returns the second.
        On the CPU max and min are `extreme`, unless XLA has to recognize the body by its only op (`one_op`): in
        collectives, in windows and scatters of accelerators, and in a reduction by `peak`."""
        scalar = self.tensor(dtype)
        block = region.blocks.append(scalar, scalar, arg_locs=[ir.Location.current] * 2)
        with ir.InsertionPoint(block):
            left, right = block.arguments
            if kind == "set":
                combined = right
            elif kind in ("max", "min") and self.target == "cpu" and not one_op:
                combined = self.extreme(kind, left, right, dtype)
            else:
                combined = self.create(COMBINERS[kind], [left, right], scalar)
            hlo.return_([combined])

    # Functions

    def function(self, key: Any, name: str, make: Callable[[str], None]) -> str:
        """The symbol of a private function, one for each key. On first use `make(symbol)` builds the function at the
        end of the module, under the symbol `name`, with a number appended if that is taken."""
        if key not in self._functions:
            symbol = self.symbol(name)
            self._functions[key] = symbol
            with ir.InsertionPoint(self.module.body), ir.Location.unknown():
                make(symbol)
        return self._functions[key]

    def symbol(self, name: str) -> str:
        """A symbol that is not yet used in the module: `name`, with a number appended if that is taken."""
        chosen, number = name, 1
        while chosen in self._symbols:
            chosen, number = f"{name}_{number}", number + 1
        self._symbols.add(chosen)
        return chosen

    def call(self, symbol: str, operands: Sequence[ir.Value], results: Sequence[ir.Type]) -> list[ir.Value]:
        """Call a function of the module. XLA inlines it. If the location of the call has a name, inlined ops without a
        source line get the call's line."""
        location: Any = ir.Location.current
        named = location if isinstance(location, ir.NameLoc) else ir.Location.name(symbol, childLoc=location)
        return list(func.CallOp(list(results), symbol, list(operands), loc=named).results)


def _is_number(x: ir.Value) -> bool:
    """Whether x is one constant number, not NaN."""
    owner = x.owner
    while not isinstance(owner, ir.Block) and owner.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        owner = owner.operands[0].owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.constant":
        return False
    table = ir.DenseFPElementsAttr(owner.attributes["value"])
    return table.is_splat and not np.isnan(ir.FloatAttr(table.get_splat_value()).value)


def _is_argument(x: ir.Value) -> bool:
    """Whether x consists of elements of an argument of `@main`."""
    owner = x.owner
    while not isinstance(owner, ir.Block) and owner.name in _MOVES:
        owner = owner.operands[0].owner
    if not isinstance(owner, ir.Block) or "sym_name" not in owner.owner.attributes:  # a region's argument is computed
        return False
    return ir.StringAttr(owner.owner.attributes["sym_name"]).value == "main"

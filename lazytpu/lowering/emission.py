"""What lowering rules build with: one MLIR module in the making, and its types and attributes, each made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Attribute

from lazytpu.ir.base import TensorOp
from lazytpu.ir.types import FLOATS8, array_dtype, dtype_of, is_complex, is_float, is_unsigned, numpy_dtype, shape_of
from lazytpu.runtime import client
from lazytpu.runtime.mlir import func, ir
from lazytpu.runtime.mlir import stablehlo as hlo

_ELEMENTS: dict[str, Callable[[], ir.Type]] = {
    # Their bits: XLA:CPU changes those of a NaN when it moves them, and no TPU has all of the formats.
    **dict.fromkeys(FLOATS8, lambda: ir.IntegerType.get_unsigned(8)),
    "f16": lambda: ir.F16Type.get(),
    "bf16": lambda: ir.BF16Type.get(),
    "f32": lambda: ir.F32Type.get(),
    "f64": lambda: ir.F64Type.get(),
    "c64": lambda: ir.ComplexType.get(ir.F32Type.get()),
    "c128": lambda: ir.ComplexType.get(ir.F64Type.get()),
}

# Elementwise StableHLO ops by the kind of a reduction or scatter; maximum and minimum give NaN if an operand is NaN.
COMBINERS = {
    "add": "stablehlo.add",
    "mul": "stablehlo.multiply",
    "max": "stablehlo.maximum",
    "min": "stablehlo.minimum",
    "and": "stablehlo.and",
    "or": "stablehlo.or",
}

# Ops that move elements and change none.
_MOVES = frozenset(f"stablehlo.{name}" for name in ("reshape", "transpose", "slice", "broadcast_in_dim", "reverse"))


class Emission:
    """One StableHLO module in the making. Rules run inside its context, at its insertion point and location."""

    def __init__(self, module: ir.Module, platform: str | None = None, replicas: int = 1) -> None:
        self.module = module
        self.platform = platform
        "Whose spelling templates take: None stands for the platform that programs run on."
        self.replicas = replicas
        # xDSL types are keyed by identity (hashing one costs 5 us) and kept, so that an identity is not used again.
        self._types: dict[int, tuple[Attribute, ir.RankedTensorType]] = {}
        self._tensors: dict[tuple[str, tuple[int, ...]], ir.RankedTensorType] = {}
        self._elements: dict[str, ir.Type] = {}
        self._attributes: dict[Any, Any] = {}
        self._functions: dict[Any, str] = {}
        self._symbols: set[str] = {"main"}

    # Types and attributes

    def element(self, dtype: str) -> ir.Type:
        """The element type of a dtype name."""
        made = self._elements.get(dtype)
        if made is None:
            if dtype == "c128" and self.target == "tpu":
                # Recording refuses it op by op; what was recorded elsewhere, or in a compiled graph, ends here.
                raise NotImplementedError("the compiler of a TPU has no complex128: use complex64, or the CPU")
            if dtype in _ELEMENTS:
                made = _ELEMENTS[dtype]()
            elif is_unsigned(dtype):
                made = ir.IntegerType.get_unsigned(int(dtype[2:]))
            else:
                made = ir.IntegerType.get_signless(int(dtype[1:]))
            self._elements[dtype] = made
        return made

    def tensor(self, dtype: str, shape: Iterable[int] = ()) -> ir.RankedTensorType:
        """The type `tensor<shape x dtype>`."""
        key = (dtype, tuple(shape))
        made = self._tensors.get(key)
        if made is None:
            made = self._tensors[key] = ir.RankedTensorType.get(key[1], self.element(dtype))
        return made

    def type(self, kind: Attribute) -> ir.RankedTensorType:
        """The MLIR type of an xDSL tensor type."""
        known = self._types.get(id(kind))
        if known is None:
            known = self._types[id(kind)] = (kind, self.tensor(dtype_of(kind), shape_of(kind)))
        return known[1]

    def result(self, op: TensorOp, index: int = 0) -> ir.RankedTensorType:
        """The MLIR type of an op's result."""
        return self.type(op.results[index].type)

    def attribute(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make()` gives, made once for the key."""
        made = self._attributes.get(key)
        if made is None:
            made = self._attributes[key] = make()
        return made

    # Building

    def create(self, name: str, operands: Sequence[ir.Value], result: ir.Type) -> ir.Value:
        """An op without attributes and with one result: 2.3 us, where jaxlib's typed builders take 4 to 5."""
        return ir.Operation.create(name, results=[result], operands=operands).result

    def constant(self, value: bool | int | float | complex, dtype: str, shape: Iterable[int] = ()) -> ir.Value:
        """A tensor whose elements are all `value`, rounded to dtype."""
        kind = self.tensor(dtype, shape)
        if is_float(dtype) and dtype not in FLOATS8 and not isinstance(value, complex):
            splat = ir.DenseElementsAttr.get_splat(kind, ir.FloatAttr.get(kind.element_type, float(value)))
        else:
            # One element for any shape is a splat; IntegerAttr cannot hold the upper half of ui64.
            splat = self.dense(np.array([value], numpy_dtype(dtype)), dtype, kind.shape)
        return hlo.constant(splat)

    def dense(self, table: np.ndarray[Any, Any], dtype: str, shape: Iterable[int]) -> ir.DenseElementsAttr:
        """A table as an attribute; a table of one number is a splat."""
        data: Any = table.view(array_dtype(dtype)) if dtype in FLOATS8 else table
        return ir.DenseElementsAttr.get(data, type=self.element(dtype), shape=list(shape))

    @property
    def target(self) -> str:
        """The platform that the module is for: "cpu", "tpu", ..."""
        return self.platform or client.platform()

    def convert(self, x: ir.Value, dtype: str) -> ir.Value:
        """x in another dtype; x itself when it has that dtype."""
        kind = ir.RankedTensorType(x.type)
        if kind.element_type == self.element(dtype):
            return x
        return self.create("stablehlo.convert", [self.settled(x)], self.tensor(dtype, kind.shape))

    def settled(self, x: ir.Value) -> ir.Value:
        """x, kept from being computed anew, in other numbers, by what reads it.

        XLA:CPU gives a reduction and the arithmetic before it to a library (YNNPACK) that computes in float32 what is
        bfloat16 or has 8 bits: nothing in between is rounded, no integer wraps around, and the result is another than
        that of the ops one by one. The library takes only ops that it knows. Of those that it does not know, these
        change no element, and cost nothing beside a reduction (docs/modes.md). Arguments need none."""
        element = ir.RankedTensorType(x.type).element_type
        if element not in (self.element(dtype) for dtype in ("bf16", "i8", "ui8")) or _is_argument(x):
            return x
        if self.target != "cpu":
            return x
        if element == self.element("bf16"):
            return hlo.reduce_precision(x, 8, 7)
        dtype = "i8" if element == self.element("i8") else "ui8"
        low, high = (self.constant(limit, dtype) for limit in _range(dtype))
        return hlo.clamp(low, x, high)

    def binary(self, name: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """The StableHLO op `name` ("add", "multiply", ...) of two operands of one type, which is the result's too."""
        return self.create(f"stablehlo.{name}", [x, y], x.type)

    def compare(self, direction: str, x: ir.Value, y: ir.Value, dtype: str) -> ir.Value:
        """x `direction` y (EQ, LT, ...) as i1; `dtype` is theirs."""
        order = "FLOAT" if is_float(dtype) or is_complex(dtype) else "SIGNED"
        if is_unsigned(dtype) or dtype == "i1":
            order = "UNSIGNED"
        return hlo.compare(
            x,
            y,
            self.attribute(direction, lambda: hlo.ComparisonDirectionAttr.get(direction)),
            compare_type=self.attribute(order, lambda: hlo.ComparisonTypeAttr.get(order)),
        )

    def identity(self, kind: str, dtype: str) -> bool | int | float | complex:
        """The number that a reduction of this kind starts from."""
        if kind in ("add", "or"):
            return 0
        if kind == "mul":
            return 1
        low, high = _range(dtype)
        return {"max": low, "min": high, "and": -1 if dtype.startswith("i") and dtype != "i1" else high}[kind]

    def combiner(self, region: ir.Region, kind: str, dtype: str) -> None:
        """Fills a region that combines two 0-d values of dtype: the body of a reduction or scatter. `set` keeps the
        second one."""
        scalar = self.tensor(dtype)
        block = region.blocks.append(scalar, scalar, arg_locs=[ir.Location.current] * 2)
        with ir.InsertionPoint(block):
            left, right = block.arguments
            hlo.return_([right if kind == "set" else self.create(COMBINERS[kind], [left, right], scalar)])

    # Functions

    def function(self, key: Any, name: str, make: Callable[[str], None]) -> str:
        """The symbol of a private function that is the same for the same key: `make(symbol)` builds it at the end of
        the module the first time, with the symbol `name`, or a numbered one if that is taken."""
        if key not in self._functions:
            symbol = self.symbol(name)
            self._functions[key] = symbol
            with ir.InsertionPoint(self.module.body), ir.Location.unknown():
                make(symbol)
        return self._functions[key]

    def symbol(self, name: str) -> str:
        """A symbol that no function of the module has yet."""
        chosen, number = name, 1
        while chosen in self._symbols:
            chosen, number = f"{name}_{number}", number + 1
        self._symbols.add(chosen)
        return chosen

    def call(self, symbol: str, operands: Sequence[ir.Value], results: Sequence[ir.Type]) -> list[ir.Value]:
        """A call of a function of the module; XLA inlines it, and gives what has no line in there that of the call, if
        that is a location with a name."""
        here: Any = ir.Location.current
        named = here if isinstance(here, ir.NameLoc) else ir.Location.name(symbol, childLoc=here)
        return list(func.CallOp(list(results), symbol, list(operands), loc=named).results)


def _range(dtype: str) -> tuple[Any, Any]:
    if is_float(dtype):
        return -np.inf, np.inf
    if dtype == "i1":
        return False, True
    info = np.iinfo(numpy_dtype(dtype))
    return info.min, info.max


def _is_argument(x: ir.Value) -> bool:
    """Whether the elements of x are those of an argument of `@main`."""
    owner = x.owner
    while not isinstance(owner, ir.Block) and owner.name in _MOVES:
        owner = owner.operands[0].owner
    return isinstance(owner, ir.Block) and ir.StringAttr(owner.owner.attributes["sym_name"]).value == "main"

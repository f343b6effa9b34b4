"""The size annotations that `pad-sizes` needs, read off a module that was built from symbolic sizes.

A module built under a `Derivation` (`lazytpu.ir.symbolic`) has the types and numbers of the bound, and the expression
of each: sizes in types, limits of slices, constants. `read` splits it into its structure, which is the same at all
sizes, and its integers. `annotate` attaches the expressions as attributes.

    with Derivation({"n": (2, 64)}) as derivation:
        module = ...
        reading = read(module)
    annotate(module, reading, derivation.symbols)

`read` also splits a module of one size, so that both can be compared (`lazytpu.engine.sizes.verification`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from lazytpu.ir.base import TensorOp
from lazytpu.ir.constants import ConstantOp, number_of
from lazytpu.ir.forms import Form, Range, form
from lazytpu.ir.jax_call import JaxCallOp
from lazytpu.ir.sizes import RECIPROCAL, SIZES, STATIC, TWICE, set_sizes, set_symbols
from lazytpu.ir.symbolic import Derivation, Reciprocal, Size
from lazytpu.ir.template import TemplateOp, from_attribute
from lazytpu.ir.types import dtype_of, ints, is_int_array, shape_of
from lazytpu.passes.padding.walk import Refusal

NEAR = 1e-6  # relative rounding error of a reciprocal in float32
MAX_CONSTANT = 1 << 31
"Constants from here on are structure: the pack of sizes is i32."
END = ("end",)
"""Marks the end of a region in the structure of a module."""


@dataclass
class Reading:
    """A module as its structure and its integers, which are size expressions.

    `entries` are the ops with their index in `structure`, and `places` the ops with the names and numbers of their
    integers. `reciprocals` are the constants that are 2 divided by an integer, up to rounding: the index of the
    integer, the dtype, and the constant at the bound.
    """

    function: FuncOp
    structure: list[Any] = field(default_factory=list[Any])
    integers: list[Form] = field(default_factory=list[Form])
    entries: list[tuple[Operation, int]] = field(default_factory=list[tuple[Operation, int]])
    places: list[tuple[Operation | None, str, int]] = field(default_factory=list[tuple[Operation | None, str, int]])
    reciprocals: list[tuple[int, str, float]] = field(default_factory=list[tuple[int, str, float]])
    _numbers: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    _texts: dict[int, str] = field(default_factory=dict[int, str])
    """The texts of properties by their `id`: most ops share them."""

    def add(self, op: Operation | None, name: str, integers: Sequence[Any]) -> None:
        """Append the integers that an op has under this name; op None stands for the arguments of the function."""
        self.places.append((op, name, len(integers)))
        self.integers.extend([size.form if isinstance(size, Size) else form(size) for size in integers])

    def add_block(self, block: Block) -> None:
        """Append the ops of a block."""
        for argument in block.args:
            self._numbers[argument] = len(self._numbers)
        for op in block.ops:
            self._add_op(op)

    def _add_op(self, op: Operation) -> None:
        # Properties that may be sizes are integers, all others are structure.
        properties: list[Any] = []
        sized = op.sized if isinstance(op, TensorOp) else ()
        for name, prop in op.properties.items():
            if isinstance(op, ConstantOp) and name == "value":
                properties.append(self._constant(op))
            elif isinstance(op, TemplateOp) and name == "params":
                for parameter, value in op.params.data.items():
                    is_size = parameter in sized
                    properties.append(
                        self._named(op, parameter, _parameter(value)) if is_size else self._fixed(op, parameter, value)
                    )
            elif is_int_array(prop) and name in sized:
                properties.append(self._named(op, name, ints(prop)))
            elif isinstance(op, JaxCallOp) and name == "body" and op.padding.data:  # the key differs for each size
                properties.append((name, op.body.data.rpartition("_")[0]))
            else:
                properties.append(self._fixed(op, name, prop))

        # Operands by number, results by dtype and rank; then the sizes of the results, and the regions.
        types = [(dtype_of(result), len(shape_of(result))) for result in op.results]
        operands = [self._numbers[value] for value in op.operands]
        self.entries.append((op, len(self.structure)))
        self.structure.append((op.name, tuple(properties), tuple(types), tuple(operands)))
        for result in op.results:
            self._numbers[result] = len(self._numbers)
        if op.results and not op.regions:
            self.add(op, "result", shape_of(op.results[0]))
        for i, result in enumerate(op.results[1:] if isinstance(op, JaxCallOp) else (), 1):
            self.add(op, f"result{i}", shape_of(result))
        for region in op.regions:
            self.add_block(region.block)
            self.structure.append(END)

    def _named(self, op: Operation, name: str, integers: Sequence[Any]) -> Any:
        self.add(op, name, integers)
        return name, len(integers)

    def _constant(self, op: ConstantOp) -> Any:
        """Append a constant and return its part of the structure.

        An integer may be a size, and so may a divisor of 2, as in gradients of means. Any other number is structure.
        """
        number: Any = number_of(op.value)
        if isinstance(number, Size):
            return self._named(op, "value", (number,))[0]
        if isinstance(number, Reciprocal):
            return self._reciprocal(op, number.value, Size(0, number.form, number.of))
        if isinstance(number, bool | complex) or not abs(number) < MAX_CONSTANT or repr(number) == "-0.0":
            return repr(number)
        if number == int(number):
            return self._named(op, "value", (int(number),))[0]
        divisor = round(TWICE / number)
        if abs(TWICE / number - divisor) > NEAR * abs(divisor) or not 1 < abs(divisor) < MAX_CONSTANT:
            return repr(number)
        return self._reciprocal(op, number, divisor)

    def _reciprocal(self, op: ConstantOp, number: float, divisor: Any) -> str:
        self.reciprocals.append((len(self.integers), dtype_of(op.results[0]), number))
        self.add(op, RECIPROCAL, (divisor,))
        return RECIPROCAL

    def _fixed(self, op: Operation, name: str, value: Attribute) -> tuple[str, str]:
        """Return a property that is the same at all sizes. Raise Refusal for one with a symbolic size."""
        key = id(value)
        text = self._texts.get(key)
        if text is None:
            derivation = Derivation.active
            values: list[Attribute] = [value]
            values += cast("ArrayAttr[Attribute]", value).data if isinstance(value, ArrayAttr) else ()
            if derivation is not None and any(derivation.attached(item) is not None for item in values):
                raise Refusal(op, f"its `{name}` is a size, and chooses what the op does")
            text = self._texts[key] = str(values[0])
        return name, text


def _parameter(value: Attribute) -> Sequence[Any]:
    """Return the integers of a template parameter that may be sizes."""
    number = from_attribute(value)
    return cast("Sequence[Any]", number if isinstance(number, tuple) else (number,))


def read(module: ModuleOp) -> Reading:
    """Split a module into its structure and its integers. A module with symbolic sizes must be read under its
    derivation."""
    function = next(op for op in module.ops if isinstance(op, FuncOp))
    reading = Reading(function)
    for argument in function.body.block.args:
        reading.structure.append((dtype_of(argument), len(shape_of(argument))))
        reading.add(None, "argument", shape_of(argument))
    reading.add_block(function.body.block)
    return reading


def annotate(module: ModuleOp, reading: Reading, symbols: Mapping[str, Range] = MappingProxyType({})) -> None:
    """Attach the size expressions of a module's integers, and its symbols, as attributes."""
    sizes: dict[Operation, dict[str, list[Form | None]]] = {}
    arguments: list[str] = []
    start = 0
    for op, name, count in reading.places:
        forms = [None if size.number is not None else size for size in reading.integers[start : start + count]]
        start += count
        if op is None:
            arguments.append(" ".join(STATIC if size is None else str(size) for size in forms))
        elif any(size is not None for size in forms):
            sizes.setdefault(op, {})[name] = forms
    for op, named in sizes.items():
        set_sizes(op, named)
    function = reading.function
    attributes = attributes_of(function.arg_attrs, len(function.body.block.args))
    for attribute, text in zip(attributes, arguments, strict=True):
        if set(text) - {STATIC, " "}:
            attribute[SIZES] = StringAttr(text)
    function.arg_attrs = ArrayAttr(map(DictionaryAttr, attributes))
    set_symbols(module, symbols)


def attributes_of(dictionaries: ArrayAttr[DictionaryAttr] | None, count: int) -> list[dict[str, Attribute]]:
    """Return the attributes of each argument or result of a function."""
    return [dict(a.data) for a in dictionaries or ()] or [{} for _ in range(count)]


def place(reading: Reading, index: int) -> tuple[Operation, str]:
    """Return the op and the name of the integer with this index."""
    for op, name, count in reading.places:
        if index < count:
            return reading.function if op is None else op, name
        index -= count
    raise IndexError(index)

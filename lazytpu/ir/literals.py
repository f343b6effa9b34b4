"""Conversions of numbers between Python, scalar attributes, text and bytes, exact to the bit.

xDSL's own text format is not used for numbers: its dense splats read -inf back as another number, and print 0.1 as f32
with nine digits. Here a float is printed with the fewest digits that read back to the same bits in its dtype;
infinities are `inf` and `-inf`, the default NaN is `nan`, and any other NaN is its bits in hexadecimal (`0xffc00000`).
"""

from __future__ import annotations

import math
from typing import TypeAlias, TypeGuard, cast

from xdsl.dialects.builtin import AnyFloat, ArrayAttr, ComplexType, FloatAttr, IntegerAttr, IntegerType, i1
from xdsl.ir import Attribute
from xdsl.parser import Parser
from xdsl.utils.hints import isa

from lazytpu.ir.symbolic import Derivation, LostSize, Reciprocal, Size
from lazytpu.ir.types import REAL_OF, element_type, numpy_dtype

LARGEST_SIZE = 1 << 31
"""Sizes are i32 in programs for many sizes."""
Number: TypeAlias = bool | int | float | complex
Literal: TypeAlias = bool | int | float | tuple["Literal", "Literal"]
"A parsed number: an int where a float is expected is the bits of the float; a pair is a complex number."


def scalar(value: Number, dtype: str) -> Attribute:
    """The attribute for a Python number of dtype `dtype`: a FloatAttr, an IntegerAttr (also for `i1`), or for complex
    dtypes an ArrayAttr of two FloatAttrs. Floats round to nearest even, and overflow to infinity. Raises ValueError for
    a number that the dtype cannot hold, such as 0.5 as i32 or 300 as ui8."""
    if isinstance(value, Size | Reciprocal):
        return _symbolic(value, dtype)
    element = element_type(dtype)
    if (component := part_type(element)) is not None:
        number = complex(value)
        return ArrayAttr([_float(number.real, component), _float(number.imag, component)])
    if isinstance(value, complex):
        if value.imag != 0:
            raise ValueError(f"{value} has an imaginary part; expected a real number for {dtype}")
        value = value.real
    if is_integer_type(element):
        return _integer(value, element)
    assert isinstance(element, AnyFloat)
    return _float(float(value), element)


def _symbolic(value: Size | Reciprocal, dtype: str) -> Attribute:
    """Return the attribute of the number at the bound, with the symbolic one attached. Raises LostSize for a dtype that
    cannot hold the number at all sizes."""
    if dtype == "i1":
        return scalar(bool(value), dtype)
    attribute = scalar(value.value, dtype)
    if isinstance(value, Size):
        ends = value.of.range_of(value.form)
        try:
            for end in ends:
                scalar(end, dtype)
        except ValueError as error:
            raise LostSize(f"the size {value.form} is a constant of {dtype}: {error}") from error
        if max(map(abs, ends)) >= LARGEST_SIZE or dtype in REAL_OF:
            raise LostSize(f"the size {value.form} is a constant of {dtype}; sizes are i32 in a program for many sizes")
    return value.of.attach(attribute, value)


# xDSL's attributes are generic, and isinstance does not narrow their type parameters; these guards do.


def is_float_attr(value: Attribute) -> TypeGuard[FloatAttr]:
    return isinstance(value, FloatAttr)


def is_integer_attr(value: Attribute) -> TypeGuard[IntegerAttr[IntegerType]]:
    return isinstance(value, IntegerAttr)


def is_integer_type(element: Attribute) -> TypeGuard[IntegerType]:
    return isinstance(element, IntegerType)


def part_type(element: Attribute) -> AnyFloat | None:
    """The type of the real and imaginary parts of a complex element type; None for any other."""
    if not isinstance(element, ComplexType):
        return None
    element_type_of_parts = cast(ComplexType, element).element_type
    assert isinstance(element_type_of_parts, AnyFloat)
    return element_type_of_parts


def _integer(value: int | float, kind: IntegerType) -> IntegerAttr:
    if kind == i1:
        return IntegerAttr(int(bool(value)), kind)
    if not math.isfinite(value) or int(value) != value:
        raise ValueError(f"{value} is not a whole number; expected one for {kind}")
    if kind.normalized_value(int(value)) is None:
        least, end = kind.value_range()
        raise ValueError(f"{value} does not fit {kind}, which holds {least} to {end - 1}")
    return IntegerAttr(int(value), kind)


def _float(value: float, kind: AnyFloat) -> FloatAttr:
    try:
        return FloatAttr(value, kind)
    except OverflowError:
        return FloatAttr(math.copysign(math.inf, value), kind)


def parts_of(value: Attribute) -> tuple[FloatAttr, FloatAttr] | None:
    """The real and imaginary attributes of a complex scalar; None for anything else."""
    if isa(value, ArrayAttr[FloatAttr]) and len(value) == 2:
        return value.data[0], value.data[1]
    return None


def number_of(value: Attribute) -> Number:
    """The Python number that a scalar attribute holds."""
    if Derivation.active is not None and (symbolic := Derivation.active.attached(value)) is not None:
        return symbolic
    if is_float_attr(value):
        return value.value.data
    if is_integer_attr(value):
        return bool(value.value.data) if value.type == i1 else value.value.data
    if (components := parts_of(value)) is not None:
        return complex(components[0].value.data, components[1].value.data)
    raise ValueError(f"{value} is not a scalar constant")


def check_scalar(value: Attribute, dtype: str) -> None:
    """Raises ValueError unless `value` is an attribute that `scalar` returns for `dtype`."""
    element = element_type(dtype)
    component = part_type(element)
    if component is not None:
        pair = parts_of(value)
        fits = pair is not None and all(value_part.type == component for value_part in pair)
    else:
        fits = (is_float_attr(value) or is_integer_attr(value)) and value.type == element
    if not fits:
        raise ValueError(f"value {value} is not a number of dtype {dtype}")


def to_text(value: Attribute) -> str:
    """The text of a scalar attribute, without its type."""
    if is_float_attr(value):
        return _float_text(value.value.data, value.type)
    if is_integer_attr(value):
        return str(number_of(value)).lower()
    if (components := parts_of(value)) is not None:
        return f"({to_text(components[0])}, {to_text(components[1])})"
    raise ValueError(f"{value} is not a scalar constant")


def _float_text(value: float, kind: AnyFloat) -> str:
    bits = kind.pack((value,))
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if math.isnan(value):
        return "nan" if bits == kind.pack((math.nan,)) else f"0x{bits[::-1].hex()}"
    for digits in range(1, 17):
        text = f"{value:.{digits}g}"
        if _bits(float(text), kind) == bits:
            return _with_point(text)
    return _with_point(repr(value))


def _bits(value: float, kind: AnyFloat) -> bytes | None:
    try:
        return kind.pack((value,))
    except OverflowError:
        return None


def _with_point(text: str) -> str:
    """The text with a decimal point, without which it would be an integer."""
    mantissa, exponent, power = text.partition("e")
    return text if "." in mantissa else f"{mantissa}.0{exponent}{power}"


def parse_literal(parser: Parser) -> Literal:
    """Parse a number that `to_text` printed, before its dtype is known."""
    if parser.parse_optional_punctuation("("):
        real = parse_literal(parser)
        parser.parse_punctuation(",")
        pair = (real, parse_literal(parser))
        parser.parse_punctuation(")")
        return pair
    if (truth := parser.parse_optional_boolean()) is not None:
        return truth
    sign = -1 if parser.parse_optional_punctuation("-") else 1
    if parser.parse_optional_keyword("inf"):
        return sign * math.inf
    if parser.parse_optional_keyword("nan"):
        return math.nan
    return sign * parser.parse_number(context_msg=" for a constant")


def from_literal(literal: Literal, dtype: str) -> Attribute:
    """The attribute of dtype `dtype` for a parsed number. Raises ValueError when they do not match."""
    element = element_type(dtype)
    if dtype in REAL_OF:
        if not isinstance(literal, tuple):
            raise ValueError(f"expected a pair (real, imaginary) for {dtype}, got {literal}")
        return ArrayAttr([from_literal(component, REAL_OF[dtype]) for component in literal])
    if isinstance(literal, tuple) or isinstance(literal, bool) != (dtype == "i1"):
        raise ValueError(f"{literal} is not a number of dtype {dtype}")
    if isinstance(element, AnyFloat) and isinstance(literal, int):
        if literal < 0 or literal.bit_length() > element.bitwidth:
            raise ValueError(
                f"{literal} is not a pattern of the {element.bitwidth} bits of {dtype}; write floats with a point"
            )
        return FloatAttr(element.unpack(literal.to_bytes(element.size, "little"), 1)[0], element)
    if is_integer_type(element) and isinstance(literal, float):
        raise ValueError(f"{literal} is not an integer; expected one for {dtype}")
    return scalar(literal, dtype)


def to_bytes(value: Attribute) -> bytes:
    """The bytes of a scalar attribute in memory: little-endian, one byte for `i1`."""
    if is_float_attr(value):
        return value.type.pack((value.value.data,))
    if is_integer_attr(value):
        number = abs(value.value.data) if value.type == i1 else value.value.data  # xDSL stores a true i1 as -1
        return (number % (1 << 8 * value.type.size)).to_bytes(value.type.size, "little")
    if (components := parts_of(value)) is not None:
        return to_bytes(components[0]) + to_bytes(components[1])
    raise ValueError(f"{value} is not a scalar constant")


def from_bytes(raw: bytes, dtype: str) -> list[Attribute]:
    """The scalar attributes of a table, from its bytes."""
    element = element_type(dtype)
    if dtype in REAL_OF:
        components = from_bytes(raw, REAL_OF[dtype])
        return [ArrayAttr(components[i : i + 2]) for i in range(0, len(components), 2)]
    size = numpy_dtype(dtype).itemsize
    chunks = [raw[i : i + size] for i in range(0, len(raw), size)]
    if isinstance(element, AnyFloat):
        return [FloatAttr(element.unpack(chunk, 1)[0], element) for chunk in chunks]
    assert is_integer_type(element)
    return [IntegerAttr(int.from_bytes(chunk, "little"), element, truncate_bits=True) for chunk in chunks]

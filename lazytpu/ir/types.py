"""Dtypes and shapes of tensor types.

Everywhere below the frontend a dtype is one of the strings in `DTYPES`, as in StableHLO: signed integers are signless
(`i32`), unsigned ones are `ui32`, booleans are `i1`; `c64` is `complex<f32>` and `c128` is `complex<f64>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from math import prod
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from xdsl.dialects.builtin import (
    I64,
    AnyTensorType,
    BFloat16Type,
    ComplexType,
    DenseArrayBase,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float8E8M0FNUType,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    NoneAttr,
    Signedness,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, SSAValue

from lazytpu.ir.symbolic import Derivation, has_sizes, number_at_bound

Shape: TypeAlias = tuple[int, ...]

_ELEMENTS: dict[str, Attribute] = {
    "f8e4m3fn": Float8E4M3FNType(),
    "f8e5m2": Float8E5M2Type(),
    "f8e4m3fnuz": Float8E4M3FNUZType(),
    "f8e5m2fnuz": Float8E5M2FNUZType(),
    "f8e8m0fnu": Float8E8M0FNUType(),
    "f16": Float16Type(),
    "bf16": BFloat16Type(),
    "f32": Float32Type(),
    "f64": Float64Type(),
    "i1": IntegerType(1),
    **{f"i{n}": IntegerType(n) for n in (8, 16, 32, 64)},
    **{f"ui{n}": IntegerType(n, Signedness.UNSIGNED) for n in (8, 16, 32, 64)},
    "c64": ComplexType(Float32Type()),
    "c128": ComplexType(Float64Type()),
}
_NAMES = {element: name for name, element in _ELEMENTS.items()}

DTYPES = frozenset(_ELEMENTS)
FLOATS = frozenset(("f16", "bf16", "f32", "f64"))
FLOATS8 = frozenset(("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f8e8m0fnu"))
"Storage dtypes: ops move and convert them, but do no arithmetic on them."
COMPLEX = frozenset(("c64", "c128"))
UNSIGNED = frozenset(("ui8", "ui16", "ui32", "ui64"))
SIGNED = frozenset(("i8", "i16", "i32", "i64"))
INTEGERS = SIGNED | UNSIGNED
BOOL = frozenset(("i1",))

_BITS = {
    **dict.fromkeys(FLOATS8, 8),
    **dict.fromkeys(("f16", "bf16"), 16),
    **{dtype: int(dtype.lstrip("ui")) for dtype in INTEGERS | BOOL},
    "f32": 32,
    "f64": 64,
    "c64": 64,
    "c128": 128,
}
REAL_OF = {"c64": "f32", "c128": "f64"}
COMPLEX_OF = {"f32": "c64", "f64": "c128"}

# Types created here are interned and live as long as the process, so that their ids are keys: a lookup by value costs a
# deep hash (about 5 us), a lookup by id 0.1 us.
_KNOWN: dict[int, tuple[AnyTensorType, str, Shape]] = {}


LARGEST = 1 << 42  # bytes of one array: more than any device has; far larger sizes make XLA abort the process


class TooLarge(ValueError):
    """An array that no device has the memory for."""


def check_size(dtype: str, shape: Sequence[int]) -> None:
    """Raise TooLarge for an array of more than `LARGEST` bytes. XLA aborts where a byte count overflows 64 bits, and
    may take years to compute on somewhat smaller arrays."""
    if prod(shape) * _BITS[dtype] > 8 * LARGEST:
        raise TooLarge(f"an array of {dtype}{list(shape)} is too large for any device")


@cache
def _intern(dtype: str, shape: Shape) -> AnyTensorType:
    _check_static(shape)
    element = element_type(dtype)
    check_size(dtype, shape)
    interned: AnyTensorType = TensorType(element, shape)
    _KNOWN[id(interned)] = (interned, dtype, shape)
    return interned


def _check_static(shape: Shape) -> None:
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {list(shape)} has a negative size; shapes are static, and sizes must be at least 0")


def tensor_type(dtype: str, shape: Iterable[int]) -> AnyTensorType:
    """The type `tensor<shape x dtype>`; the same object for the same arguments."""
    shape = tuple(shape)
    if Derivation.active is not None and has_sizes(shape):
        return _symbolic_type(Derivation.active, dtype, shape)
    return _intern(dtype, tuple(map(int, shape)))


def _symbolic_type(derivation: Derivation, dtype: str, shape: Shape) -> AnyTensorType:
    """Return a new type object with the sizes at the bound, for which `shape_of` returns the symbolic shape."""
    key = dtype, tuple([derivation.form_of(size) for size in shape])
    if key not in derivation.types:
        if any(size < 0 for size in shape):
            raise ValueError(f"shape {list(shape)} has a negative size; sizes must be at least 0")
        bound = tuple(map(number_at_bound, shape))
        check_size(dtype, bound)
        bound_type: AnyTensorType = TensorType(element_type(dtype), bound)
        derivation.types[key] = bound_type
        derivation.attach(bound_type, (dtype, shape))
    return derivation.types[key]


def text_of(attribute: Attribute) -> str | None:
    """The text of a type that `tensor_type` returned for static sizes; None for any other attribute."""
    return _text(id(attribute)) if id(attribute) in _KNOWN else None


@cache
def _text(key: int) -> str:
    return str(_KNOWN[key][0])


def same_type(x: AnyTensorType, y: AnyTensorType) -> bool:
    """Whether two types are equal, including symbolic sizes."""
    return x is y or _describe(x) == _describe(y)


def canonical(attribute: Attribute) -> Attribute:
    """The interned object for a type that was created elsewhere. Anything but a type of the dialect is returned
    unchanged."""
    if not _is_tensor(attribute) or attribute.element_type not in _NAMES or attribute.encoding != NoneAttr():
        return attribute
    shape = attribute.get_shape()
    return attribute if min(shape, default=0) < 0 else tensor_type(_NAMES[attribute.element_type], shape)


def _is_tensor(attribute: Attribute) -> TypeGuard[AnyTensorType]:
    return isinstance(attribute, TensorType)


def element_type(dtype: str) -> Attribute:
    """The xDSL element type of a dtype name. Raises ValueError for an unknown name."""
    try:
        return _ELEMENTS[dtype]
    except KeyError:
        raise ValueError(f"{dtype!r} is not a dtype name; expected one of {listed(DTYPES)}") from None


def listed(dtypes: frozenset[str]) -> str:
    """The text of dtype names in error messages."""
    return ", ".join(name for name in _ELEMENTS if name in dtypes)


def element_name(element: Attribute) -> str:
    """The dtype name of an xDSL element type. Raises ValueError for a type outside the dialect."""
    try:
        return _NAMES[element]
    except KeyError:
        raise ValueError(f"{element} is not an element type of the dialect") from None


def type_of(value: SSAValue | Attribute) -> AnyTensorType:
    """The tensor type of a value, or the type itself. Raises ValueError for any other type."""
    attribute = value.type if isinstance(value, SSAValue) else value
    if not _is_tensor(attribute):
        raise ValueError(f"expected a tensor, got {attribute}")
    return attribute


def _describe(value: SSAValue | Attribute) -> tuple[str, Shape]:
    # getattr, because isinstance of SSAValue, an abstract class, takes longer than everything else here.
    attribute = getattr(value, "type", value)
    interned = _KNOWN.get(id(attribute))
    if interned is not None:
        return interned[1], interned[2]
    if Derivation.active is not None and (symbolic := Derivation.active.attached(attribute)) is not None:
        return symbolic
    tensor = type_of(value)
    shape = tensor.get_shape()
    _check_static(shape)
    return element_name(tensor.element_type), shape


def dtype_of(value: SSAValue | Attribute) -> str:
    """The dtype name of a value or tensor type."""
    return _describe(value)[0]


def shape_of(value: SSAValue | Attribute) -> Shape:
    """The shape of a value or tensor type."""
    return _describe(value)[1]


def is_float(dtype: str) -> bool:
    """Whether a dtype is a float, including the 8-bit ones."""
    return dtype in FLOATS or dtype in FLOATS8


def is_complex(dtype: str) -> bool:
    return dtype in COMPLEX


def is_integer(dtype: str) -> bool:
    """Whether a dtype is a signed or unsigned integer; a boolean (`i1`) is not."""
    return dtype in INTEGERS


def is_unsigned(dtype: str) -> bool:
    return dtype in UNSIGNED


def bitwidth(dtype: str) -> int:
    """Bits of one element: 1 for `i1`, 64 for `c64`."""
    element_type(dtype)
    return _BITS[dtype]


def numel(shape: Sequence[int]) -> int:
    return prod(shape)


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) dtype with the same memory layout; `i1` takes one byte per element."""
    import ml_dtypes

    names: dict[str, Any] = {
        **{name: getattr(ml_dtypes, name.replace("f8", "float8_")) for name in FLOATS8},
        "bf16": ml_dtypes.bfloat16,
        "i1": np.bool_,
        "c64": np.complex64,
        "c128": np.complex128,
    }
    if dtype not in names:
        element_type(dtype)
        names[dtype] = f"{dtype.rstrip('0123456789').replace('ui', 'u')}{_BITS[dtype] // 8}"
    return np.dtype(names[dtype])


def extremes(dtype: str) -> tuple[Any, Any]:
    """Return the least and the greatest number of a dtype, infinities for floats."""
    if is_float(dtype):
        return -np.inf, np.inf
    if dtype == "i1":
        return False, True
    info = np.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)


def array_dtype(dtype: str) -> np.dtype[Any]:
    """Return the numpy dtype of arrays on the device; uint8 for 8-bit floats, which programs take as bits."""
    return np.dtype(np.uint8) if dtype in FLOATS8 else numpy_dtype(dtype)


@lru_cache(maxsize=4096)
def _int_array(values: tuple[int, ...]) -> DenseArrayBase[I64]:
    return DenseArrayBase.from_list(i64, values)


def int_array(values: Iterable[int]) -> DenseArrayBase[I64]:
    """An `array<i64: ...>` property."""
    values = tuple(values)
    if Derivation.active is not None and has_sizes(values):
        return Derivation.active.attach(DenseArrayBase.from_list(i64, list(map(number_at_bound, values))), values)
    return _int_array(tuple(map(int, values)))


def is_int_array(prop: Attribute) -> TypeGuard[DenseArrayBase[I64]]:
    return isinstance(prop, DenseArrayBase)


def ints(prop: Attribute) -> tuple[int, ...]:
    """The numbers of an `array<i64: ...>` property as a tuple."""
    if not is_int_array(prop):
        raise ValueError(f"expected an array of integers, got {prop}")
    if Derivation.active is not None and (symbolic := Derivation.active.attached(prop)) is not None:
        return symbolic
    return tuple(np.frombuffer(prop.data.data, dtype="<i8").tolist())


@lru_cache(maxsize=1024)
def string(value: str) -> StringAttr:
    """An interned string property."""
    return StringAttr(value)

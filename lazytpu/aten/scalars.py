"""Python numbers as arguments of rules: constants of the program, or run-time numbers read from packs (R3)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lazytpu.aten.dtypes import NAMES_OF_FLOATS8
from lazytpu.ir.symbolic import Reciprocal, Size

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

KINDS: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    complex: "complex",
    Size: "int",
    Reciprocal: "float",
}

# A pack is a 1-D array of run-time numbers. dtype of a number -> dtype of the pack that carries it.
PACK_OF = {
    **dict.fromkeys(NAMES_OF_FLOATS8, "f32"),
    "f16": "f32",
    "bf16": "f32",
    "f32": "f32",
    "f64": "f64",
    "ui64": "ui64",
    **dict.fromkeys(("i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32"), "i64"),
}
INTEGERS = frozenset({"i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64"})
PACKS = ("f32", "f64", "i64", "ui64")
_NUMPY = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "ui64": np.uint64}
_CODES = {"f32": "f", "f64": "d", "ui64": "Q"}  # of `array`


@dataclass(frozen=True)
class Scalar:
    """A number passed to a rule.

    `kind` is the Python type ("int", "float", "bool", "complex"). `value` is the number, or None for a run-time
    number, which `plan` and `index` locate.
    """

    kind: str
    value: Any = None
    plan: PackPlan | None = None
    index: int = -1

    def materialize(self, b: Builder, dtype: str) -> SSAValue:
        """A 0-d value of `dtype`: a constant, or the run-time number, rounded to `dtype` on the host."""
        if self.plan is None and dtype in NAMES_OF_FLOATS8:
            return b.convert(b.constant(held(self.value, "f32"), "f32"), dtype)
        if self.plan is None:
            return b.constant(held(self.value, dtype), dtype)
        return self.plan.element(b, self.index, dtype)


@dataclass
class PackPlan:
    """The run-time numbers that a program takes, by pack.

    `entries[pack]` lists (number, part, dtype): `number` is an index into the trace's run-time numbers, `part` is
    "real" or "imag", `dtype` is what it is rounded to. Numbers with a value in `constants` are in no pack.
    """

    arguments: dict[str, SSAValue] = field(default_factory=dict)
    constants: Mapping[int, Any] = field(default_factory=dict)
    entries: dict[str, list[tuple[int, str, str]]] = field(default_factory=lambda: {pack: [] for pack in PACKS})
    _found: dict[tuple[int, str, str], int] = field(default_factory=dict)

    def element(self, b: Builder, number: int, dtype: str, part: str = "real") -> SSAValue:
        """The 0-d value of run-time number `number` in `dtype`."""
        if number in self.constants:
            return self.scalar(number, type(self.constants[number])).materialize(b, dtype)
        if dtype in ("c64", "c128"):
            half = "f32" if dtype == "c64" else "f64"
            return b.binary("complex", self.element(b, number, half), self.element(b, number, half, "imag"))
        pack, key = PACK_OF[dtype], (number, part, dtype)
        if key not in self._found:
            self._found[key] = len(self.entries[pack])
            self.entries[pack].append(key)
        return b.convert(b.number(self.arguments[pack], self._found[key]), dtype)

    def scalar(self, number: int, kind: type) -> Scalar:
        """Run-time number `number`, of that Python type, as an argument of a rule."""
        if number in self.constants:
            return Scalar(KINDS[kind], self.constants[number])
        return Scalar(KINDS[kind], None, self, number)

    def packer(self) -> Packer:
        """The function from run-time numbers to packs that the program keeps."""
        return Packer({pack: tuple(entries) for pack, entries in self.entries.items() if entries})


class Packer:
    """Fills a program's packs from the run-time numbers of a step, rounding each on the host."""

    def __init__(self, entries: dict[str, tuple[tuple[int, str, str], ...]]):
        self.entries = entries
        self.packs = tuple(entries)
        self._plans = [
            (_NUMPY[pack], [self._reader(*entry) for entry in fields], _CODES.get(pack, ""), self._plain(pack, fields))
            for pack, fields in entries.items()
        ]

    @staticmethod
    def _plain(pack: str, entries: tuple[tuple[int, str, str], ...]) -> list[int] | None:
        """The numbers' indices if every entry is a real number in the pack's own dtype, else None."""
        plain = pack in _CODES and all(e[1] == "real" and e[2] == pack for e in entries)
        return [e[0] for e in entries] if plain else None

    @staticmethod
    def _reader(number: int, part: str, dtype: str) -> Any:
        if part == "imag":
            return lambda numbers: complex(numbers[number]).imag
        if dtype in ("f16", "bf16"):
            return lambda numbers: _rounded(_real(numbers[number]), dtype)
        if dtype == "i1":
            return lambda numbers: int(bool(numbers[number]))
        if dtype in INTEGERS:
            return lambda numbers: held(numbers[number], dtype)
        return lambda numbers: _real(numbers[number])

    def __call__(self, numbers: list[Any]) -> list[np.ndarray]:
        """1-D arrays in the order of `packs`. A float beyond the range of its dtype becomes infinite, as on the CPU."""
        packs: list[np.ndarray] = []
        for dtype, readers, code, plain in self._plans:
            if plain is not None:
                try:  # half of the time of numpy, whose warning would have to be suppressed
                    packs.append(np.frombuffer(array(code, [numbers[i] for i in plain]), dtype))
                    continue
                except (TypeError, OverflowError):  # complex, or an int out of range: left to the readers below
                    pass
            with np.errstate(over="ignore", invalid="ignore"):
                packs.append(np.array([read(numbers) for read in readers], dtype))
        return packs


def held(value: Any, dtype: str) -> Any:
    """`value` as an integer `dtype` holds it, by the CPU's C++ conversion: truncated toward 0, then wrapped around;
    NaN and infinities count as the least i64. For other dtypes, `value` itself."""
    if dtype not in INTEGERS or isinstance(value, Size):  # a size that the dtype does not hold is refused
        return value
    value = _real(value)
    try:
        number = int(value)
    except (ValueError, OverflowError):  # NaN, infinite
        number = -(1 << 63)
    width = 1 << int(dtype.lstrip("ui"))
    number %= width
    return number - width if dtype[0] == "i" and number >= width >> 1 else number


def _real(value: Any) -> Any:
    return value.real if isinstance(value, complex) else value


def _rounded(value: float, dtype: str) -> float:
    import ml_dtypes

    return float(np.float32(value).astype(ml_dtypes.bfloat16 if dtype == "bf16" else np.float16))

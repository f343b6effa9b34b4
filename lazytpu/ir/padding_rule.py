"""Padding rules of kernels: which dimensions of operands may have padding behind their true elements.

`"rows columns=-inf, columns=0 -> rows columns"` has a word for each dimension of each operand and each result. A name
is a dimension that may be padded, and `_` is one that may not. Dimensions of one name have the same size. Padding must
not affect a true element of a result. Where the kernel needs a certain number in padding, as 0 in a sum, the rule gives
it. Padding in results has unspecified contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan

_DIM = re.compile(r"(?P<name>_|[A-Za-z]\w*)(=(?P<fill>-?(inf|\d+(\.\d+)?)))?")
_LACKING = "_"


@dataclass(frozen=True, slots=True)
class DimRule:
    """A dimension: the name of its size (None: no padding), and the required value of padding (None: any)."""

    name: str | None
    fill: float | None = None

    def __str__(self) -> str:
        return _LACKING if self.name is None else self.name if self.fill is None else f"{self.name}={self.fill:g}"


Dims = tuple[tuple[DimRule, ...], ...]


@dataclass(frozen=True, slots=True)
class PaddingRule:
    """The dimensions of each operand and of each result."""

    operands: Dims
    results: Dims

    @classmethod
    def parse(cls, text: str) -> PaddingRule:
        """Parse a rule. Raises ValueError for a malformed text."""
        sides = text.split("->")
        if len(sides) != 2:
            raise ValueError(f"padding {text!r} has {len(sides) - 1} arrows; expected operands -> results")
        rule = cls(*(_side(text, side) for side in sides))
        names = {dim.name for dims in rule.operands for dim in dims}
        for dim in (dim for dims in rule.results for dim in dims):
            if dim.name not in names and dim.name is not None:
                raise ValueError(f"padding {text!r} has {dim.name!r} in a result, which is a size of no operand")
            if dim.fill is not None:
                raise ValueError(f"padding {text!r} says what padding of a result holds; nothing relies on that: {dim}")
        return rule

    def check(self, operands: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> None:
        """Raise ValueError unless the rule fits operands and results of these shapes."""
        sizes: dict[str, int] = {}
        for role, rules, shapes in (("operand", self.operands, operands), ("result", self.results, results)):
            if len(rules) != len(shapes):
                raise ValueError(f"padding '{self}' is for {len(rules)} {role}s; there are {len(shapes)}")
            for i, (dims, shape) in enumerate(zip(rules, shapes, strict=True)):
                if len(dims) != len(shape):
                    raise ValueError(
                        f"padding '{self}' names {len(dims)} dimensions of {role} {i}, whose shape is {list(shape)}"
                    )
                for dim, size in zip(dims, shape, strict=True):
                    if dim.name is not None and sizes.setdefault(dim.name, size) != size:
                        raise ValueError(
                            f"padding '{self}' names dimensions of sizes {sizes[dim.name]} and {size} alike: {dim.name}"
                        )

    def __str__(self) -> str:
        return " -> ".join(
            ", ".join(" ".join(map(str, dims)) for dims in side) for side in (self.operands, self.results)
        )


def _side(text: str, side: str) -> Dims:
    return tuple([tuple(_dims(text, array)) for array in side.split(",")]) if side.strip() else ()


def _dims(text: str, part: str) -> Iterator[DimRule]:
    for word in part.split():
        match = _DIM.fullmatch(word)
        if match is None or (match["name"] == _LACKING and match["fill"] is not None):
            raise ValueError(
                f"padding {text!r} has {word!r} for a dimension; expected a name, with a number that padding has to "
                "hold if one is needed, or _: 'rows columns=0 -> rows' names those of an operand and a result"
            )
        fill = None if match["fill"] is None else float(match["fill"])
        assert fill is None or not isnan(fill)
        yield DimRule(None if match["name"] == _LACKING else match["name"], fill)

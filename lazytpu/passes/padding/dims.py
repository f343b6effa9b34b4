"""The arrangement of *true* elements, which belong to the value, among the elements in memory; all others are padding.

In a dimension of size 32 the first n elements may be true. Merged with 4 rows before it, it becomes a dimension of 128,
in which element i is true if i rem 32 < n. So a dimension is a list of factors, each with its size in memory and its
true size. A merged dimension need not be split again to know its padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from lazytpu.ir.forms import Form, form, parse
from lazytpu.ir.sizes import STATIC
from lazytpu.passes.errors import Unsupported

Number = bool | int | float | complex


class Refused(Unsupported):
    """Raised where no rule handles this padding: the size remains part of the program. The message is the reason."""


@dataclass(frozen=True)
class Factor:
    """A factor of a dimension: `size` elements in memory, with the first `true` elements true."""

    size: int
    true: Form

    @cached_property
    def padded(self) -> bool:
        return self.true != form(self.size)

    def __str__(self) -> str:
        return f"{self.true}:{self.size}" if self.padded else str(self.size)


@dataclass(frozen=True)
class Dim:
    """A dimension as its factors, outermost first, normalized by `joined`.

    All elements along a `free` dimension are equal, padding included, so any arrangement of them is valid. Constants
    and new dimensions of broadcasts are free.
    """

    factors: tuple[Factor, ...]
    free: bool = False

    @cached_property
    def size(self) -> int:
        """The number of elements in memory."""
        return prod(factor.size for factor in self.factors)

    @cached_property
    def total(self) -> Form:
        """The number of true elements."""
        return prod((factor.true for factor in self.factors), start=form(1))

    @cached_property
    def padded(self) -> bool:
        return any(factor.padded for factor in self.factors)

    @property
    def prefix(self) -> bool:
        """Whether the true elements are the first ones, without gaps."""
        return len(self.factors) <= 1

    @property
    def settled(self) -> Dim:
        """The dimension with this arrangement only, for elements that are no longer equal."""
        return Dim(self.factors)

    def text(self) -> str:
        """Return the dimension as text of an annotation (`lazytpu.ir.sizes`)."""
        if not self.padded:
            return STATIC
        return str(self.total) if self.prefix else "|".join(map(str, self.factors))

    def __str__(self) -> str:
        return "|".join(map(str, self.factors)) or "1"


def contiguous(*dims: Dim) -> None:
    """Raise Refused for a merged dimension. `Walk` then applies the rule to operands without any."""
    for dim in dims:
        if not dim.prefix:
            raise Refused(f"the true elements of the merged dimension {dim} are not in a row")


def joined(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    """Return normalized factors: one without padding is merged into the preceding one, (n:32, 4) becomes (4*n:128)."""
    result: list[Factor] = []
    for factor in factors:
        if factor.padded or not result:
            result.append(factor)
        else:
            last = result[-1]
            result[-1] = Factor(last.size * factor.size, last.true * factor.size)
    if len(result) > 1 and result[0] == Factor(1, form(1)):
        result.pop(0)
    return tuple(result)


@lru_cache(maxsize=4096)
def sized(size: int, true: Form | int | None = None, free: bool = False) -> Dim:
    """Return a dimension of one factor; all elements are true unless `true` says otherwise."""
    return Dim((Factor(size, form(size if true is None else true)),), free)


@lru_cache(maxsize=4096)
def static(shape: Sequence[int]) -> tuple[Dim, ...]:
    """Return dimensions without padding."""
    return tuple(sized(size) for size in shape)


def parse_dim(text: str, size: int) -> Dim:
    """Parse a dimension of `size` elements in memory from an annotation. Raise ValueError if it is malformed."""
    if text == STATIC:
        return sized(size)
    factors: list[Factor] = []
    texts = text.split("|")
    for text_of_factor in texts:
        true, colon, memory_text = text_of_factor.partition(":")
        memory = int(memory_text) if colon else size if len(texts) == 1 else int(true)
        factors.append(Factor(memory, parse(true)))
    dim = Dim(joined(factors))
    if dim.size != size:
        raise ValueError(f"the size {text!r} has {dim.size} elements in memory; the type has {size}")
    return dim


def merged(x: Dim, y: Dim) -> Dim:
    """Return the dimension of a value computed elementwise from both. Raise Refused unless both have equally many true
    elements in the same arrangement."""
    if x.size != y.size or not x.total.same(y.total):
        raise Refused(f"dimensions of different sizes meet: {x} and {y}")
    if x.factors == y.factors or (x.prefix and y.prefix):
        return Dim(x.factors, x.free and y.free)
    if x.free or y.free:
        return y if x.free else x
    raise Refused(f"dimensions of one size but with other padding meet: {x} and {y}")


def merged_all(values: Sequence[Sequence[Dim]]) -> tuple[Dim, ...]:
    """Return `merged` of each dimension over several values of one rank."""
    first, *later = values
    dims = tuple(first)
    for next_dims in later:
        dims = tuple(merged(x, y) for x, y in zip(dims, next_dims, strict=True))
    return dims


def reshaped(dims: Sequence[Dim], shape: Sequence[int]) -> tuple[Dim, ...]:
    """Return the dimensions of the same elements in another shape. Raise Refused if a padded factor would be split."""
    todo = _in_order(dims)
    if any(factor.size == 1 for factor, _ in todo):
        raise Refused("a sized dimension of at most one element is reshaped")
    result: list[Dim] = []
    for size in shape:
        got: list[tuple[Factor, bool]] = []
        remaining = size
        while remaining > 1:
            factor, free = todo.pop(0)
            if remaining % factor.size == 0:
                got.append((factor, free))
                remaining //= factor.size
                continue
            inner, remainder = divmod(factor.size, remaining)
            true = factor.true.divided(inner) if not remainder else None
            if true is None:
                before = " x ".join(map(str, dims))
                raise Refused(f"a reshape from {before} to {list(shape)} cuts a part of {factor} elements")
            got.append((Factor(remaining, true), free))
            todo.insert(0, (Factor(inner, form(inner)), free))
            remaining = 1
        factors = joined(factor for factor, _ in got) or (Factor(1, form(1)),)
        result.append(Dim(factors, bool(got) and all(free for _, free in got)))
    return tuple(result)


def _in_order(dims: Sequence[Dim]) -> list[tuple[Factor, bool]]:
    """Return the factors of all dimensions, each with whether it is free. Adjacent ones of one kind are joined."""
    runs: list[tuple[list[Factor], bool]] = []
    for dim in dims:
        for factor in dim.factors:
            if factor == Factor(1, form(1)):
                continue
            if runs and runs[-1][1] == dim.free:
                runs[-1][0].append(factor)
            else:
                runs.append(([factor], dim.free))
    return [(factor, free) for factors, free in runs for factor in joined(factors)]


def parse_dims(text: str, shape: Sequence[int]) -> tuple[Dim, ...]:
    """Parse the dimensions of an argument of this shape from its annotation. Raise ValueError if it is malformed."""
    words = text.split()
    if len(words) != len(shape):
        raise ValueError(f"the sizes {text!r} are for {len(words)} dimensions; expected {len(shape)}")
    return tuple(parse_dim(word, size) for word, size in zip(words, shape, strict=True))

"""Symbolic sizes: numbers that carry the form they were computed by, so that one import of a trace gives a program for
many sizes.

A `Size` is a number at the bound of a bucket together with its form over the size symbols (`lazytpu.ir.forms`). It is
no subclass of `int`: C code calls no method of an int subclass for `range(n)`, `[0] * n`, `sequence[n]` or
`operator.index`, so the form would be lost silently. Every operation does one of three things:

1. It computes a form: `+`, `-`, `*`, negation, `//`, `%` and `divmod`, and a power with a small exponent.
2. It answers for the bound, and the `Derivation` keeps a `Guard` unless the answer is the same at all sizes: all
   comparisons and `bool`, and through them `min`, `max`, `sorted`, `abs` and `in`.
3. It raises `LostSize`: `range(n)`, an index, `int`, `float`, `hash`, formatting, and any operation not listed here.

At every size at which all guards hold, code that computes with these sizes takes the same path as at the bound. So each
of its results equals its form.

    with Derivation({"n": (2, 64)}) as derivation:
        n = derivation.size(symbol("n"))
        half = (n + 1) // 2                 # 32, (n+1)/2
        half < 40                           # True at all sizes: no guard
        n % 2 == 0                          # True, with the guard n-2*(n)/2 == 0
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Self, TypeAlias

from lazytpu.ir.forms import Form, Monomial, Range, form, parse

MIN_SYMBOL = 2
"The least size that a symbol stands for. Ops may treat no element, or a single one, differently."
MAX_TERMS = 32
"""The most terms of the remainder of a division."""
_SPELLED = re.compile("⟦([^⟦⟧]*)⟧")
MAX_POWER = 4
"""The greatest exponent for which a power becomes a product."""


class LostSize(Exception):
    """An operation needs the number of a symbolic size. The message names the operation and the form of the size.
    `record` is the record whose import it ended."""

    record: Any = None


@dataclass(frozen=True, slots=True)
class Guard:
    """A comparison, `form` `relation` 0 with `==` or `<`, that decided the path of an import. `holds` is its result at
    the bound."""

    form: Form
    relation: str
    holds: bool

    def at(self, sizes: Mapping[str, int]) -> bool:
        """Whether the result at these sizes equals the result at the bound."""
        number = self.form.at(sizes)
        return (number == 0 if self.relation == "==" else number < 0) == self.holds

    @classmethod
    def parse(cls, fields: tuple[str, str, bool]) -> Guard:
        """Return the guard from its `fields`."""
        text, relation, holds = fields
        return cls(parse(text), relation, holds)

    @property
    def fields(self) -> tuple[str, str, bool]:
        """The guard as plain values, for serialization."""
        return str(self.form), self.relation, self.holds

    def __str__(self) -> str:
        opposite = {"==": "!=", "<": ">="}
        return f"{self.form} {self.relation if self.holds else opposite[self.relation]} 0"


Comparison: TypeAlias = tuple[Form, str]
"""A form, and its relation to 0: `==` or `<`."""


class Derivation:
    """The symbols of a computation with sizes, with their ranges, and its guards. Sizes have their values `at` these
    sizes, by default the bound. Comparisons are answered for the sizes `possible`, by default the same: sizes of parts
    of a tensor cannot all be the greatest. As a context manager, it is the active derivation of this process: imports
    run one at a time."""

    active: ClassVar[Derivation | None] = None

    def __init__(
        self,
        symbols: Mapping[str, Range],
        at: Mapping[str, int] | None = None,
        possible: Mapping[str, int] | None = None,
    ):
        self.symbols = dict(symbols)
        self.bound = {name: high for name, (_, high) in symbols.items()} if at is None else dict(at)
        self.possible = self.bound if possible is None else possible
        self.guards: dict[Guard, None] = {}
        self.answers: dict[Comparison, tuple[bool, Guard | None]] = {}
        """The result of each comparison so far, and its guard unless it is the same at all sizes."""
        self.record: Any = None
        """The record that is imported."""
        self.compared_by: dict[Comparison, Any] = {}
        """The record whose import made each comparison first."""
        self.types: dict[Any, Any] = {}
        """The symbolic types of the import: (dtype, forms) -> type."""
        self._attached: dict[int, tuple[Any, Any]] = {}
        self._signs: dict[Form, Range] = {}

    def __enter__(self) -> Self:
        assert Derivation.active is None, "one import runs at a time"
        Derivation.active = self
        return self

    def __exit__(self, *_: object) -> None:
        Derivation.active = None

    def size(self, of: Form) -> Any:
        """Return a form as a size, or as an int if it is constant."""
        number = of.number
        return Size(of.at(self.bound), of, self) if number is None else number

    def form_of(self, number: Any) -> Form:
        """Return the form of a size or an int."""
        return _form(number)

    def attach(self, attribute: Any, symbolic: Any) -> Any:
        """Attach a symbolic value to an attribute, whose numbers are the ones at the bound. Return the attribute, which
        must not be shared."""
        self._attached[id(attribute)] = attribute, symbolic
        return attribute

    def attached(self, attribute: object) -> Any:
        """Return the symbolic value attached to an attribute, or None."""
        entry = self._attached.get(id(attribute))
        return None if entry is None else entry[1]

    def is_zero(self, of: Form) -> bool:
        """Whether a form is 0, at all sizes or by a guard."""
        return self._answer((of, "==")) if of.number is None else of.number == 0

    def is_negative(self, of: Form) -> bool:
        """Whether a form is less than 0, at all sizes or by a guard."""
        return self._answer((of, "<")) if of.number is None else of.number < 0

    def follows(self, other: Derivation) -> bool:
        """Whether all comparisons of another derivation have the same answers here, so that code takes the same
        path."""
        return all(self._answer(comparison) == answer for comparison, (answer, _) in other.answers.items())

    def range_of(self, of: Form) -> Range:
        """Return the range of a form, as `Form.range`, cached."""
        bounds = self._signs.get(of)
        if bounds is None:
            bounds = self._signs[of] = of.range(self.symbols)
        return bounds

    def _answer(self, comparison: Comparison) -> bool:
        if comparison not in self.answers:
            self.answers[comparison] = self._compared(*comparison)
            self.compared_by[comparison] = self.record
        answer, guard = self.answers[comparison]
        if guard is not None:
            self.guards[guard] = None
        return answer

    def _compared(self, of: Form, relation: str) -> tuple[bool, Guard | None]:
        low, high = self.range_of(of)
        if relation == "==":
            if low > 0 or high < 0:
                return False, None
            if low == high or of.same(form(0)):
                return True, None
        elif high < 0 or low >= 0:
            return high < 0, None
        number = of.at(self.possible)
        holds = number == 0 if relation == "==" else number < 0
        return holds, Guard(of, relation, holds)


def _losing(where: str) -> Callable[..., Any]:
    """Return a method of a size that raises LostSize: the size is used `where` its form would be lost."""

    def lost(size: Size, *_: object) -> NoReturn:
        size._lost(where)  # pyright: ignore[reportPrivateUsage]  (it becomes a method of the class)

    return lost


class Size:
    """A size at the bound and its form. See the module's docstring."""

    __slots__ = ("form", "of", "value")

    def __init__(self, value: int, form: Form, of: Derivation):
        self.value, self.form, self.of = value, form, of

    # -- operations that compute a form

    def __add__(self, other: Any) -> Any:
        return self._computed(self.form + _form(other)) if _is_number(other) else self._with(other, "+")

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._computed(self.form - _form(other)) if _is_number(other) else self._with(other, "-")

    def __rsub__(self, other: Any) -> Any:
        return self._computed(_form(other) - self.form) if _is_number(other) else self._with(other, "-")

    def __mul__(self, other: Any) -> Any:
        return self._computed(self.form * _form(other)) if _is_number(other) else self._with(other, "*")

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self._computed(self.form * -1)

    def __pos__(self) -> Size:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __pow__(self, exponent: Any) -> Any:
        if type(exponent) is int and 0 <= exponent <= MAX_POWER:
            return math.prod([self] * exponent)
        return self._lost(f"** {exponent}")

    def __divmod__(self, by: Any) -> Any:
        return self._divided(self.form, by) if _is_number(by) else NotImplemented

    def __rdivmod__(self, other: Any) -> Any:
        return self._divided(_form(other), self) if _is_number(other) else NotImplemented

    def __floordiv__(self, by: Any) -> Any:
        return self._divided(self.form, by)[0] if _is_number(by) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return self._divided(_form(other), self)[0] if _is_number(other) else NotImplemented

    def __mod__(self, by: Any) -> Any:
        return self._divided(self.form, by)[1] if _is_number(by) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return self._divided(_form(other), self)[1] if _is_number(other) else NotImplemented

    def __truediv__(self, other: Any) -> Any:
        return self._lost(f"/ {other!r}")

    def __rtruediv__(self, other: Any) -> Any:
        """Compute 1 / n or 2 / n, which occur in gradients of means."""
        if other in (1, 2):
            return Reciprocal(other / self.value, self.form * (2 // int(other)), self.of)
        return self._lost(f"as a divisor of {other!r}")

    def _with(self, other: object, operation: str) -> Any:
        return self._lost(f"{operation} {other!r}") if isinstance(other, float | complex) else NotImplemented

    def _computed(self, result: Form) -> Any:
        return self.of.size(result)

    def _divided(self, left: Form, by: Any) -> tuple[Any, Any]:
        """Return the floor quotient and the remainder of a division."""
        right = _form(by)
        if right.number is None:
            quotient, sizes = _quotient(left, right), self.of.possible
            divisor = right.at(sizes)
            if divisor <= 0:
                return self._lost(f"in ({left}) // ({right})")
            less = left.at(sizes) // divisor - quotient.at(sizes)
            # the polynomial quotient, off by at most 1 at these sizes, or the constant one
            quotient = quotient + less if abs(less) <= 1 else form(left.at(sizes) // divisor)
            remainder = left - quotient * right  # the quotient is right wherever 0 <= remainder < right
            negative, below = self.of.is_negative(remainder), self.of.is_negative(remainder - right)
            assert below and not negative
        elif right.number == 0:
            raise ZeroDivisionError("integer division or modulo by zero")
        else:
            quotient = left // right.number if right.number > 0 else (left * -1) // -right.number
            remainder = left - quotient * right
        return self._computed(quotient), self._computed(remainder)

    # -- operations that answer for the bound

    def __eq__(self, other: object) -> bool:
        return self.of.is_zero(self.form - _form(other)) if _is_number(other) else self._unlike(other)

    def __lt__(self, other: Any) -> bool:
        return self.of.is_negative(self.form - _form(other)) if _is_number(other) else self._lost(f"< {other!r}")

    def __gt__(self, other: Any) -> bool:
        return self.of.is_negative(_form(other) - self.form) if _is_number(other) else self._lost(f"> {other!r}")

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return not self.of.is_zero(self.form)

    def _unlike(self, other: object) -> Any:
        return self._lost(f"== {other!r}") if isinstance(other, float | complex) else NotImplemented

    # -- operations that would lose the form

    __index__ = _losing("as an index, a count or an argument of C code")
    __int__ = _losing("in int()")
    __float__ = _losing("in float()")
    __complex__ = _losing("in complex()")
    __round__ = _losing("in round()")
    __trunc__ = _losing("in trunc()")
    __floor__ = _losing("in floor()")
    __ceil__ = _losing("in ceil()")
    __hash__ = _losing("as a key")
    __format__ = __str__ = _losing("in a text")
    __lshift__ = __rshift__ = __rlshift__ = __rrshift__ = _losing("in a shift")
    __and__ = __or__ = __xor__ = __rand__ = __ror__ = __rxor__ = __invert__ = _losing("in an operation on its bits")

    def __rpow__(self, base: Any) -> Any:
        return self._lost(f"as an exponent of {base!r}")

    def __getattr__(self, name: str) -> Any:
        """Refuse the methods of an `int`, such as `bit_length`."""
        if not name.startswith("_") and hasattr(int, name):
            self._lost(f"in its {name}")
        raise AttributeError(f"a size has no attribute {name!r}", name=name, obj=self)

    def _lost(self, where: str) -> NoReturn:
        raise LostSize(f"its code uses the size {self.form} {where}, which would fix it to {self.value}")

    def __repr__(self) -> str:
        """A text for debugging, not a number."""
        return f"<size {self.form} = {self.value}>"


@dataclass(frozen=True, slots=True)
class Reciprocal:
    """2 divided by a size, the only non-integer that annotations support: `value` is its value at the bound, `form` the
    divisor."""

    value: float
    form: Form
    of: Derivation


def number_at_bound(size: Any) -> Any:
    """Return the number of a size or a reciprocal at the bound, and any other number unchanged."""
    return size.value if isinstance(size, Size | Reciprocal) else size


def spelled(size: Any) -> str:
    """Return the text of a size for the message of a check. A symbolic size becomes its form in brackets, which
    `respelled` replaces by the number."""
    return f"⟦{size.form}⟧" if isinstance(size, Size) else str(size)


def respelled(message: str, sizes: Mapping[str, int]) -> str:
    """Return the message of a check at these sizes."""
    return _SPELLED.sub(lambda match: str(parse(match[1]).at(sizes)), message) if "⟦" in message else message


def has_sizes(numbers: Sequence[Any]) -> bool:
    """Whether one of these numbers is symbolic."""
    return any(type(number) is Size for number in numbers)


def _is_number(value: object) -> bool:
    return isinstance(value, Size | int)


def _form(value: Any) -> Form:
    return value.form if type(value) is Size else form(int(value))


def _quotient(left: Form, right: Form) -> Form:
    """Return a candidate for left // right, by long division of polynomials. The caller checks the remainder."""
    lead, factor = max(right.terms, key=lambda term: len(term[0]))
    quotient, remainder = form(0), left
    while (step := next(filter(None, (_step(*term, lead, factor) for term in remainder.terms)), None)) is not None:
        quotient, remainder = quotient + step, remainder - step * right
        if len(remainder.terms) > MAX_TERMS:
            break
    return quotient


def _step(atoms: Monomial, count: int, lead: Monomial, factor: int) -> Form | None:
    """Divide a term by the leading term of a divisor, the coefficient toward 0; None if the quotient is 0."""
    missing = list(atoms)
    for atom in lead:
        if atom not in missing:
            return None
        missing.remove(atom)
    times = int(count / factor)
    return Form.of([(tuple(missing), times)]) if times else None

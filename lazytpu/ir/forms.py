"""Forms: expressions over size symbols, such as `n+1`, `4*n`, `b*n` and `(n+1)/2`, which are evaluated when a program
runs.

A form is a polynomial with integer coefficients. Its atoms are symbols, and floor quotients, which come from windows
and strides. `parse` reads the text of `str`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import lcm, prod
from typing import TypeAlias

import numpy as np

Range: TypeAlias = "tuple[int, int]"
"""The least and the greatest number of an interval."""
Symbols: TypeAlias = "Mapping[str, Range]"
"""Size symbols: name -> the range of its sizes; the greatest is the bound."""

_TOKEN = re.compile(r"\d+|[A-Za-z_]\w*|[-+*/()]")
_EXHAUSTIVE = 1 << 16
"""The most sizes of a symbol that are evaluated one by one for the range of a form that is not affine."""


@dataclass(frozen=True)
class Quotient:
    """`form` // `by`."""

    form: Form
    by: int

    def __str__(self) -> str:
        return f"({self.form})/{self.by}"


Atom: TypeAlias = "str | Quotient"
Monomial: TypeAlias = "tuple[Atom, ...]"


@dataclass(frozen=True)
class Form:
    """A sum of products of atoms; `terms` are (atoms, coefficient), sorted, without coefficients of 0."""

    terms: tuple[tuple[Monomial, int], ...]

    def __hash__(self) -> int:
        """Return the hash of the terms, computed once: forms are the keys of many tables."""
        value = self.__dict__.get("hash")
        if value is None:
            value = self.__dict__["hash"] = hash(self.terms)
        return value

    @classmethod
    def of(cls, terms: Iterable[tuple[Monomial, int]]) -> Form:
        """Return the sum of these terms."""
        total: dict[Monomial, int] = {}
        for atoms, factor in terms:
            key = tuple(sorted(atoms, key=str))
            total[key] = total.get(key, 0) + factor
        return cls(tuple(sorted(((k, c) for k, c in total.items() if c), key=lambda t: (not t[0], str(t[0])))))

    @property
    def number(self) -> int | None:
        """The value of a constant form; None for a form that varies."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def symbols(self) -> frozenset[str]:
        """The names of the symbols in the form."""
        names: set[str] = set()
        for atoms, _ in self.terms:
            for atom in atoms:
                names |= {atom} if isinstance(atom, str) else atom.form.symbols
        return frozenset(names)

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the value at these sizes of the symbols."""
        return sum(factor * prod(_at(atom, sizes) for atom in atoms) for atoms, factor in self.terms)

    def where(self, forms: Mapping[str, Form]) -> Form:
        """Return the form with other forms substituted for its symbols."""
        total = form(0)
        for atoms, factor in self.terms:
            term = form(factor)
            for atom in atoms:
                term = term * (forms[atom] if isinstance(atom, str) else atom.form.where(forms) // atom.by)
            total = total + term
        return total

    def range(self, symbols: Symbols) -> Range:
        """Return the least and greatest values over all sizes. Exact for affine forms and forms of one symbol;
        otherwise the range may be too wide, but never too narrow."""
        names = self.symbols
        if len(names) == 1 and any(len(atoms) > 1 or isinstance(a, Quotient) for atoms, _ in self.terms for a in atoms):
            (name,) = names
            low, high = symbols[name]
            if high - low < _EXHAUSTIVE:
                values = np.broadcast_to(self.at_all({name: np.arange(low, high + 1)}), (high - low + 1,))
                return int(values.min()), int(values.max())
        least = most = 0
        for atoms, factor in self.terms:
            low, high = factor, factor
            for atom in atoms:
                ends = _range(atom, symbols)
                corners = [x * y for x in (low, high) for y in ends]
                low, high = min(corners), max(corners)
            least, most = least + low, most + high
        return least, most

    def at_all(self, sizes: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the values at rows of sizes: i64[n]."""
        total = np.zeros_like(next(iter(sizes.values())))
        for atoms, factor in self.terms:
            term = np.full_like(total, factor)
            for atom in atoms:
                term = term * (sizes[atom] if isinstance(atom, str) else atom.form.at_all(sizes) // atom.by)
            total = total + term
        return total

    def __add__(self, other: Form | int) -> Form:
        return _added(self, other)

    def __sub__(self, other: Form | int) -> Form:
        return _added(self, other * -1)

    def __mul__(self, other: Form | int) -> Form:
        return _multiplied(self, other)

    def __floordiv__(self, by: int) -> Form:
        """Return the floor quotient; it has a quotient atom if `by` does not divide all coefficients."""
        remainder = Form.of((atoms, factor % by) for atoms, factor in self.terms)
        quotient = Form.of((atoms, factor // by) for atoms, factor in self.terms)
        if remainder.number is not None:  # a constant remainder is less than `by`
            return quotient
        (atoms, factor), *number = remainder.terms
        if len(number) < 2 and not (number and number[0][0]) and factor == 1 and len(atoms) == 1:
            (atom,) = atoms
            if isinstance(atom, Quotient):  # ((f // a) + m) // b == (f + m*a) // (a*b)
                addend = number[0][1] if number else 0
                return quotient + (atom.form + addend * atom.by) // (atom.by * by)
        return quotient + Form.of([((Quotient(remainder, by),), 1)])

    @property
    def period(self) -> int:
        """The number of sizes of a symbol after which the remainders of all quotients repeat; 1 without quotients."""
        quotients = [atom for atoms, _ in self.terms for atom in atoms if isinstance(atom, Quotient)]
        return lcm(*(quotient.by * quotient.form.period for quotient in quotients))

    @property
    def degree(self) -> int:
        """The largest number of symbols in a product."""
        return max([0, *(sum(1 if isinstance(a, str) else a.form.degree for a in atoms) for atoms, _ in self.terms)])

    def same(self, other: Form) -> bool:
        """Whether two forms are equal at all sizes: n-(n)/2 is (n+1)/2. With several symbols, only structurally equal
        forms are recognized."""
        difference = self - other
        if not difference.terms or len(difference.symbols) != 1:
            return not difference.terms
        # On sizes a period apart, the difference is a polynomial. It is 0 if it has more zeros than its degree.
        (name,), sizes = difference.symbols, difference.period * (difference.degree + 1)
        return sizes <= _EXHAUSTIVE and not difference.at_all({name: np.arange(sizes)}).any()

    def divided(self, by: int) -> Form | None:
        """Return the form divided by a number; None unless the number divides every coefficient."""
        if any(factor % by for _, factor in self.terms):
            return None
        return Form(tuple((atoms, factor // by) for atoms, factor in self.terms))

    def __str__(self) -> str:
        text = ""
        for atoms, factor in self.terms:
            sign = "-" if factor < 0 else "+" if text else ""
            digits = [str(abs(factor))] if abs(factor) != 1 or not atoms else []
            text += sign + "*".join([*digits, *map(str, atoms)])
        return text or "0"


# A trace has few distinct forms, which are added and multiplied many times.
@lru_cache(maxsize=1 << 14)
def _added(left: Form, right: Form | int) -> Form:
    return Form.of((*left.terms, *form(right).terms))


@lru_cache(maxsize=1 << 14)
def _multiplied(left: Form, right: Form | int) -> Form:
    return Form.of(((*a, *b), x * y) for a, x in left.terms for b, y in form(right).terms)


def form(value: Form | int) -> Form:
    """Return an int as a constant form, and a form unchanged."""
    return value if isinstance(value, Form) else _constant(int(value))


@lru_cache(maxsize=1 << 14)
def _constant(value: int) -> Form:
    return Form.of([((), value)])


@lru_cache(maxsize=256)
def symbol(name: str) -> Form:
    return Form.of([((name,), 1)])


@lru_cache(maxsize=4096)
def parse(text: str) -> Form:
    """Return the form of a text without spaces. Raises ValueError for a malformed text."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text or not text:
        raise ValueError(f"{text!r} is not a size; expected a form such as 32, n+1, 4*n, b*n or (n+1)/2")
    try:
        result = _sum(tokens)
    except IndexError:
        raise ValueError(f"the size {text!r} ends too early") from None
    if tokens:
        raise ValueError(f"the size {text!r} does not end before {''.join(tokens)!r}")
    return result


def _sum(tokens: list[str]) -> Form:
    total, sign = form(0), -1 if tokens[0] == "-" else 1
    if tokens[0] == "-":
        tokens.pop(0)
    while True:
        total = total + _product(tokens) * sign
        if not tokens or tokens[0] not in "+-":
            return total
        sign = -1 if tokens.pop(0) == "-" else 1


def _product(tokens: list[str]) -> Form:
    result = _operand(tokens)
    while tokens and tokens[0] == "*":
        tokens.pop(0)
        result = result * _operand(tokens)
    return result


def _operand(tokens: list[str]) -> Form:
    token = tokens.pop(0)
    if token == "(":
        result = _sum(tokens)
        if tokens.pop(0) != ")":
            raise ValueError("a size has an unclosed parenthesis")
    elif token.isdigit():
        result = form(int(token))
    elif token[0].isalpha() or token[0] == "_":
        result = symbol(token)
    else:
        raise ValueError(f"a size has {token!r} where a number, a symbol or a parenthesis was expected")
    if tokens and tokens[0] == "/":
        tokens.pop(0)
        by = tokens.pop(0)
        if not by.isdigit() or int(by) < 1:
            raise ValueError(f"a size is divided by {by!r}; expected a number of at least 1")
        result = result // int(by)
    return result


def _at(atom: Atom, sizes: Mapping[str, int]) -> int:
    return sizes[atom] if isinstance(atom, str) else atom.form.at(sizes) // atom.by


def _range(atom: Atom, symbols: Symbols) -> Range:
    if isinstance(atom, str):
        return symbols[atom]
    low, high = atom.form.range(symbols)
    return low // atom.by, high // atom.by

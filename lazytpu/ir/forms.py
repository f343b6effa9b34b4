"""Sizes that are known when a program runs: forms over size symbols, such as `n+1`, `4*n`, `b*n` and `(n+1)/2`.

A form is a polynomial with integer coefficients. Its atoms are symbols, and quotients rounded down, which windows and
strides make. `str` writes what `parse` reads.
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
"The least and the greatest number."
Symbols: TypeAlias = "Mapping[str, Range]"
"Size symbols by name, with the sizes that each may have; the greatest is its bound."

_TOKEN = re.compile(r"\d+|[A-Za-z_]\w*|[-+*/()]")
_EXHAUSTIVE = 1 << 16
"The most sizes of a symbol that are tried one by one for the range of a form that is not affine."


@dataclass(frozen=True)
class Quotient:
    """`form` / `by`, rounded down."""

    form: Form
    by: int

    def __str__(self) -> str:
        return f"({self.form})/{self.by}"


Atom: TypeAlias = "str | Quotient"
Monomial: TypeAlias = "tuple[Atom, ...]"


@dataclass(frozen=True)
class Form:
    """A sum of products of atoms; `terms` are (atoms, coefficient), sorted, with no coefficient of 0."""

    terms: tuple[tuple[Monomial, int], ...]

    def __hash__(self) -> int:
        """The hash of the terms, computed once: forms are the keys of many tables."""
        known = self.__dict__.get("hash")
        if known is None:
            known = self.__dict__["hash"] = hash(self.terms)
        return known

    @classmethod
    def of(cls, terms: Iterable[tuple[Monomial, int]]) -> Form:
        """The sum of these terms."""
        total: dict[Monomial, int] = {}
        for atoms, factor in terms:
            key = tuple(sorted(atoms, key=str))
            total[key] = total.get(key, 0) + factor
        return cls(tuple(sorted(((k, c) for k, c in total.items() if c), key=lambda t: (not t[0], str(t[0])))))

    @property
    def number(self) -> int | None:
        """The number that the form is at all sizes; None for one that varies."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def symbols(self) -> frozenset[str]:
        """The names of the symbols in it."""
        found: set[str] = set()
        for atoms, _ in self.terms:
            for atom in atoms:
                found |= {atom} if isinstance(atom, str) else atom.form.symbols
        return frozenset(found)

    def at(self, sizes: Mapping[str, int]) -> int:
        """The number at these sizes of the symbols."""
        return sum(factor * prod(_at(atom, sizes) for atom in atoms) for atoms, factor in self.terms)

    def where(self, forms: Mapping[str, Form]) -> Form:
        """The form with other ones in the place of its symbols."""
        total = form(0)
        for atoms, factor in self.terms:
            term = form(factor)
            for atom in atoms:
                term = term * (forms[atom] if isinstance(atom, str) else atom.form.where(forms) // atom.by)
            total = total + term
        return total

    def range(self, symbols: Symbols) -> Range:
        """The least and greatest numbers over all sizes; exact for affine forms and those of one symbol, and otherwise
        never too narrow."""
        names = self.symbols
        if len(names) == 1 and any(len(atoms) > 1 or isinstance(a, Quotient) for atoms, _ in self.terms for a in atoms):
            (name,) = names
            low, high = symbols[name]
            if high - low < _EXHAUSTIVE:
                tried = np.broadcast_to(self.at_all({name: np.arange(low, high + 1)}), (high - low + 1,))
                return int(tried.min()), int(tried.max())
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
        """The numbers at rows of sizes: i64[n]."""
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
        """The quotient, rounded down; a quotient atom where `by` does not divide all coefficients."""
        rest = Form.of((atoms, factor % by) for atoms, factor in self.terms)
        whole = Form.of((atoms, factor // by) for atoms, factor in self.terms)
        if rest.number is not None:  # it is less than `by`
            return whole
        (atoms, factor), *number = rest.terms
        if len(number) < 2 and not (number and number[0][0]) and factor == 1 and len(atoms) == 1:
            (atom,) = atoms
            if isinstance(atom, Quotient):  # what is rounded down twice is so at once
                more = number[0][1] if number else 0
                return whole + (atom.form + more * atom.by) // (atom.by * by)
        return whole + Form.of([((Quotient(rest, by),), 1)])

    @property
    def period(self) -> int:
        """After how many sizes of a symbol what is left over of all quotients comes again; 1 where there are none."""
        quotients = [atom for atoms, _ in self.terms for atom in atoms if isinstance(atom, Quotient)]
        return lcm(*(each.by * each.form.period for each in quotients))

    @property
    def degree(self) -> int:
        """The most symbols that are multiplied."""
        return max([0, *(sum(1 if isinstance(a, str) else a.form.degree for a in atoms) for atoms, _ in self.terms)])

    def same(self, other: Form) -> bool:
        """Whether both are one number at all sizes: n-(n)/2 is (n+1)/2. Of several symbols only those of one spelling
        are known to be."""
        rest = self - other
        if not rest.terms or len(rest.symbols) != 1:
            return not rest.terms
        # At sizes a period apart it is a polynomial, which is 0 if it is so at one size more than its degree.
        (name,), sizes = rest.symbols, rest.period * (rest.degree + 1)
        return sizes <= _EXHAUSTIVE and not rest.at_all({name: np.arange(sizes)}).any()

    def divided(self, by: int) -> Form | None:
        """The form divided by a number; None unless it divides every coefficient."""
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


# A trace has few forms, which are added and multiplied again and again.
@lru_cache(maxsize=1 << 14)
def _added(one: Form, other: Form | int) -> Form:
    return Form.of((*one.terms, *form(other).terms))


@lru_cache(maxsize=1 << 14)
def _multiplied(one: Form, other: Form | int) -> Form:
    return Form.of(((*a, *b), x * y) for a, x in one.terms for b, y in form(other).terms)


def form(value: Form | int) -> Form:
    """A number as a form; a form as it is."""
    return value if isinstance(value, Form) else Form.of([((), value)])


@lru_cache(maxsize=256)
def symbol(name: str) -> Form:
    return Form.of([((name,), 1)])


@lru_cache(maxsize=4096)
def parse(text: str) -> Form:
    """The form of a text without spaces. Raises ValueError for one that is malformed."""
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

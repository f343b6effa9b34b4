"""Compares the program of a bucket with a trace that it is to serve.

The program was made from one import at the bound, which derived an expression for every integer. Here the trace is
imported at its own sizes, without passes and emission, and must agree in

- its ops, what they are joined by, their dtypes and all attributes that are no integers (the structure);
- every integer, by the expression that the program has for it: sizes of arguments and results, limits, pads, divisors,
  counts of random bits, parameters of templates;
- constants that are 2 divided by an integer, to the bit of their dtype;
- which run-time numbers it takes, and which values it checks.

`pad-sizes` decides by ranges of these expressions over the bucket, so what it found of a size holds where the
expressions do. `AtSizes.bind` compares the sizes of arguments and results as the rules of `pad-sizes` gave them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from lazytpu.aten.errors import Check
from lazytpu.aten.importer import Imported, import_trace
from lazytpu.engine.programs.binding import Binding
from lazytpu.engine.programs.expressions import DIGITS, Expressions, digests
from lazytpu.engine.sizes.kernels import with_kernels
from lazytpu.engine.sizes.skeletons import with_parts
from lazytpu.engine.sizes.templates import OneSize, Sized
from lazytpu.ir.forms import parse
from lazytpu.ir.symbolic import Guard, respelled
from lazytpu.passes.attention.decompose_attention import DecomposeAttentionPass
from lazytpu.passes.padding.annotations import Reading, entries_of, place, read
from lazytpu.passes.padding.rules.constants import quotient
from lazytpu.passes.padding.walk import Refusal
from lazytpu.trace.trie import Record


def served(sized: Sized) -> list[Record]:
    """The records of a trace as its bucket has them: with the kernels of their sizes, and whole operands as views where
    the bucket has views."""
    return with_kernels(with_parts(sized.records, sized.bucket.records()))


@dataclass(frozen=True)
class ImportedAt:
    """A trace as it was imported at its sizes."""

    sizes: dict[str, int]
    imported: Imported
    reading: Reading

    @classmethod
    def of(
        cls, sizes: dict[str, int], records: Sequence[Record], live: Sequence[int], checks: bool, way: tuple[bool, bool]
    ) -> ImportedAt:
        """Import a trace as the program of its bucket is imported at the bound: with bounds `checks`, and the `way` of
        its expressions (`decomposed`, `identities`)."""
        decomposed, identities = way
        imported = import_trace(records, live, (), bounds_checks=checks, identities=identities)
        if decomposed:
            decompose(imported.module)
        return cls(sizes, imported, read(imported.module))

    @property
    def text(self) -> str:
        return ", ".join(f"{name} = {size}" for name, size in self.sizes.items())


def decompose(module: ModuleOp) -> None:
    """Make attention of the ops that it is."""
    DecomposeAttentionPass().apply(Context(), module)


def expressions_of(
    reading: Reading, guards: Sequence[Guard], decomposed: bool, identities: bool, bounds_checks: bool
) -> Expressions:
    """The expressions of a program, from the symbolic module of its bound."""
    forms = {form: i for i, form in enumerate(dict.fromkeys(reading.integers))}
    constants = tuple([number.hex() for _, _, number in reading.reciprocals])
    numbers = tuple([forms[form] for form in reading.integers])
    return Expressions(
        decomposed, identities, bounds_checks, *digests(reading.structure), tuple(map(str, forms)), numbers, constants,
        tuple([guard.fields for guard in guards]),
    )  # fmt: skip


def compare(
    expressions: Expressions, packs: Mapping[str, object], checks: Sequence[Check], trace: ImportedAt
) -> None:
    """Compare a program, which takes run-time numbers in `packs` and has these `checks`, with a trace. Raises Refusal
    where they differ."""
    reading, at = trace.reading, trace.text
    structure, entries = digests(reading.structure)
    if structure != expressions.structure:
        op = _other(reading, entries, expressions.entries)
        raise Refusal(op, f"at {at} it has another op, or another number that is no size, than at other sizes")
    integers = expressions.integers(trace.sizes)
    for i, (number, expected) in enumerate(zip(reading.integers, integers, strict=True)):
        if number.number != expected:
            op, name = place(reading, i)
            form = expressions.forms[expressions.numbers[i]]
            raise Refusal(op, f"at {at} its `{name}` has {number}, where the program computes {form} = {expected}")
    for (i, dtype, number), at_bound in zip(reading.reciprocals, expressions.constants, strict=True):
        fixed = parse(expressions.forms[expressions.numbers[i]]).number is not None
        expected = float.fromhex(at_bound) if fixed else quotient(integers[i], dtype)
        if number != expected:
            op, _ = place(reading, i)
            raise Refusal(op, f"at {at} it is {number!r}, where the program has {expected!r}")
    if packs != trace.imported.packer.entries:
        raise Refusal(reading.function, f"at {at} it takes other run-time numbers")
    here = trace.imported.checks
    expected = [(check.record, check.error, respelled(check.message, trace.sizes)) for check in checks]
    if expected != [(check.record, check.error, check.message) for check in here]:
        raise Refusal(reading.function, f"at {at} it checks other values")


def _other(reading: Reading, entries: str, expected: str) -> Operation:
    """The first op whose entry in the structure is another one."""
    for op, i in entries_of(reading):
        digits = slice(i * DIGITS, (i + 1) * DIGITS)
        if entries[digits] != expected[digits]:
            return op
    return reading.function


def verify(binding: Binding, sized: Sized) -> None:
    """Compare a program of a bucket with a trace of the bucket. Raises OneSize where it does not compute what the trace
    does, or the trace cannot be imported so."""
    assert binding.padding is not None
    own = binding.padding.expressions
    try:
        way = own.decomposed, own.identities
        trace = ImportedAt.of(sized.sizes, served(sized), binding.live, own.bounds_checks, way)
        compare(own, binding.packer.entries, binding.checks, trace)
    except Refusal as error:
        raise OneSize(str(error)) from error
    except Exception as error:  # whatever the import of an op raises: the exact program raises it for the user
        raise OneSize(f"at {sized.sizes} it cannot be imported: {error}") from error

"""Compares the program of a bucket with a trace that it is to serve.

The program comes from one import at the bound, which derived an expression for every integer. Here the trace is
imported at its own sizes, without passes and emission, and must agree in

- the structure: its ops, their operands, their dtypes and all attributes that are no integers;
- every integer, as the program's expression gives it: sizes of arguments and results, limits, pads, divisors, counts of
  random bits, parameters of templates;
- constants that are 2 divided by an integer, bit for bit in their dtype;
- the run-time numbers it takes, and the values it checks.

`pad-sizes` decides by ranges of these expressions over the bucket, so its decisions hold where the expressions do.
`AtSizes.bind` compares the sizes of arguments and results as the rules of `pad-sizes` computed them.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from lazytpu.aten.importer import Imported, import_trace
from lazytpu.engine.errors.unexpected import note_bug
from lazytpu.engine.programs.binding import Binding
from lazytpu.engine.programs.expressions import DIGITS, Expressions, digests
from lazytpu.engine.sizes.buckets import OneSize
from lazytpu.engine.sizes.skeletons import with_parts
from lazytpu.engine.sizes.templates import Sized
from lazytpu.ir.forms import parse
from lazytpu.ir.symbolic import respelled
from lazytpu.passes.attention.decompose_attention import DecomposeAttentionPass
from lazytpu.passes.padding.annotations import Reading, place, read
from lazytpu.passes.padding.rules.values import quotient
from lazytpu.passes.padding.walk import Refusal


def decompose(module: ModuleOp) -> None:
    """Replace attention ops by the ops they consist of."""
    DecomposeAttentionPass().apply(Context(), module)


def expressions_of(reading: Reading, decomposed: bool, bounds_checks: bool) -> Expressions:
    """Return the size expressions of programs without guards, from the symbolic module at a bound."""
    forms = {form: i for i, form in enumerate(dict.fromkeys(reading.integers))}
    constants = tuple([number.hex() for _, _, number in reading.reciprocals])
    numbers = tuple([forms[form] for form in reading.integers])
    return Expressions(
        decomposed, bounds_checks, *digests(reading.structure), tuple(map(str, forms)), numbers, constants, (),
    )  # fmt: skip


def compare(binding: Binding, expressions: Expressions, imported: Imported, sizes: Mapping[str, int]) -> None:
    """Compare a program with a trace that was imported at its own sizes. Raise Refusal if they differ."""
    reading, at = read(imported.module), ", ".join(f"{name} = {size}" for name, size in sizes.items())
    structure, entries = digests(reading.structure)
    if structure != expressions.structure:
        op = _other(reading, entries, expressions.entries)
        raise Refusal(op, f"at {at} it has another op, or another number that is no size, than at other sizes")
    integers = expressions.integers(sizes)
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
    if binding.packer.entries != imported.packer.entries:
        raise Refusal(reading.function, f"at {at} it takes other run-time numbers")
    expected = [(check.record, check.error, respelled(check.message, sizes)) for check in binding.checks]
    if expected != [(check.record, check.error, check.message) for check in imported.checks]:
        raise Refusal(reading.function, f"at {at} it checks other values")


def _other(reading: Reading, entries: str, expected: str) -> Operation:
    """Return the first op whose entry in the structure differs."""
    for op, i in reading.entries:
        digits = slice(i * DIGITS, (i + 1) * DIGITS)
        if entries[digits] != expected[digits]:
            return op
    return reading.function


def verify(binding: Binding, sized: Sized) -> None:
    """Compare a program of a bucket with a trace of the bucket.

    Raise OneSize if the program does not compute the trace, or the trace cannot be imported with the program's
    strategy.
    """
    assert binding.padding is not None
    expressions = binding.padding.expressions
    try:
        checks = expressions.bounds_checks
        records = with_parts(sized.records, sized.bucket.records())  # full views where the bucket slices
        parts = sized.bucket.forms.parts
        imported = import_trace(records, binding.live, (), bounds_checks=checks, identities=True, parts=parts)
        if expressions.decomposed:
            decompose(imported.module)
        compare(binding, expressions, imported, sized.sizes)
    except Refusal as error:
        raise OneSize(f"{error.reason}, {error.place}") from error
    except Exception as error:  # any error of an op's import: the exact program raises it for the user
        note_bug("importing a trace of a bucket", error)
        raise OneSize(f"at {sized.sizes} it cannot be imported: {error}") from error

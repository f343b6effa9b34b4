"""Sized programs: modules whose types are those of a bound, annotated with the sizes that are meant.

    builtin.module attributes {lazytpu.symbols = "n 1..32, b 0..8"} {
      func.func @main(%x : tensor<4x32xf32> {lazytpu.sizes = "_ n"}) -> tensor<4xf32> {
        %0 = lazytpu.slice %x ... {lazytpu.sizes = "limits: _ n-1; result: _ n-1"}

The module names its size symbols, each with the least and the greatest size; the greatest is the bound, at which the
types are made. An argument has the size of each dimension, a form (`lazytpu.ir.forms`), and `_` where the size in the
type is the only one. A dimension that is several merged ones is written as its factors, the outermost first: `4|n:32`
is 4 rows of 32 elements, of which n are meant. An op has the numbers of itself that are forms, by name: those of its
properties that may be sizes (`TensorOp.sized`), element by element, of a template those of its parameters, `value` for
a constant that is a size, `reciprocal` for one that is 2 divided by a size, and `result`, the sizes of its first
result; of a custom kernel also `result1` and so on.
These suffice where the sizes of a result do not follow from the operands: constants, iotas, random bits, new
dimensions of broadcasts, and slices.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from lazytpu.ir.forms import Form, Range, parse

SYMBOLS = "lazytpu.symbols"
"Attribute of a module: its size symbols."
SIZES = "lazytpu.sizes"
"Attribute of arguments, results and ops: the sizes that are meant."
RECIPROCAL = "reciprocal"
"Name of the size by which 2 is divided, where that is the number of a constant."
TWICE = 2
"What is divided: a gradient of a mean is 1 or 2 by a count, the latter of squares."
STATIC = "_"
"The text of a size that is what the type says."

_SYMBOL = re.compile(r"([A-Za-z]\w*) (\d+)\.\.(\d+)")


def symbols_of(module: ModuleOp) -> dict[str, Range]:
    """The size symbols of a module, in order. Raises ValueError for a malformed attribute."""
    attribute = module.attributes.get(SYMBOLS)
    if attribute is None:
        return {}
    text = attribute.data if isinstance(attribute, StringAttr) else str(attribute)
    symbols: dict[str, Range] = {}
    for part in text.split(","):
        match = _SYMBOL.fullmatch(part.strip())
        if match is None or match[1] in symbols or int(match[2]) > int(match[3]):
            raise ValueError(
                f'{SYMBOLS} = "{text}": expected each symbol once, with its least and greatest size, as in "n 1..32"; '
                f"got {part.strip()!r}"
            )
        symbols[match[1]] = int(match[2]), int(match[3])
    return symbols


def set_symbols(module: ModuleOp, symbols: Mapping[str, Range]) -> None:
    """Name the size symbols of a module; none takes the attribute away."""
    module.attributes.pop(SYMBOLS, None)
    if symbols:
        text = ", ".join(f"{name} {low}..{high}" for name, (low, high) in symbols.items())
        module.attributes[SYMBOLS] = StringAttr(text)


def sizes_of(op: Operation) -> dict[str, list[Form | None]]:
    """The annotation of an op: forms by the name of a property, `value` or `result`; None for a number that is as it
    stands. Raises ValueError for a malformed one."""
    attribute = op.attributes.get(SIZES)
    if attribute is None:
        return {}
    if not isinstance(attribute, StringAttr):
        raise ValueError(f"{SIZES} = {attribute}: expected a string")
    named: dict[str, list[Form | None]] = {}
    for part in attribute.data.split(";"):
        name, colon, forms = part.partition(":")
        if not colon or name.strip() in named:
            raise ValueError(f'{SIZES} = "{attribute.data}": expected names with forms, as in "result: _ n+1"')
        named[name.strip()] = [None if word == STATIC else parse(word) for word in forms.split()]
    return named


def check_names(op: Operation, names: Collection[str]) -> None:
    """Raise ValueError where an op is annotated with a size of something else than these."""
    others = [name for name in sizes_of(op) if name not in names]
    if others:
        known = ", ".join(sorted(names))
        raise ValueError(f"{others[0]} is annotated with a size, and is none; {SIZES} may name {known}")


def set_sizes(op: Operation, sizes: Mapping[str, Sequence[Form | int | None]]) -> None:
    """Annotate an op: forms by the name of a property, `value` or `result`. Numbers stand for themselves."""
    parts = [f"{name}: {' '.join(STATIC if x is None else str(x) for x in forms)}" for name, forms in sizes.items()]
    op.attributes[SIZES] = StringAttr("; ".join(parts))

"""Sized programs: modules whose types have the sizes at a bound, annotated with symbolic sizes.

    builtin.module attributes {lazytpu.symbols = "n 1..32, b 0..8"} {
      func.func @main(%x : tensor<4x32xf32> {lazytpu.sizes = "_ n"}) -> tensor<4xf32> {
        %0 = lazytpu.slice %x ... {lazytpu.sizes = "limits: _ n-1; result: _ n-1"}

The module declares its size symbols, each with the least and the greatest size. The greatest is the bound, which the
types have. An argument has a word for each dimension: a form (`lazytpu.ir.forms`), or `_` if the size in the type is
the only one. A dimension that merges several is written as its factors, the outermost first: `4|n:32` is 4 rows of 32
elements, of which n are true.

An op annotates those of its numbers that are forms, by name:

- a property that may be sizes (`TensorOp.sized`), element by element;
- a parameter of a template;
- `value`, for a constant that is a size, and `reciprocal`, for a constant that is 2 divided by a size;
- `result`, the sizes of the first result; of a custom kernel also `result1` and so on.

Annotations suffice where the sizes of a result do not follow from the operands: constants, iotas, random bits, new
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
"""Attribute of arguments, results and ops: the symbolic sizes."""
RECIPROCAL = "reciprocal"
"""Name of the divisor of a constant that is 2 divided by a size."""
TWICE = 2
"""The dividend: a gradient of a mean is 1 or 2 divided by a count, the latter for squares."""
STATIC = "_"
"""The text of a size that equals the size in the type."""

_SYMBOL = re.compile(r"([A-Za-z]\w*) (\d+)\.\.(\d+)")


def symbols_of(module: ModuleOp) -> dict[str, Range]:
    """Return the size symbols of a module, in order. Raises ValueError for a malformed attribute."""
    attribute = module.attributes.get(SYMBOLS)
    if attribute is None:
        return {}
    text = attribute.data if isinstance(attribute, StringAttr) else str(attribute)
    symbols: dict[str, Range] = {}
    for declaration in text.split(","):
        match = _SYMBOL.fullmatch(declaration.strip())
        if match is None or match[1] in symbols or int(match[2]) > int(match[3]):
            raise ValueError(
                f'{SYMBOLS} = "{text}": expected each symbol once, with its least and greatest size, as in "n 1..32"; '
                f"got {declaration.strip()!r}"
            )
        symbols[match[1]] = int(match[2]), int(match[3])
    return symbols


def set_symbols(module: ModuleOp, symbols: Mapping[str, Range]) -> None:
    """Set the size symbols of a module. Without symbols, remove the attribute."""
    module.attributes.pop(SYMBOLS, None)
    if symbols:
        text = ", ".join(f"{name} {low}..{high}" for name, (low, high) in symbols.items())
        module.attributes[SYMBOLS] = StringAttr(text)


def sizes_of(op: Operation) -> dict[str, list[Form | None]]:
    """Return the annotation of an op: property name, `value` or `result` -> forms, None for a static number. Raises
    ValueError for a malformed annotation."""
    attribute = op.attributes.get(SIZES)
    if attribute is None:
        return {}
    if not isinstance(attribute, StringAttr):
        raise ValueError(f"{SIZES} = {attribute}: expected a string")
    named: dict[str, list[Form | None]] = {}
    for entry in attribute.data.split(";"):
        name, colon, forms = entry.partition(":")
        if not colon or name.strip() in named:
            raise ValueError(f'{SIZES} = "{attribute.data}": expected names with forms, as in "result: _ n+1"')
        named[name.strip()] = [None if word == STATIC else parse(word) for word in forms.split()]
    return named


def check_names(op: Operation, names: Collection[str]) -> None:
    """Raise ValueError if the annotation of an op has other names than these."""
    unknown = [name for name in sizes_of(op) if name not in names]
    if unknown:
        allowed = ", ".join(sorted(names))
        raise ValueError(f"{unknown[0]} is annotated with a size, and is none; {SIZES} may name {allowed}")


def set_sizes(op: Operation, sizes: Mapping[str, Sequence[Form | int | None]]) -> None:
    """Annotate an op: property name, `value` or `result` -> forms or ints."""
    entries = [f"{name}: {' '.join(STATIC if x is None else str(x) for x in forms)}" for name, forms in sizes.items()]
    op.attributes[SIZES] = StringAttr("; ".join(entries))

"""`pad-sizes`: one program for all sizes up to a bound.

    builtin.module attributes {lazytpu.symbols = "n 1..8"} {
    func.func @main(%x : tensor<4x8xf32> {lazytpu.sizes = "_ n"}) -> tensor<4xf32>
      %0 = lazytpu.reduce add %x dims = [1] : ...
    ->
    func.func @main(%x : tensor<4x8xf32> {lazytpu.sizes = "_ n"}, %sizes : tensor<1xi32>) -> tensor<4xf32>
      %0 = lazytpu.number %sizes 0 ...                   n
      %1 = lazytpu.compare LT ...                        which elements are true
      %2 = lazytpu.select %1, %x, 0
      %3 = lazytpu.reduce add %2 dims = [1] : ...

The module is that of the bound, with ordinary static types; annotations say which sizes are meant (`lazytpu.ir.sizes`).
The result is an ordinary module with one more argument, the pack of sizes, i32 in the order of the symbols. The first n
elements along a sized dimension are *true*, the others are padding, and may hold anything.

Needs: annotations, and one function. Guarantees: every true element of every value is what the program of the exact
size computes; of the others nothing is promised, and no true element, check of values or written element depends on
them. Sums may be grouped in another way. Results and arguments keep their `lazytpu.sizes`; a module without symbols is
left as it is. Where an op has no rule for its padding, the module is refused; the error names op, line and reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block
from xdsl.passes import ModulePass

import lazytpu.passes.padding.rules  # noqa: F401  # pyright: ignore[reportUnusedImport]  (its rules register)
from lazytpu.ir.sizes import SIZES, SYMBOLS, symbols_of
from lazytpu.ir.types import shape_of, tensor_type
from lazytpu.passes.padding.annotations import attributes_of
from lazytpu.passes.padding.dims import Dim, parse_dims, static
from lazytpu.passes.padding.masks import Padded, Shared
from lazytpu.passes.padding.walk import Refusal, Walk

NAME = "sizes"
"The name of the new argument."


@dataclass(frozen=True)
class PadSizesPass(ModulePass):
    """Makes the program at a bound serve all sizes up to it."""

    name = "pad-sizes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pad_sizes(op)


@dataclass(frozen=True)
class Sized:
    """The result of `pad_sizes` on a module."""

    symbols: tuple[str, ...]
    """The size symbols, in the order of the pack, which is the last argument."""
    arguments: tuple[tuple[Dim, ...], ...]
    results: tuple[tuple[Dim, ...], ...]
    masks: int
    """Number of masked operands."""
    moves: int
    """Number of values gathered into another arrangement."""
    ops: int
    """Number of ops before."""
    added: int

    @property
    def note(self) -> str:
        """Return the cost of padding as text for `lazytpu.explain()`."""
        masks = f"{self.masks} operands are masked, {self.moves} moved into a row"
        return f"padding: {masks}, {self.added} more of {self.ops} ops"


def pad_sizes(module: ModuleOp) -> Sized | None:
    """Rewrite an annotated module in place. Return None for one without symbols.

    Raise Refusal if no rule handles the padding of an op, and ValueError for malformed annotations. The module is then
    partly rewritten and must be discarded.
    """
    symbols = symbols_of(module)
    if not symbols:
        return None
    functions = [op for op in module.ops if isinstance(op, FuncOp)]
    if len(functions) != 1:
        raise Refusal(module, f"the module has {len(functions)} functions; pad-sizes runs before parts are outlined")
    (function,) = functions
    block = function.body.block
    # Add the pack of sizes, and read the annotations of the arguments.
    arguments = list(block.args)
    pack = block.insert_arg(tensor_type("i32", (len(symbols),)), len(arguments))
    shared = Shared(symbols)
    attributes = attributes_of(function.arg_attrs, len(arguments))
    for argument, attribute in zip(arguments, attributes, strict=True):
        text = attribute.get(SIZES)
        shape = shape_of(argument)
        dims = parse_dims(text.data, shape) if isinstance(text, StringAttr) else static(shape)
        shared.values[argument] = Padded(dims)
    # Apply the rules.
    walk, ops = Walk(shared, block, pack), _count(block)
    walk.check_arguments(function, arguments)
    results = [shared.values[value].dims for value in walk.run()]
    # Update the signature and the annotations.
    inputs, outputs = [argument.type for argument in block.args], list(function.function_type.outputs)
    function.function_type = FunctionType.from_lists(inputs, outputs)
    attributes.append({"lazytpu.name": StringAttr(NAME)})
    function.arg_attrs = ArrayAttr(map(DictionaryAttr, attributes))
    if any(dim.padded for dims in results for dim in dims):
        function.res_attrs = _with_sizes(function, results)
    module.attributes.pop(SYMBOLS)
    of_arguments = tuple(shared.values[argument].dims for argument in arguments)
    added = _count(block) - ops
    return Sized(tuple(symbols), of_arguments, tuple(results), shared.masks, shared.moves, ops, added)


def _count(block: Block) -> int:
    """Return the number of ops of a block, regions included."""
    return len(block.ops) + sum(_count(region.block) for op in block.ops for region in op.regions)


def _with_sizes(function: FuncOp, results: Sequence[Sequence[Dim]]) -> ArrayAttr[DictionaryAttr]:
    """Return the attributes of the results, with the sizes of padded ones."""
    attributes = attributes_of(function.res_attrs, len(results))
    for attribute, dims in zip(attributes, results, strict=True):
        if any(dim.padded for dim in dims):
            attribute[SIZES] = StringAttr(" ".join(dim.text() for dim in dims))
    return ArrayAttr(map(DictionaryAttr, attributes))

"""`mark-donation`: pair each donated argument with the result that reuses its buffer.

    func.func @main(%w : T {lazytpu.donate, lazytpu.successor = 1 : i64}, %g : T) -> (U, T)
    ->
    func.func @main(%w : T {lazytpu.alias = 1 : i64}, %g : T) -> (U, T)

The importer marks an argument `lazytpu.donate` when its buffer is dead after the run; `lazytpu.successor` is the number
of the result that replaces it, if any (the new value of a parameter). Arguments with a successor of the same type are
paired first; the others follow in order, each with the first free result of its type. A result that *is* an argument
lives in that argument's buffer: it is paired with that argument or with none.

Needs: `lazytpu.donate` only on arguments whose buffer is dead. Guarantees: each result aliases at most one argument,
types agree, and no `lazytpu.donate` or `lazytpu.successor` is left.

Unpaired donations are dropped because they save nothing (measured with jaxlib 0.10.2 on the CPU client): given
`jax.buffer_donor` and no result of the same size, XLA neither uses nor frees the buffer; with a result of the same size
but another type it aliases the two, then adds a temporary of that size and a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, SSAValue
from xdsl.passes import ModulePass

DONATE = "lazytpu.donate"
SUCCESSOR = "lazytpu.successor"
ALIAS = "lazytpu.alias"


@dataclass(frozen=True)
class MarkDonationPass(ModulePass):
    """Aliases donated arguments to results."""

    name = "mark-donation"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and function.arg_attrs is not None and not function.is_declaration:
                _mark(function, [dict(attributes.data) for attributes in function.arg_attrs])


def _mark(function: FuncOp, attributes: list[dict[str, Attribute]]) -> None:
    terminator = function.body.block.last_op
    if not isinstance(terminator, ReturnOp):
        return
    aliases = pair(function, list(terminator.operands), attributes)
    for index, argument_attributes in enumerate(attributes):
        argument_attributes.pop(DONATE, None)
        argument_attributes.pop(SUCCESSOR, None)
        if index in aliases:
            argument_attributes[ALIAS] = IntegerAttr(aliases[index], i64)
    function.arg_attrs = ArrayAttr(DictionaryAttr(argument_attributes) for argument_attributes in attributes)


def pair(function: FuncOp, results: list[SSAValue], attributes: list[dict[str, Attribute]]) -> dict[int, int]:
    """Argument number -> number of the result that may reuse its buffer."""
    arguments = function.body.block.args
    aliases = {i: _number(attrs[ALIAS]) for i, attrs in enumerate(attributes) if ALIAS in attrs}
    donated = [i for i, attrs in enumerate(attributes) if DONATE in attrs and i not in aliases]
    free = dict.fromkeys(range(len(results)))
    for result in aliases.values():
        free.pop(result, None)

    def take(argument: int, result: int) -> None:
        aliases[argument] = result
        del free[result]

    result_of: dict[SSAValue, int] = {}
    for r in reversed(free):
        result_of[results[r]] = r
    for i in donated:
        # An argument that is returned unchanged keeps its buffer.
        if arguments[i] in result_of:
            take(i, result_of[arguments[i]])
    for r in list(free):
        if isinstance(results[r], BlockArgument):
            del free[r]
    for i in donated:
        successor = attributes[i].get(SUCCESSOR)
        if i in aliases or successor is None:
            continue
        r = _number(successor)
        if r in free and results[r].type == arguments[i].type:
            take(i, r)
    by_type: dict[Attribute, list[int]] = {}
    for r in free:
        by_type.setdefault(results[r].type, []).append(r)
    for i in donated:
        if i not in aliases and (candidates := by_type.get(arguments[i].type)):
            take(i, candidates.pop(0))
    return aliases


def _number(attribute: Attribute) -> int:
    if not isinstance(attribute, IntegerAttr):
        raise ValueError(f"expected {ALIAS} and {SUCCESSOR} to be the number of a result, got {attribute}")
    return attribute.value.data

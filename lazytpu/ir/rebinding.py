"""Modules with symbolic sizes, rebuilt at another bound.

A module built under a `Derivation` has the types and numbers of its bound, and a form for each. If the comparisons that
decided how it was built have the same answers at another bound (`Derivation.follows`), the module of that bound differs
in its numbers only: each is its form there. Rebuilding takes a fraction of the time of an import. The copy has ordinary
types, which are interned, so that passes look them up faster than symbolic ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, DictionaryAttr, FunctionType, ModuleOp, TensorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from lazytpu.ir.literals import scalar
from lazytpu.ir.sizes import TWICE
from lazytpu.ir.symbolic import Derivation, Reciprocal, Size
from lazytpu.ir.types import element_name, int_array, tensor_type


def rebuilt(module: ModuleOp, of: Derivation, bound: Mapping[str, int]) -> ModuleOp:
    """Return a copy of a module that was built under `of`, at another bound. Annotations and attributes are kept."""
    return ModuleOp(list(map(_Rebuilding(of, bound).op, module.ops)), dict(module.attributes))


class _Rebuilding:
    """Copies ops, whose values it maps to their copies."""

    def __init__(self, of: Derivation, bound: Mapping[str, int]):
        self._of, self._bound = of, bound
        self._values: dict[SSAValue, SSAValue] = {}
        self._attributes: dict[int, Attribute] = {}

    def op(self, op: Operation) -> Operation:
        values, attribute = self._values, self._attribute
        copy = type(op).create(
            operands=[values[operand] for operand in op.operands],
            result_types=[attribute(result.type) for result in op.results],
            properties={name: attribute(prop) for name, prop in op.properties.items()},
            attributes=op.attributes,
            location=op.location,
            regions=[Region(self._block(region.block)) for region in op.regions],
        )
        self._note(op.results, copy.results)
        return copy

    def _block(self, block: Block) -> Block:
        copy = Block(arg_types=[self._attribute(argument.type) for argument in block.args])
        self._note(block.args, copy.args)
        copy.add_ops(map(self.op, block.ops))
        return copy

    def _note(self, values: Iterable[SSAValue], copies: Iterable[SSAValue]) -> None:
        for value, copy in zip(values, copies, strict=True):
            self._values[value] = copy
            if value.name_hint is not None:
                copy.name_hint = value.name_hint

    def _attribute(self, attribute: Attribute) -> Attribute:
        copy = self._attributes.get(id(attribute))
        return self._attributes.setdefault(id(attribute), self._copied(attribute)) if copy is None else copy

    def _copied(self, attribute: Attribute) -> Attribute:
        """Return an attribute with its numbers at the new bound; itself if it has none that vary."""
        symbolic = self._of.attached(attribute)
        match attribute:
            case TensorType() if symbolic is not None:
                dtype, shape = symbolic
                return tensor_type(dtype, map(self._number, shape))
            case DenseArrayBase() if symbolic is not None:
                return int_array(map(self._number, symbolic))
            case _ if symbolic is not None:
                return scalar(self._number(symbolic), element_name(cast("Any", attribute).type))
            case ArrayAttr():
                return ArrayAttr(map(self._attribute, attribute))
            case DictionaryAttr():
                return DictionaryAttr({name: self._attribute(item) for name, item in attribute.data.items()})
            case FunctionType():
                inputs, outputs = (list(map(self._attribute, types)) for types in (attribute.inputs, attribute.outputs))
                return FunctionType.from_lists(inputs, outputs)
            case _:
                return attribute

    def _number(self, number: Any) -> Any:
        if isinstance(number, Size):
            return number.form.at(self._bound)
        return TWICE / number.form.at(self._bound) if isinstance(number, Reciprocal) else number

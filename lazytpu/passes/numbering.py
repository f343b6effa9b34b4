"""Numbers for attributes, so that comparing them does not hash a tree each time, and keys for regions."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from xdsl.ir import Attribute, Block, Operation, SSAValue


@dataclass
class AttributeNumbers:
    """Assigns equal numbers to equal attributes. Looks them up by identity where possible, since hashing takes 5 us."""

    by_value: dict[Attribute, int] = field(default_factory=dict[Attribute, int])
    # Holds the attribute too: an id is unique only among living objects.
    by_identity: dict[int, tuple[Attribute, int]] = field(default_factory=dict[int, tuple[Attribute, int]])

    def __getitem__(self, attribute: Attribute) -> int:
        entry = self.by_identity.get(id(attribute))
        if entry is not None:
            return entry[1]
        number = self.by_value.setdefault(attribute, len(self.by_value))
        self.by_identity[id(attribute)] = (attribute, number)
        return number

    def regions(self, op: Operation) -> tuple[Hashable, ...]:
        """Return a key for the regions of an op, which are isolated: equal for equal computations. It covers ops,
        attributes, types and data flow, but not source lines."""
        return tuple(self._block(block) for region in op.regions for block in region.blocks)

    def _block(self, block: Block) -> Hashable:
        place: dict[SSAValue, int] = {argument: i for i, argument in enumerate(block.args)}
        ops: list[Hashable] = []
        for op in block.ops:
            operands = tuple(place[operand] for operand in op.operands)
            named = sorted((*op.properties.items(), *op.attributes.items()), key=lambda item: item[0])
            attributes = tuple((name, self[value]) for name, value in named)
            ops.append((type(op), operands, attributes, tuple(self[r.type] for r in op.results), self.regions(op)))
            place.update((result, len(place)) for result in op.results)
        return tuple(self[argument.type] for argument in block.args), tuple(ops)

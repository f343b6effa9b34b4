"""`cse`: compute equal expressions once.

    %0 = lazytpu.exp %x                      %0 = lazytpu.exp %x
    %1 = lazytpu.exp %x                ->    %2 = lazytpu.add %0, %0
    %2 = lazytpu.add %0, %1

Two ops are equal when they have the same class, operands (in any order for a commutative op), properties, attributes
and result types, and regions with equal ops. The first one stays, with its source line.

Needs: blocks in dataflow order. Guarantees: no two pure ops of a block are equal. Ops are never merged

- across blocks, since each region is a scope of its own;
- across a recompute boundary: an op marked `lazytpu.recompute = N` merges only with ops of the same N. Activation
  checkpointing computes values twice on purpose; merging them would keep alive what it frees.

Random ops need no special case: two draws differ in their offset operands.

xDSL's own `cse` has no notion of recompute boundaries, and hashes whole attribute trees: 20 us per op. Here each
attribute is numbered once, by identity where possible: 7 us per op (tools/time_passes.py, 5,000 ops of which 2 in 5 are
merged).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.traits import Commutative, Pure

from lazytpu.passes.numbering import AttributeNumbers


@dataclass(frozen=True)
class CsePass(ModulePass):
    """Common subexpression elimination."""

    name = "cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        merger = _Merger()
        for region in op.regions:
            for block in region.blocks:
                merger.block(block)


@dataclass
class _Merger:
    numbers: AttributeNumbers = field(default_factory=AttributeNumbers)
    traits: dict[type[Operation], tuple[bool, bool]] = field(default_factory=dict[type[Operation], tuple[bool, bool]])

    def block(self, block: Block) -> None:
        by_key: dict[Hashable, Operation] = {}
        op = block.first_op
        while op is not None:
            following = op.next_op
            for region in op.regions:
                for inner in region.blocks:
                    self.block(inner)
            pure, commutative = self.traits_of(type(op))
            if pure:
                first = by_key.setdefault(self.key(op, commutative), op)
                if first is not op:
                    for old, new in zip(op.results, first.results, strict=True):
                        old.replace_all_uses_with(new)
                    block.erase_op(op)
            op = following

    def traits_of(self, kind: type[Operation]) -> tuple[bool, bool]:
        traits = self.traits.get(kind)
        if traits is None:
            traits = self.traits[kind] = (kind.has_trait(Pure), kind.has_trait(Commutative))
        return traits

    def key(self, op: Operation, commutative: bool) -> Hashable:
        numbers = self.numbers
        values = tuple(map(id, op.operands))
        if commutative:
            values = tuple(sorted(values))
        types = tuple(numbers[result.type] for result in op.results)
        properties = tuple(sorted((name, numbers[value]) for name, value in op.properties.items()))
        if not op.attributes and not op.regions:
            return type(op), values, types, properties
        attributes = tuple(sorted((name, numbers[value]) for name, value in op.attributes.items()))
        return type(op), values, types, properties, attributes, numbers.regions(op)

"""Run-time numbers that equal clusters read at different places of a pack.

Each parameter of a model has numbers of its own, such as Adam's corrections, so the updates of two layers are equal but
for which numbers they read. Their function takes the places as an argument, and `@main` gives them as a constant:

    %0 = lazytpu.number %pack 7                    func.func private @f(%pack, …, %places : tensor<2xi32>) {
    %1 = lazytpu.number %pack 9            ->        %picked = lazytpu.gather %pack, %places
    …                                                %0 = lazytpu.number %picked 0
                                                     %1 = lazytpu.number %picked 1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from xdsl.dialects.builtin import LocationAttr, StringAttr
from xdsl.ir import Block, Operation, SSAValue

from lazytpu.ir.base import integer
from lazytpu.ir.builder import Builder
from lazytpu.ir.building.core import integer_prop
from lazytpu.ir.constants import DenseConstantOp, NumberOp
from lazytpu.ir.types import tensor_type

Picks: TypeAlias = "dict[SSAValue, list[int]]"
"""The places that a cluster reads in each pack, in the order of their first use."""


def picks_of(ops: Iterable[Operation]) -> Picks:
    """The places of the run-time numbers that these ops read."""
    found: Picks = {}
    for op in ops:
        if isinstance(op, NumberOp):
            places = found.setdefault(op.pack, [])
            if integer(op.index) not in places:
                places.append(integer(op.index))
    return found


def places(indices: Sequence[int]) -> DenseConstantOp:
    """The constant with the places that a call reads."""
    data = StringAttr(np.asarray(indices, "<i4").tobytes().hex())
    return DenseConstantOp.create(result_types=[tensor_type("i32", (len(indices),))], properties={"data": data})


class Picker:
    """Reads numbers in a function at places that are its arguments. `packs` are those of the cluster that the function
    is made of, with the function's arguments in their places; `location` is that of the reading."""

    def __init__(self, block: Block, found: Picks, packs: Mapping[SSAValue, SSAValue], location: LocationAttr):
        self.found = found
        self.picked: dict[SSAValue, SSAValue] = {}
        builder = Builder(block)
        builder.location = location
        for pack, indices in found.items():
            argument = block.insert_arg(tensor_type("i32", (len(indices),)), len(block.args))
            self.picked[pack] = builder.gather(
                packs[pack],
                argument,
                offset_dims=(),
                collapsed_slice_dims=(0,),
                start_index_map=(0,),
                index_vector_dim=1,
                slice_sizes=(1,),
            )

    def number(self, op: NumberOp) -> NumberOp:
        """The same number, read where the call says."""
        place = self.found[op.pack].index(integer(op.index))
        return NumberOp.create(
            operands=[self.picked[op.pack]], result_types=op.result_types, properties={"index": integer_prop(place)}
        )

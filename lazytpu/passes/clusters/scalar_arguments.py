"""Run-time numbers that equal clusters read at different indices of a pack.

Each parameter of a model has numbers of its own, such as Adam's corrections, so the updates of two layers differ only
in the indices that they read. Their function takes the indices as an argument, and `@main` passes them as a constant:

    %0 = lazytpu.number %pack 7                    func.func private @f(%pack, …, %indices : tensor<2xi32>) {
    %1 = lazytpu.number %pack 9            ->        %scalars = lazytpu.gather %pack, %indices
    …                                                %0 = lazytpu.number %scalars 0
                                                     %1 = lazytpu.number %scalars 1
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

PackIndices: TypeAlias = "dict[SSAValue, list[int]]"
"""The indices that a cluster reads in each pack, in order of first use."""


def pack_indices(ops: Iterable[Operation]) -> PackIndices:
    """The indices of the run-time numbers that these ops read."""
    of_packs: PackIndices = {}
    for op in ops:
        if isinstance(op, NumberOp):
            indices = of_packs.setdefault(op.pack, [])
            if integer(op.index) not in indices:
                indices.append(integer(op.index))
    return of_packs


def index_constant(indices: Sequence[int]) -> DenseConstantOp:
    """Return the constant that passes these indices to a call, a 1-D i32."""
    data = StringAttr(np.asarray(indices, "<i4").tobytes().hex())
    return DenseConstantOp.create(result_types=[tensor_type("i32", (len(indices),))], properties={"data": data})


class ScalarArguments:
    """Reads run-time numbers in a function at indices that are its arguments.

    Appends the index arguments and a gather for each pack to `block`, the body of the function. `packs` maps the packs
    of the outlined cluster to arguments of the function; `location` is the source line of the gathers.
    """

    def __init__(self, block: Block, indices: PackIndices, packs: Mapping[SSAValue, SSAValue], location: LocationAttr):
        self.indices = indices
        self.gathered: dict[SSAValue, SSAValue] = {}
        builder = Builder(block)
        builder.location = location
        for pack, of_pack in indices.items():
            argument = block.insert_arg(tensor_type("i32", (len(of_pack),)), len(block.args))
            self.gathered[pack] = builder.gather(
                packs[pack],
                argument,
                offset_dims=(),
                collapsed_slice_dims=(0,),
                start_index_map=(0,),
                index_vector_dim=1,
                slice_sizes=(1,),
            )

    def number(self, op: NumberOp) -> NumberOp:
        """The op that reads the number of `op` from the gathered numbers."""
        position = self.indices[op.pack].index(integer(op.index))
        return NumberOp.create(
            operands=[self.gathered[op.pack]],
            result_types=op.result_types,
            properties={"index": integer_prop(position)},
        )

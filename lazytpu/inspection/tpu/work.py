"""The work of an op of scheduled HLO: operations of the matrix unit, and bytes to and from HBM."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from lazytpu.inspection.tpu.arrays import Array
from lazytpu.inspection.tpu.hlo import Computation, Hlo, Op
from lazytpu.inspection.tpu.kernels import Estimate, hbm_bytes
from lazytpu.inspection.tpu.windows import positions

# Ops that take no time: they name, regroup or reinterpret existing arrays.
FREE = frozenset(
    """parameter constant get-tuple-element tuple bitcast after-all partition-id replica-id iota opt-barrier
    optimization-barrier add-dependency rng-get-and-update-state domain send""".split()
)
_FREE_CALLS = re.compile(
    r"ConcatBitcast|AllocateBuffer|Sharding|SPMD\w+|PrepareAsync\w+|AssumeGatherIndicesInBound|X64\w*|annotate_device_placement"
)
_MOVES = ("copy", "transpose", "reshape", "reverse")
_SLICES = ("dynamic-slice", "slice", "gather")


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one run of an op: `flops` of the matrix unit (a multiply-add is two), `hbm_bytes` read and written,
    including padding, and whether it uses the matrix unit at all."""

    flops: float
    hbm_bytes: float
    matrix: bool


NOTHING = Work(0.0, 0.0, False)


def is_free(op: Op) -> bool:
    """Return whether an op takes no time."""
    if op.opcode == "custom-call":
        return _FREE_CALLS.fullmatch(op.target) is not None
    return op.opcode in FREE


def is_copy(hlo: Hlo, op: Op) -> bool:
    """Return whether an op only moves elements into another order or layout."""
    if op.opcode != "fusion":
        return op.opcode in _MOVES
    inside = [inner for inner in hlo.inside(op)[1:] if inner.opcode not in FREE and inner.opcode != "fusion"]
    return bool(inside) and all(inner.opcode in _MOVES for inner in inside)


def work(hlo: Hlo, computation: Computation, op: Op) -> Work:
    """Return the work of an op, including all ops fused into it."""
    operands = [computation.by_name[name].results for name in op.operands]
    if op.opcode != "fusion":
        arrays, kernel = [array for results in operands for array in results], Estimate.of(op)
        if kernel is not None:
            return Work(kernel.flops, hbm_bytes(kernel, op, arrays), kernel.flops > 0)
        moved = sum(array.hbm_bytes for array in (*arrays, *op.results))
        return Work(matrix_flops(computation, op), moved, op.opcode in ("convolution", "dot"))
    computations = hlo.nested(op)
    flops = sum(matrix_flops(computation, inner) for computation in computations for inner in computation.ops)
    matrix = any(inner.opcode in ("convolution", "dot") for inner in hlo.inside(op))
    return Work(flops, _fusion_bytes(hlo.computations[op.called[0]], operands, op.results), matrix)


def _fusion_bytes(fused: Computation, operands: list[tuple[Array, ...]], results: tuple[Array, ...]) -> float:
    """Return the bytes that a fusion moves. An operand that is only sliced counts as its slices, and an operand updated
    in place as the update."""
    parameters = {op.parameter: op.name for op in fused.ops if op.opcode == "parameter"}
    total, updated = 0.0, None
    for place, arrays in enumerate(operands):
        nbytes = sum(array.hbm_bytes for array in arrays)
        users = fused.users.get(parameters[place], [])
        if nbytes and users and all(user.opcode in _SLICES and at == 0 for user, at in users):
            nbytes = min(nbytes, sum(array.bytes for user, _ in users for array in user.results))
        elif nbytes and users and all(user.opcode == "dynamic-update-slice" and at == 0 for user, at in users):
            updates = [fused.by_name[user.operands[1]] for user, _ in users]
            updated = sum(array.bytes for update in updates for array in update.results)
            nbytes = min(nbytes, updated)
        total += nbytes
    results_bytes = sum(array.hbm_bytes for array in results)
    return total + (results_bytes if updated is None else min(results_bytes, updated))


def matrix_flops(computation: Computation, op: Op) -> float:
    """Return the operations of a `dot` or `convolution` on the matrix unit; 0 for other ops.

    Taps of a convolution that fall on padding, or between dilated elements, do not count: the compiler writes batched
    products that way.
    """
    if op.opcode not in ("dot", "convolution"):
        return 0.0
    (left,), (right,), (result,) = *(computation.by_name[name].results for name in op.operands[:2]), op.results
    if op.opcode == "dot":
        return 2.0 * result.elements * prod(left.dims[dim] for dim in op.raw.message(30).integers(1))
    numbers = op.raw.message(16)
    spatial = zip(
        numbers.integers(11), numbers.integers(12), op.raw.message(15).messages(1), strict=True
    )  # dimensions of input and output, and the window
    covered = prod(positions(window, left.dims[source], result.dims[target]) for source, target, window in spatial)
    rows, columns, depth = (
        result.dims[numbers.integer(9)],
        result.dims[numbers.integer(10)],
        right.dims[numbers.integer(3)],
    )
    return 2.0 * rows * columns * depth * covered

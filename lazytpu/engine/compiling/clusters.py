"""A step as a chain of programs: the clusters of `cluster-fusion`, of which identical ones are compiled once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from lazytpu.engine.compiling.estimate import work
from lazytpu.ir.constants import DenseConstantOp
from lazytpu.ir.types import array_dtype, dtype_of, numel, shape_of
from lazytpu.lowering.emit import emit
from lazytpu.passes.mark_donation import ALIAS
from lazytpu.passes.pipeline import count_ops, run_pipeline
from lazytpu.runtime.xla.chain import Call, Chain, Plan
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.program import Program
from lazytpu.runtime.xla.signature import Signature, signature

LEAST = 500
"""Number of ops from which on a step is split: XLA compiles smaller ones in a few seconds."""
SPARED = 2
"""Minimal ratio of a step's ops to the ops of its distinct clusters for it to be split."""
PASSES = "cluster-fusion,mark-donation"
DONE = "done"


@dataclass(frozen=True, slots=True)
class Clustered:
    """A step in parts that are not compiled yet: the StableHLO of each distinct part, the plan of calls, and the CPU
    seconds to compile all distinct parts, by `estimate`."""

    modules: tuple[ir.Module, ...]
    names: tuple[str, ...]
    plan: Plan
    work: float

    def chain(self, compile: Callable[[ir.Module, str], Program], name: str) -> Chain:
        """Return the chain of programs; `compile` compiles a module under a name."""
        programs = [
            compile(module, f"{name}.{part_name}") for module, part_name in zip(self.modules, self.names, strict=True)
        ]
        return Chain(programs, self.plan, name=name)


def clustered(module: ModuleOp, whole: ir.Module, *, verify: bool) -> Clustered | None:
    """Split a module that is ready to be emitted; `whole` is its StableHLO. Return None if it is small, or the parts
    save little.

    The module's last result is the step's status. When it is ready, every run of the chain must be done, so a last
    program computes it after all other parts.
    """
    before = count_ops(module)
    if before < LEAST:
        return None
    run_pipeline(module, passes=PASSES, verify=verify)
    main, *parts = (op for op in module.ops if isinstance(op, FuncOp))
    if not parts or sum(map(count_ops, parts)) * SPARED > before:
        return None
    done = _wait_for_all(main)
    if done is not None:
        parts.append(done)
    with whole.context:
        of_whole = signature(whole)
    names = [part.sym_name.data for part in parts]
    return Clustered(
        tuple(emit(module, name=name, entry=name) for name in names),
        tuple(names),
        plan_of(main, parts, of_whole),
        sum(work(part).full for part in parts),
    )


def _wait_for_all(main: FuncOp) -> FuncOp | None:
    """Pass the last result through a new function that depends on all parts, and return the function.

    It takes one result of each call whose results no other call uses. Return None, with nothing changed, if the only
    such call computes the last result itself.
    """
    returned = main.body.block.last_op
    assert isinstance(returned, ReturnOp) and main.parent is not None
    status = returned.operands[-1]
    calls = [op for op in main.body.block.ops if isinstance(op, CallOp)]
    ends = [call for call in calls if not any(isinstance(u.operation, CallOp) for r in call.results for u in r.uses)]
    awaited = [min(call.results, key=_size) for call in ends if call.results and status.owner is not call]
    if not awaited:
        return None
    operands = list(dict.fromkeys([status, *awaited]))
    block = Block(arg_types=[value.type for value in operands])
    block.add_op(ReturnOp(block.args[0]))
    done = FuncOp(DONE, ([value.type for value in operands], [status.type]), Region(block), "private")
    main.parent.add_op(done)
    call = CallOp(DONE, operands, [status.type])
    main.body.block.insert_op_before(call, returned)
    returned.operands = [*returned.operands[:-1], call.results[0]]
    return done


def _size(value: SSAValue) -> int:
    return numel(shape_of(value))


def plan_of(main: FuncOp, parts: list[FuncOp], whole: Signature) -> Plan:
    """Return the plan of a function that only calls `parts`; `whole` is its signature as one program."""
    number = {number_of_part.sym_name.data: i for i, number_of_part in enumerate(parts)}
    taken = [_taken(number_of_part) for number_of_part in parts]
    block = main.body.block
    constants = [op for op in block.ops if isinstance(op, DenseConstantOp)]
    initial = [*block.args, *(op.result for op in constants)]
    place: dict[SSAValue, int] = {value: i for i, value in enumerate(initial)}
    calls = [op for op in block.ops if isinstance(op, CallOp)]
    returned = block.last_op
    assert isinstance(returned, ReturnOp)
    last: dict[SSAValue, Operation] = {operand: call for call in calls for operand in call.operands}
    last.update((operand, returned) for operand in returned.operands)
    planned: list[Call] = []
    donated: set[int] = set()
    for call in calls:
        number_of_part = number[call.callee.string_value()]
        inputs = tuple(place[operand] for operand in call.operands)
        donated.update(inputs[i] for i in taken[number_of_part] if inputs[i] < len(block.args))
        dead = [v for v in dict.fromkeys(call.operands) if last[v] is call and not isinstance(v.owner, DenseConstantOp)]
        for result in call.results:
            place[result] = len(place)
        planned.append(Call(number_of_part, inputs, tuple(place[value] for value in dead)))
    results = tuple(place[operand] for operand in returned.operands)
    of_chain = Signature(whole.arguments, whole.results, tuple(sorted(donated)))
    return Plan(tuple(planned), results, of_chain, tuple(map(_table, constants)))


def _table(op: DenseConstantOp) -> np.ndarray[Any, Any]:
    """Return a constant array."""
    kind = op.result.type
    return np.frombuffer(bytes.fromhex(op.data.data), array_dtype(dtype_of(kind))).reshape(shape_of(kind))


def _taken(part: FuncOp) -> list[int]:
    """Return the arguments that a function donates."""
    return [i for i, attributes in enumerate(part.arg_attrs or ()) if ALIAS in attributes.data]

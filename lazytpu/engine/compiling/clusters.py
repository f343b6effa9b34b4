"""A step as a chain of programs: the clusters of `cluster-fusion`, each distinct one compiled once."""

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
"Ops of the smallest step that is worth taking apart: XLA compiles smaller ones in a few seconds."
SPARED = 2
"A step is taken apart when it has this many times the ops of its distinct clusters, or more."
PASSES = "cluster-fusion,mark-donation"
DONE = "done"


@dataclass(frozen=True, slots=True)
class Clustered:
    """A step in parts, before they are compiled: the StableHLO of each distinct part, how they are called, and the CPU
    seconds by `estimate` that compiling all distinct ones takes."""

    modules: tuple[ir.Module, ...]
    names: tuple[str, ...]
    plan: Plan
    work: float

    def chain(self, compile: Callable[[ir.Module, str], Program], name: str) -> Chain:
        """The chain; `compile` makes the program of a module, with the name that it is to have."""
        programs = [compile(module, f"{name}.{part}") for module, part in zip(self.modules, self.names, strict=True)]
        return Chain(programs, self.plan, name=name)


def clustered(module: ModuleOp, whole: ir.Module, *, verify: bool) -> Clustered | None:
    """Take apart a module that is ready to be emitted; `whole` is its StableHLO. None when it is small, or when
    compiling the parts would not save much.

    The module's last result is the step's status, and when it is there, every run of the chain must be done. So it
    passes through a last program, which waits for all parts that nothing else waits for.
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
    """Let the last result pass through a new function, which also takes a result of each call whose results no other
    call takes. None, with nothing changed, when there is only one such call, and it makes that result."""
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
    """The plan of a function that only calls `parts`; `whole` is its signature as one program."""
    number = {part.sym_name.data: i for i, part in enumerate(parts)}
    taken = [_taken(part) for part in parts]
    block = main.body.block
    constants = [op for op in block.ops if isinstance(op, DenseConstantOp)]
    known = [*block.args, *(op.result for op in constants)]
    place: dict[SSAValue, int] = {value: i for i, value in enumerate(known)}
    calls = [op for op in block.ops if isinstance(op, CallOp)]
    returned = block.last_op
    assert isinstance(returned, ReturnOp)
    last: dict[SSAValue, Operation] = {operand: call for call in calls for operand in call.operands}
    last.update((operand, returned) for operand in returned.operands)
    planned: list[Call] = []
    donated: set[int] = set()
    for call in calls:
        part = number[call.callee.string_value()]
        inputs = tuple(place[operand] for operand in call.operands)
        donated.update(inputs[i] for i in taken[part] if inputs[i] < len(block.args))
        dead = [v for v in dict.fromkeys(call.operands) if last[v] is call and not isinstance(v.owner, DenseConstantOp)]
        for result in call.results:
            place[result] = len(place)
        planned.append(Call(part, inputs, tuple(place[value] for value in dead)))
    results = tuple(place[operand] for operand in returned.operands)
    of_chain = Signature(whole.arguments, whole.results, tuple(sorted(donated)))
    return Plan(tuple(planned), results, of_chain, tuple(map(_table, constants)))


def _table(op: DenseConstantOp) -> np.ndarray[Any, Any]:
    kind = op.result.type
    return np.frombuffer(bytes.fromhex(op.data.data), array_dtype(dtype_of(kind))).reshape(shape_of(kind))


def _taken(part: FuncOp) -> list[int]:
    """The arguments whose memory a function takes."""
    return [i for i, attributes in enumerate(part.arg_attrs or ()) if ALIAS in attributes.data]

"""`cluster-fusion`: parts of `@main` become functions, and equal parts one function.

    func.func @main(%x, %v, %w) {                     func.func @main(%x, %v, %w) {
      %0 = lazytpu.dot_general %x, %v                   %0 = func.call @cluster_0(%x, %v)
      %1 = lazytpu.tanh %0                              %1 = func.call @cluster_0(%0, %w)
      %2 = lazytpu.dot_general %1, %w         ->        func.return %1
      %3 = lazytpu.tanh %2                            }
      func.return %3                                  func.func private @cluster_0(%x, %w) {
    }                                                   %0 = lazytpu.dot_general %x, %w
                                                        %1 = lazytpu.tanh %0
                                                        func.return %1
                                                      }

A model of 48 layers has as many functions as one of 4: those of a layer's forward ops, of its backward ops, of the
updates of its parameters, and of what comes before, between and after. So its step is compiled in the time of a few
layers when each function is a program (engine/launching/clusters.py). partition.py says how the parts are found,
outline.py what becomes of them.

Options: `min-ops`, the ops that a repetition must spare to be used, and at least in each of its parts; `max-ops`, the
most in a part that does not repeat.

Needs: a module of one function. `lazytpu.donate` or `lazytpu.alias` on arguments whose memory may be taken.
Guarantees: all that is left in `@main` are calls, in an order in which they can run, and constants that tell equal
clusters which run-time numbers they read; every cluster is convex, a
collective is one by itself, and no two functions compute the same. Results are the same as values; where XLA fuses
across the cut, rounding may differ once each part is compiled alone. A module whose parts would all be one function
called once is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from lazytpu.ir.constants import DenseConstantOp
from lazytpu.passes.clusters.outline import outline
from lazytpu.passes.clusters.partition import Partition, partition
from lazytpu.passes.graph import OpGraph, bits, cycle_of, members


@dataclass(frozen=True)
class ClusterFusionPass(ModulePass):
    """Convex clusters of ops to functions."""

    name = "cluster-fusion"
    min_ops: int = 16
    max_ops: int = 1000

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        functions = list(op.ops)
        if len(functions) != 1:
            return  # it has been clustered
        (main,) = functions
        if self.min_ops < 1 or self.max_ops < 2:
            raise ValueError(f"min-ops is {self.min_ops} and max-ops {self.max_ops}; expected at least 1 and 2")
        if not isinstance(main, FuncOp) or not isinstance(main.body.block.last_op, ReturnOp):
            raise ValueError(f"expected a module of one function; got {functions[0].name}")
        found = partition(main.body.block, self.min_ops, self.max_ops)
        if len(found.clusters) < 2:
            return
        check_partition(main.body.block, found)
        outline(main, found)
        check_calls(op)


def check_partition(block: Block, found: Partition) -> None:
    """Raises VerifyException unless every cluster is convex and their quotient graph has no cycle."""
    graph = OpGraph(block, found.free)
    parts = [bits(graph.index[op] for op in cluster if op not in found.free) for cluster in found.clusters]
    for number, part in enumerate(parts):
        for outside in members(graph.between(part)):
            op = graph.ops[outside].name
            raise VerifyException(f"cluster {number} is not convex: {op} is on a path out of it and back")
    cycle = cycle_of(graph.quotient(parts))
    if cycle:
        raise VerifyException(f"clusters {cycle} depend on one another")


def check_calls(module: ModuleOp) -> None:
    """Raises VerifyException unless `@main` only calls private functions of plain ops, each after what it takes.

    The verifier of func.call compares names and types."""
    functions = [op for op in module.ops if isinstance(op, FuncOp)]
    main = next((each for each in functions if each.sym_name.data == "main"), None)
    if main is None or len(functions) != len(list(module.ops)):
        raise VerifyException("a clustered module holds functions alone, one of them @main")
    for each in functions:
        made: set[Operation] = set()
        for op in each.body.block.ops:
            if each is main and not isinstance(op, CallOp | ReturnOp | DenseConstantOp):
                raise VerifyException(f"@main of a clustered module only calls; it has {op.name}")
            if each is not main and isinstance(op, CallOp):
                raise VerifyException(f"@{each.sym_name.data} calls {op.callee}; clusters call nothing")
            for operand in op.operands:
                if isinstance(operand.owner, Operation) and operand.owner not in made:
                    raise VerifyException(f"{op.name} in @{each.sym_name.data} uses a value that is made after it")
            made.add(op)
        if each is not main and (each.sym_visibility is None or each.sym_visibility.data != "private"):
            raise VerifyException(f"@{each.sym_name.data} is a cluster, and not private")

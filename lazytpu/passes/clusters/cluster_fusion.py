"""`cluster-fusion`: outline parts of `@main` as functions, equal parts as one function.

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

A model of 48 layers has as many functions as one of 4: the forward ops of a layer, its backward ops, the updates of its
parameters, and what comes before, between and after. When each function is a program (engine/compiling/clusters.py),
the step compiles in the time of a few layers. partition.py finds the parts; outline.py makes functions of them.

Options: `min-ops`, the number of ops that a repetition must save to be used, and that each of its parts must have at
least; `max-ops`, the most ops in a part that does not repeat.

Needs: a module of one function, with `lazytpu.donate` or `lazytpu.alias` on arguments whose buffers may be reused.
Guarantees: `@main` holds only calls, in an order in which they can run, and constants that tell equal clusters which
run-time numbers to read; every cluster is convex, a collective is a cluster by itself, and no two functions compute the
same. Results have the same values, except that rounding may differ where XLA would have fused across a cut. A module
that would become a single call is left unchanged.
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
    """Outlines convex clusters of ops as functions."""

    name = "cluster-fusion"
    min_ops: int = 16
    max_ops: int = 1000

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        functions = list(op.ops)
        if len(functions) != 1:
            return  # clustered already
        (main,) = functions
        if self.min_ops < 1 or self.max_ops < 2:
            raise ValueError(f"min-ops is {self.min_ops} and max-ops {self.max_ops}; expected at least 1 and 2")
        if not isinstance(main, FuncOp) or not isinstance(main.body.block.last_op, ReturnOp):
            raise ValueError(f"expected a module of one function; got {functions[0].name}")
        clustering = partition(main.body.block, self.min_ops, self.max_ops)
        if len(clustering.clusters) < 2:
            return
        check_partition(main.body.block, clustering)
        outline(main, clustering)
        check_calls(op)


def check_partition(block: Block, parts: Partition) -> None:
    """Raises VerifyException unless every cluster is convex and the quotient graph of the clusters has no cycle."""
    graph = OpGraph(block, parts.free)
    sets = [bits(graph.index[op] for op in cluster if op not in parts.free) for cluster in parts.clusters]
    for number, ops in enumerate(sets):
        for outside in members(graph.between(ops)):
            op = graph.ops[outside].name
            raise VerifyException(f"cluster {number} is not convex: {op} is on a path that leaves and re-enters it")
    cycle = cycle_of(graph.quotient(sets))
    if cycle:
        raise VerifyException(f"clusters {cycle} depend on one another")


def check_calls(module: ModuleOp) -> None:
    """Raises VerifyException unless `@main` only calls private functions of plain ops, and values are defined before
    they are used. Names and types are left to the verifier of func.call."""
    functions = [op for op in module.ops if isinstance(op, FuncOp)]
    main = next((function for function in functions if function.sym_name.data == "main"), None)
    if main is None or len(functions) != len(list(module.ops)):
        raise VerifyException("a clustered module must hold only functions, one of them @main")
    for function in functions:
        defined: set[Operation] = set()
        for op in function.body.block.ops:
            if function is main and not isinstance(op, CallOp | ReturnOp | DenseConstantOp):
                raise VerifyException(f"@main of a clustered module must hold only calls; it has {op.name}")
            if function is not main and isinstance(op, CallOp):
                raise VerifyException(f"@{function.sym_name.data} calls {op.callee}; clusters must not call functions")
            for operand in op.operands:
                if isinstance(operand.owner, Operation) and operand.owner not in defined:
                    raise VerifyException(f"{op.name} in @{function.sym_name.data} uses a value that is defined later")
            defined.add(op)
        if function is not main and (function.sym_visibility is None or function.sym_visibility.data != "private"):
            raise VerifyException(f"@{function.sym_name.data} is a cluster but is not private")

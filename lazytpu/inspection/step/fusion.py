"""Fusion in the model of a step: group its ops into kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import networkx as nx

from lazytpu.inspection.step.reading import StepOp, StepProgram
from lazytpu.inspection.step.work import COLLECTIVES, FREE

ALONE = COLLECTIVES | {
    *("sort", "gather", "scatter", "template", "random_bits", "reduce_window", "cumulative"),
    *("if", "while"),
}
"Ops that are never fused."

_DIMS = re.compile(r"<([0-9x]*)x?[a-z]")


@dataclass(slots=True)
class FusedKernel:
    """Ops that run as one kernel.

    - `root` computes the last result. `outputs` are all ops whose results other kernels read or the step returns.
    - `reads`: the bytes read of each value; `~i` is argument i. `needs`: the kernels whose results it reads.
    - `waited`: the part of `seconds` spent waiting for operands or, at the end, for results to be written.
    - `hbm_bytes`: the bytes read and written that go through HBM.
    - `start` and `end` are seconds, on the lane "core" or "links".
    """

    number: int
    root: StepOp
    ops: list[StepOp] = field(default_factory=list[StepOp])
    outputs: list[StepOp] = field(default_factory=list[StepOp])
    reads: dict[int, int] = field(default_factory=dict[int, int])
    needs: list[int] = field(default_factory=list[int])
    seconds: float = 0.0
    bound: str = "latency"
    waited: float = 0.0
    hbm_bytes: int = 0
    lane: str = "core"
    start: float = 0.0
    end: float = 0.0

    @property
    def main(self) -> StepOp:
        """Its most important op: its product, else its root."""
        return next((op for op in self.ops if op.passes), self.root)

    @property
    def name(self) -> str:
        """Its number and the kind of its main op."""
        return f"{self.main.kind}.{self.number}"

    @property
    def written(self) -> int:
        """Bytes of its results."""
        return sum(op.bytes for op in self.outputs)


PARTS = frozenset(("slice", "gather", "dynamic_slice"))
"Ops that read at most as many bytes of an operand as they produce."


def fuse(step: StepProgram) -> list[FusedKernel]:
    """Return the kernels in a valid order. An op that no kernel needs, or that each using kernel recomputes, such as a
    constant or broadcast, is in none."""
    groups = _merged(step, _joined(step))
    kernels = [
        FusedKernel(at, step.ops[max(group)], [step.ops[number] for number in group]) for at, group in enumerate(groups)
    ]
    home = {op.number: kernel.number for kernel in kernels for op in kernel.ops}
    for kernel in kernels:
        for op in kernel.ops:
            for operand in _sources(step, home, op, kernel.number):
                taken = step.ops[operand].bytes if operand >= 0 else step.arguments[~operand].bytes
                kernel.reads[operand] = min(taken, op.bytes) if op.kind in PARTS else taken
        kernel.needs = sorted({home[operand] for operand in kernel.reads if operand >= 0})
    read = {operand for kernel in kernels for operand in kernel.reads}
    for kernel in kernels:
        kernel.outputs = [
            op for op in kernel.ops if op.number in read or op.number in step.returned or op is kernel.root
        ]
    return kernels


def _sources(step: StepProgram, home: dict[int, int], op: StepOp, kernel: int) -> list[int]:
    """Return the values that an op reads from outside its `kernel`.

    An op without a `home` is recomputed by every kernel, and is replaced by its operands.
    """
    sources: list[int] = []
    for operand in op.operands:
        if operand < 0 or operand in home:
            sources += [] if home.get(operand) == kernel else [operand]
        else:
            sources += _sources(step, home, step.ops[operand], kernel)
    return sources


def _joined(step: StepProgram) -> list[list[int]]:
    """Group ops into kernels with one result each, in the order of their roots: an op joins the kernel of its users if
    they are all in one kernel."""
    roots: list[frozenset[int]] = [frozenset()] * len(step.ops)  # for each op, the roots of the kernels that it is in
    product: set[int] = set()  # roots of kernels with a product
    for op in reversed(step.ops):
        user_roots = frozenset[int]().union(*(roots[user] for user in op.users))
        returned = op.number in step.returned
        if op.kind in FREE and not returned:
            roots[op.number] = user_roots
        elif user_roots or returned:
            joins = not returned and len(user_roots) == 1 and _fits(op, step.ops[min(user_roots)], product)
            roots[op.number] = user_roots if joins else frozenset((op.number,))
            if op.passes:
                product |= roots[op.number]
    groups: dict[int, list[int]] = {}
    for op in step.ops:
        if len(roots[op.number]) == 1:
            groups.setdefault(min(roots[op.number]), []).append(op.number)
    return [groups[root] for root in sorted(groups)]


def _fits(op: StepOp, root: StepOp, product: set[int]) -> bool:
    """Return whether an op can join the kernel of its users."""
    if op.kind in ALONE or root.kind in ALONE or op.cluster != root.cluster:
        return False
    return not (op.passes and root.number in product)


def _merged(step: StepProgram, groups: list[list[int]]) -> list[list[int]]:
    """Merge kernels into one with several results, such as the update of a parameter with its product.

    Two kernels can merge if

    - their results have one shape,
    - one reads the other, or both read the same value of that shape,
    - together they have at most one product,
    - no other kernel lies on a path between them.
    """
    home = {number: at for at, group in enumerate(groups) for number in group}
    shapes = [_shape(step.ops[group[-1]]) for group in groups]
    unfusable = [
        any(step.ops[number].kind in ALONE for number in group) or not shape for group, shape in zip(groups, shapes)
    ]
    products = [sum(step.ops[number].passes > 0 for number in group) for group in groups]
    into = list(range(len(groups)))
    needs: list[set[int]] = [set() for _ in groups]
    before = [0] * len(groups)  # for each kernel, a bit set of the kernels that it depends on
    readers: dict[tuple[int, str], list[int]] = {}
    for at, group in enumerate(groups):
        taken = {value for number in group for value in _sources(step, home, step.ops[number], at)}
        needs[at] = {into[home[value]] for value in taken if value >= 0}
        for need in needs[at]:
            before[at] |= before[need] | 1 << need
        if unfusable[at]:
            continue
        key = shapes[at]
        same = [value for value in taken if value < 0 or _shape(step.ops[value]) == key]
        siblings = [into[candidate] for value in same for candidate in readers.get((value, key), ())]
        for candidate in sorted({*needs[at], *siblings}, reverse=True):
            fits = not unfusable[candidate] and shapes[candidate] == key and products[candidate] + products[at] <= 1
            same_cluster = step.ops[groups[candidate][-1]].cluster == step.ops[group[-1]].cluster
            between = any(need != candidate and before[need] >> candidate & 1 for need in needs[at])
            if fits and same_cluster and not between:
                _merge(at, candidate, into, needs, before)
                products[candidate] += products[at]
                break
        for value in same:
            readers.setdefault((value, key), []).append(at)
    return _ordered(groups, into, needs)


def _merge(at: int, other: int, into: list[int], needs: list[set[int]], before: list[int]) -> None:
    """Merge kernel `at`, the last one so far, into the earlier kernel `other`. Dependents of `other` then also depend
    on the kernels that `at` needs."""
    into[at] = other
    needs[other] |= needs[at] - {other}
    added = before[at] & ~(1 << other)
    before[other] |= added
    for index in range(other + 1, at + 1):
        if before[index] >> other & 1:
            before[index] |= added


def _ordered(groups: list[list[int]], into: list[int], needs: list[set[int]]) -> list[list[int]]:
    """Return the ops of the merged kernels, each kernel after all that it needs."""
    members: dict[int, list[int]] = {}
    for at, group in enumerate(groups):
        members.setdefault(into[at], []).extend(group)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(members)
    graph.add_edges_from((into[need], at) for at in members for need in needs[at] if into[need] != at)
    generations = nx.topological_generations(graph)
    return [sorted(members[at]) for ready in generations for at in sorted(ready, key=lambda at: max(members[at]))]


def _shape(op: StepOp) -> str:
    """Return the dimensions of a result, "8x128"; empty for a single number or several results."""
    match = _DIMS.search(op.type) if op.type.startswith("tensor<") and "," not in op.type else None
    return match[1] if match else ""

"""What runs as one: the kernels that a model of a step takes its ops together to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lazytpu.inspection.step.reading import Op, Step
from lazytpu.inspection.step.work import COLLECTIVES, FREE

ALONE = COLLECTIVES | {"sort", "gather", "scatter", "template", "random_bits", "reduce_window", "cumulative"}
"Ops that are kernels of their own."

_DIMS = re.compile(r"<([0-9x]*)x?[a-z]")


@dataclass(slots=True)
class Kernel:
    """Ops that run as one. `root` makes the last result, `outputs` are all that others read or the step returns;
    `start` and `end` are seconds, on the lane "core" or "links"."""

    number: int
    root: Op
    ops: list[Op] = field(default_factory=list[Op])
    outputs: list[Op] = field(default_factory=list[Op])
    reads: dict[int, int] = field(default_factory=dict[int, int])
    "Bytes of each value that it reads; `~i` is argument i."
    needs: list[int] = field(default_factory=list[int])
    "Kernels whose results it reads."
    seconds: float = 0.0
    bound: str = "latency"
    waited: float = 0.0
    "The part of `seconds` in which what it reads, or writes last, is under way."
    bytes: int = 0
    "Read and written."
    lane: str = "core"
    start: float = 0.0
    end: float = 0.0

    @property
    def main(self) -> Op:
        """The op that it is about: its product, else its root."""
        return next((op for op in self.ops if op.passes), self.root)

    @property
    def written(self) -> int:
        """Bytes of its results."""
        return sum(op.bytes for op in self.outputs)


PARTS = frozenset(("slice", "gather", "dynamic_slice"))
"Ops that read of an operand as much as they make."


def fuse(step: Step) -> tuple[list[Kernel], list[int]]:
    """The kernels in an order in which they can run, and the kernel of each op; -1 for what is made anew in each kernel
    that uses it, such as constants and broadcasts, and for what nothing needs."""
    groups = _merged(step, _joined(step))
    kernels = [Kernel(at, step.ops[max(group)], [step.ops[each] for each in group]) for at, group in enumerate(groups)]
    kernel_of = [-1] * len(step.ops)
    for kernel in kernels:
        for op in kernel.ops:
            kernel_of[op.number] = kernel.number
    for kernel in kernels:
        inside = {op.number for op in kernel.ops}
        for op in kernel.ops:
            for operand in _sources(step, kernel_of, op, inside):
                taken = step.ops[operand].bytes if operand >= 0 else step.arguments[~operand].bytes
                kernel.reads[operand] = min(taken, op.bytes) if op.kind in PARTS else taken
        kernel.needs = sorted({kernel_of[operand] for operand in kernel.reads if operand >= 0})
    read = {operand for kernel in kernels for operand in kernel.reads}
    for kernel in kernels:
        kernel.outputs = [
            op for op in kernel.ops if op.number in read or op.number in step.returned or op is kernel.root
        ]
    return kernels, kernel_of


def _sources(step: Step, kernel_of: list[int], op: Op, inside: set[int]) -> list[int]:
    """What an op reads from outside of its kernel; of what is made anew in each, its operands."""
    found: list[int] = []
    for operand in op.operands:
        if operand < 0 or kernel_of[operand] >= 0:
            found += [] if operand in inside else [operand]
        else:
            found += _sources(step, kernel_of, step.ops[operand], inside)
    return found


def _joined(step: Step) -> list[list[int]]:
    """The ops of kernels with one result each, in the order of their roots: an op joins the kernel of its users when
    these are all in one."""
    roots: list[frozenset[int]] = [frozenset()] * len(step.ops)  # of the kernels that an op is in
    product: set[int] = set()  # roots of kernels with a product
    for op in reversed(step.ops):
        found = frozenset[int]().union(*(roots[user] for user in op.users))
        returned = op.number in step.returned
        if op.kind in FREE and not returned:
            roots[op.number] = found
        elif found or returned:
            joins = not returned and len(found) == 1 and _fits(op, step.ops[min(found)], product)
            roots[op.number] = found if joins else frozenset((op.number,))
            if op.passes:
                product |= roots[op.number]
    made: dict[int, list[int]] = {}
    for op in step.ops:
        if len(roots[op.number]) == 1:
            made.setdefault(min(roots[op.number]), []).append(op.number)
    return [made[root] for root in sorted(made)]


def _fits(op: Op, root: Op, product: set[int]) -> bool:
    """Whether an op can be part of the kernel of its users."""
    if op.kind in ALONE or root.kind in ALONE or op.cluster != root.cluster:
        return False
    return not (op.passes and root.number in product)


def _merged(step: Step, groups: list[list[int]]) -> list[list[int]]:
    """Kernels whose results have one shape, and of which one reads the other or both read the same of that shape, as
    one with several results: the update of a parameter with its product. They have at most one product, and nothing
    that reads the one and is read by the other lies between."""
    home = {number: at for at, group in enumerate(groups) for number in group}
    shapes = [_shape(step.ops[group[-1]]) for group in groups]
    alone = [
        any(step.ops[number].kind in ALONE for number in group) or not shape for group, shape in zip(groups, shapes)
    ]
    products = [sum(step.ops[number].passes > 0 for number in group) for group in groups]
    into = list(range(len(groups)))
    needs: list[set[int]] = [set() for _ in groups]
    before = [0] * len(groups)  # the kernels that each waits for, as bits
    readers: dict[tuple[int, str], list[int]] = {}
    for at, group in enumerate(groups):
        inside, taken = set(group), set[int]()
        for number in group:
            taken.update(_read(step, home, number, inside))
        needs[at] = {into[home[each]] for each in taken if each >= 0 and home[each] != at}
        for each in needs[at]:
            before[at] |= before[each] | 1 << each
        if alone[at]:
            continue
        key = shapes[at]
        same = [each for each in taken if each < 0 or _shape(step.ops[each]) == key]
        siblings = [into[other] for each in same for other in readers.get((each, key), ())]
        for other in sorted({*needs[at], *siblings}, reverse=True):
            fits = not alone[other] and shapes[other] == key and products[other] + products[at] <= 1
            same_cluster = step.ops[groups[other][-1]].cluster == step.ops[group[-1]].cluster
            between = any(each != other and before[each] >> other & 1 for each in needs[at])
            later = before[other] >> at & 1
            if fits and same_cluster and not between and not later:
                _merge(at, other, into, needs, before)
                products[other] += products[at]
                break
        for each in same:
            readers.setdefault((each, key), []).append(at)
    return _ordered(groups, into, needs)


def _merge(at: int, other: int, into: list[int], needs: list[set[int]], before: list[int]) -> None:
    """Kernel `at`, the last so far, becomes part of an earlier one; so does what waits for that wait for what it
    needs."""
    into[at] = other
    needs[other] |= needs[at] - {other}
    added = before[at] & ~(1 << other)
    before[other] |= added
    for each in range(other + 1, at + 1):
        if before[each] >> other & 1:
            before[each] |= added


def _ordered(groups: list[list[int]], into: list[int], needs: list[set[int]]) -> list[list[int]]:
    members: dict[int, list[int]] = {}
    for at, group in enumerate(groups):
        members.setdefault(into[at], []).extend(group)
    waits = {at: {into[each] for each in needs[at]} - {at} for at in members}
    made: list[list[int]] = []
    done: set[int] = set()
    pending = sorted(members, key=lambda at: max(members[at]))
    while pending:
        ready = [at for at in pending if waits[at] <= done]
        if not ready:
            raise AssertionError("kernels that wait for each other")
        for at in ready:
            made.append(sorted(members[at]))
        done.update(ready)
        pending = [at for at in pending if at not in done]
    return made


def _read(step: Step, home: dict[int, int], number: int, inside: set[int]) -> list[int]:
    found: list[int] = []
    for operand in step.ops[number].operands:
        if operand < 0 or operand in home:
            found += [] if operand in inside else [operand]
        else:
            found += _read(step, home, operand, inside)
    return found


def _shape(op: Op) -> str:
    """The dimensions of a result, "8x128"; empty for a single number, and for several results."""
    found = _DIMS.search(op.type) if op.type.startswith("tensor<") and "," not in op.type else None
    return found[1] if found else ""

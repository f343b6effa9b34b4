"""A model of how a step runs on a chip, when no TPU compiler is at hand: what fuses, how long it takes, what is alive.

`lazytpu-show cost` asks the TPU's compiler and is to be believed where they differ. This one needs no libtpu and a
second for thousands of ops, and says which lines are dear and what waits for what.

Fusion: an op joins the kernel of its users when these are all in one, which has at most one product; ops that neither
fuse nor are fused (sort, gather, collectives) are kernels of their own. A kernel takes the longest of its products at
the matrix unit's peak, its other arithmetic at the vector unit's, and the bytes that it reads and writes at HBM's
bandwidth; at least `LEAST`, or `SCALAR` when it makes single numbers. One core runs kernels in order; collectives run
beside it and are waited for where they are used. Memory: arguments all the time, a kernel's result until its last use,
results to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lazytpu.inspect.step.reading import Op, Step
from lazytpu.inspect.step.work import COLLECTIVES, FREE
from lazytpu.inspect.tpu.collectives import seconds as collective_seconds
from lazytpu.passes.generations import Generation

LEAST = 600
"Cycles that a kernel takes at least: an assumption, as in the cost report."

SCALAR = 10
"Cycles of a kernel that makes single numbers only: they are computed beside the vector unit. An assumption, too."

VECTOR = 4
"Operations that each lane does in a cycle: four units (https://jax-ml.github.io/scaling-book/tpus)."

ALONE = COLLECTIVES | {"sort", "gather", "scatter", "template", "random_bits", "reduce_window", "cumulative"}
"Ops that are kernels of their own."

PARTS = frozenset(("slice", "gather", "dynamic_slice"))
"Ops that read of an operand as much as they make."


@dataclass(slots=True)
class Kernel:
    """Ops that run as one. `root` makes the result; `start` and `end` are seconds, on the lane "core" or "links"."""

    number: int
    root: Op
    ops: list[Op] = field(default_factory=list[Op])
    needs: list[int] = field(default_factory=list[int])
    "Kernels whose results it reads."
    seconds: float = 0.0
    bound: str = "latency"
    bytes: int = 0
    "Read and written."
    lane: str = "core"
    start: float = 0.0
    end: float = 0.0

    @property
    def main(self) -> Op:
        """The op that it is about: its product, else its root."""
        return next((op for op in self.ops if op.passes), self.root)


class Model:
    """A step on a generation of TPUs."""

    def __init__(self, step: Step, facts: Generation):
        self.step, self.facts = step, facts
        lanes = facts.tile[0] * facts.tile[1]
        self.vector_flops = lanes * VECTOR * facts.clock * facts.cores / facts.devices
        self.kernels, self.kernel_of = _fuse(step)
        for kernel in self.kernels:
            self._cost(kernel)
        self.seconds = self._schedule()

    def _cost(self, kernel: Kernel) -> None:
        step, facts, inside = self.step, self.facts, {op.number for op in kernel.ops}
        read: dict[int, int] = {}
        for op in kernel.ops:
            for operand in self._sources(op, inside):
                taken = step.ops[operand].bytes if operand >= 0 else step.arguments[~operand].bytes
                read[operand] = min(taken, op.bytes) if op.kind in PARTS else taken
        kernel.bytes = sum(read.values()) + kernel.root.bytes
        kernel.needs = sorted({self.kernel_of[operand] for operand in read if operand >= 0})
        products = sum(op.flops * op.passes for op in kernel.ops) / facts.device_flops
        others = sum(op.flops for op in kernel.ops if not op.passes) / self.vector_flops
        if kernel.root.members:
            payload = max(kernel.root.bytes, kernel.bytes - kernel.root.bytes)
            kind = kernel.root.kind.replace("_", "-")
            kernel.lane, what = "links", "links"
            moving = collective_seconds(kind, payload, kernel.root.members, facts)
        else:
            moving, what = kernel.bytes / facts.device_hbm_bandwidth, "HBM"
        scalar = all(op.bytes <= 16 for op in kernel.ops) and kernel.root.kind != "reduce"
        least = (SCALAR if scalar else LEAST) / facts.clock
        kernel.seconds, kernel.bound = max(
            (least, "latency"), (products, "matrix unit"), (others, "vector unit"), (moving, what)
        )

    def _sources(self, op: Op, inside: set[int]) -> list[int]:
        """What an op reads from outside of its kernel; of what is made anew in each, its operands."""
        found: list[int] = []
        for operand in op.operands:
            if operand < 0 or self.kernel_of[operand] >= 0:
                found += [] if operand in inside else [operand]
            else:
                found += self._sources(self.step.ops[operand], inside)
        return found

    def _schedule(self) -> float:
        free = {"core": 0.0, "links": 0.0}
        for kernel in self.kernels:
            there = max((self.kernels[each].end for each in kernel.needs), default=0.0)
            kernel.start = max(free[kernel.lane], there)
            kernel.end = free[kernel.lane] = kernel.start + kernel.seconds
        return max((kernel.end for kernel in self.kernels), default=0.0)

    @cached_property
    def op_seconds(self) -> list[float]:
        """Seconds of each op: its kernel's, shared by what each would take alone."""
        found = [0.0] * len(self.step.ops)
        peak = self.facts.device_flops
        for kernel in self.kernels:
            weights = [op.flops * op.passes / peak if op.passes else op.flops / self.vector_flops for op in kernel.ops]
            total = sum(weights)
            for op, weight in zip(kernel.ops, weights, strict=True):
                share = weight / total if total else float(op is kernel.root)
                found[op.number] = share * kernel.seconds
        return found

    @cached_property
    def critical_path(self) -> list[Kernel]:
        """The chain of kernels, each reading the one before, that takes longest: no schedule can be shorter."""
        longest = [0.0] * len(self.kernels)
        before: list[int | None] = [None] * len(self.kernels)
        for kernel in self.kernels:
            last = max(kernel.needs, key=longest.__getitem__, default=None)
            before[kernel.number] = last
            longest[kernel.number] = kernel.seconds + (longest[last] if last is not None else 0.0)
        at = max(range(len(longest)), key=longest.__getitem__, default=None)
        path: list[Kernel] = []
        while at is not None:
            path.append(self.kernels[at])
            at = before[at]
        return path[::-1]

    @cached_property
    def _ends(self) -> list[int]:
        """Of each kernel, the first that runs when its result is gone."""
        found = [kernel.number + 1 for kernel in self.kernels]
        for kernel in self.kernels:
            for need in kernel.needs:
                found[need] = max(found[need], kernel.number + 1)
            if kernel.root.number in self.step.returned:
                found[kernel.number] = len(self.kernels)
        return found

    def alive(self, at: int) -> list[int]:
        """The kernels whose results take memory of their own while kernel `at` runs."""
        made = range(at + 1)
        return [each for each in made if self._ends[each] > at and self.kernels[each].root.number not in self._reused]

    @cached_property
    def memory(self) -> list[int]:
        """Bytes alive while each kernel runs."""
        change = [0] * (len(self.kernels) + 1)
        for kernel in self.kernels:
            size = 0 if kernel.root.number in self._reused else kernel.root.bytes
            change[kernel.number] += size
            change[self._ends[kernel.number]] -= size
        alive, found = sum(argument.bytes for argument in self.step.arguments), list[int]()
        for each in change[:-1]:
            alive += each
            found.append(alive)
        return found

    @cached_property
    def _reused(self) -> set[int]:
        """Results that lie in the memory of an argument: as many of a type as there are such arguments."""
        free: dict[str, int] = {}
        for argument in self.step.arguments:
            free[argument.type] = free.get(argument.type, 0) + argument.aliased
        found: set[int] = set()
        for number in self.step.results:
            if number >= 0 and free.get(kind := self.step.ops[number].type, 0):
                free[kind] -= 1
                found.add(number)
        return found

    @property
    def exposed(self) -> float:
        """Seconds in which the core has nothing to do but wait for collectives."""
        busy = sum(kernel.seconds for kernel in self.kernels if kernel.lane == "core")
        return max(0.0, self.seconds - busy)


def _fuse(step: Step) -> tuple[list[Kernel], list[int]]:
    """The kernels in the order of their roots, and the kernel of each op; -1 for what is made anew in each kernel that
    uses it, such as constants and broadcasts, and for what nothing needs."""
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
    made: dict[int, Kernel] = {}
    for op in step.ops:
        if len(roots[op.number]) == 1:
            root = min(roots[op.number])
            made.setdefault(root, Kernel(0, step.ops[root])).ops.append(op)
    ordered = [made[number] for number in sorted(made)]
    kernel_of = [-1] * len(step.ops)
    for number, kernel in enumerate(ordered):
        kernel.number = number
        for op in kernel.ops:
            kernel_of[op.number] = number
    return ordered, kernel_of


def _fits(op: Op, root: Op, product: set[int]) -> bool:
    """Whether an op can be part of the kernel of its users."""
    if op.kind in ALONE or root.kind in ALONE or op.cluster != root.cluster:
        return False
    return not (op.passes and root.number in product)


def by_seconds(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The dearest first."""
    return sorted(kernels, key=lambda kernel: -kernel.seconds)

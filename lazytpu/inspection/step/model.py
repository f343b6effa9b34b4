"""A model of how a step runs on a chip, when no TPU compiler is at hand: what fuses, how long it takes, what is alive.

`lazytpu-show cost` asks the TPU's compiler and is to be believed where they differ. This one needs no libtpu and a
second for thousands of ops, and says which lines are dear and what waits for what.

`fusion` says which ops are one kernel. A kernel takes its products and then its other arithmetic at a part of the
units' peaks, or what streams through it at HBM's bandwidth, if that is longer; at least `LEAST`, or `SCALAR` when it
makes single numbers. Kernels of attention take what the cost report takes for them. Arrays that fit, several at a time,
stay in the vector memory between kernels; arguments are fetched ahead. One core runs kernels in order; collectives run
beside it and are waited for where they are used. Memory: arguments all the time, a kernel's result until its last use,
results to the end.

Constants of the chip, of collectives and of kernels are those of the cost report (`lazytpu.inspection.tpu`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property

from lazytpu.inspection.step.fusion import Kernel, fuse
from lazytpu.inspection.step.reading import Op, Step
from lazytpu.inspection.tpu.collectives import seconds as collective_seconds
from lazytpu.inspection.tpu.schedule import LEAST
from lazytpu.passes.generations import Generation

PRODUCTS, CONVOLUTIONS = 0.35, 0.2
"""Of the matrix unit's peak that products and convolutions reach by libtpu: 0.14 to 0.7, and 0.1 to 0.25 with 32
to 64 channels."""

SCALAR = 10
"Cycles of a kernel that makes single numbers only: they are computed beside the vector unit. An assumption, too."

VECTOR = 4
"Operations that each lane does in a cycle: four units (https://jax-ml.github.io/scaling-book/tpus)."


class Model:
    """A step on a generation of TPUs."""

    def __init__(self, step: Step, facts: Generation):
        self.step, self.facts = step, facts
        self.vector_flops = VECTOR * facts.lane_rate
        self.kept = facts.vmem_bytes // 4
        self.kernels, self.kernel_of = fuse(step)
        for kernel in self.kernels:
            self._cost(kernel)
        self.seconds = self._schedule()

    def _cost(self, kernel: Kernel) -> None:
        facts = self.facts
        kernel.bytes = sum(kernel.reads.values()) + kernel.written
        if kernel.root.members:
            payload = max(kernel.written, kernel.bytes - kernel.written)
            kind = kernel.root.kind.replace("_", "-")
            kernel.lane, kernel.bound = "links", "links"
            kernel.seconds = collective_seconds(kind, payload, kernel.root.members, facts)
            return
        streamed = sum(
            size for size in (*kernel.reads.values(), *(op.bytes for op in kernel.outputs)) if size > self.kept
        )
        scalar = all(op.bytes <= 16 for op in kernel.ops) and kernel.root.kind != "reduce"
        least = ((SCALAR if scalar else LEAST) / facts.clock, "latency")
        estimate = kernel.root.estimate
        if estimate is not None:
            kernel.seconds, kernel.bound = max(estimate.seconds(streamed, facts), least)
            return
        products = sum(op.flops * op.passes / _reached(op) for op in kernel.ops) / facts.device_flops
        others = sum(op.flops for op in kernel.ops if not op.passes) / self.vector_flops
        what = "matrix unit" if products >= others else "vector unit"
        moving = streamed / facts.device_hbm_bandwidth
        kernel.seconds, kernel.bound = max(least, (products + (0.0 if scalar else others), what), (moving, "HBM"))

    def _schedule(self) -> float:
        """Kernels in order. What they read of arguments comes from HBM meanwhile, as far ahead as there is room
        on the chip, and what the step returns goes there; who comes too early waits."""
        facts, free = self.facts, {"core": 0.0, "links": 0.0, "HBM": 0.0}
        fetched: set[int] = set()
        held: deque[tuple[float, int]] = deque()
        for kernel in self.kernels:
            fresh = [
                each for each in kernel.reads if each < 0 and each not in fetched and kernel.reads[each] <= self.kept
            ]
            size = sum(kernel.reads[each] for each in fresh)
            fetched.update(fresh)
            room = 0.0
            while held and sum(each for _, each in held) + size > self.facts.vmem_bytes // 2:
                room = held.popleft()[0]
            come = free["HBM"] = max(free["HBM"], room) + size / facts.device_hbm_bandwidth if size else 0.0
            there = max((self.kernels[each].end for each in kernel.needs), default=0.0)
            kernel.start = max(free[kernel.lane], there)
            if size and come > kernel.start + kernel.seconds:
                kernel.waited = come - kernel.start - kernel.seconds
                kernel.seconds, kernel.bound = come - kernel.start, "HBM"
            kernel.end = free[kernel.lane] = kernel.start + kernel.seconds
            held.append((kernel.end, size))
            back = sum(op.bytes for op in kernel.outputs if op.number in self.step.returned and op.bytes <= self.kept)
            if back:
                free["HBM"] = max(free["HBM"], kernel.end) + back / facts.device_hbm_bandwidth
        end = max((kernel.end for kernel in self.kernels), default=0.0)
        if free["HBM"] > end:  # the last to write is not done before it is written
            last = max(self.kernels, key=lambda kernel: kernel.end)
            last.waited += free["HBM"] - end
            last.seconds, last.end, last.bound = last.seconds + free["HBM"] - end, free["HBM"], "HBM"
        return max(free["HBM"], end)

    @cached_property
    def op_seconds(self) -> list[float]:
        """Seconds of each op: its kernel's, shared by what each would take alone."""
        found = [0.0] * len(self.step.ops)
        peak = self.facts.device_flops
        for kernel in self.kernels:
            weights = [
                op.flops * op.passes / (_reached(op) * peak) if op.passes else op.flops / self.vector_flops
                for op in kernel.ops
            ]
            total = sum(weights)
            for op, weight in zip(kernel.ops, weights, strict=True):
                share = weight / total if total else float(op is kernel.root)
                found[op.number] = share * kernel.seconds
        return found

    @cached_property
    def by_line(self) -> dict[str, float]:
        """Seconds of each line, the dearest first, as in the cost report: a kernel is of the line of its product, else
        of its root, and waiting for memory about none, which is ""."""
        found: dict[str, float] = {}
        for kernel in self.kernels:
            for place, seconds in ((kernel.main.place, kernel.seconds - kernel.waited), ("", kernel.waited)):
                if seconds:
                    found[place] = found.get(place, 0.0) + seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

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
    def _ends(self) -> dict[int, int]:
        """Of each result of a kernel, the first that runs when it is gone."""
        found = {op.number: kernel.number + 1 for kernel in self.kernels for op in kernel.outputs}
        for kernel in self.kernels:
            for each in kernel.reads:
                if each >= 0:
                    found[each] = max(found[each], kernel.number + 1)
        return found | {each: len(self.kernels) for each in self.step.returned if each in found}

    def alive(self, at: int) -> list[Op]:
        """The results that take memory of their own while kernel `at` runs."""
        made = [op for kernel in self.kernels[: at + 1] for op in kernel.outputs]
        return [op for op in made if self._ends[op.number] > at and op.number not in self._reused]

    @cached_property
    def memory(self) -> list[int]:
        """Bytes alive while each kernel runs."""
        change = [0] * (len(self.kernels) + 1)
        for kernel in self.kernels:
            for op in kernel.outputs:
                if op.number not in self._reused:
                    change[kernel.number] += op.bytes
                    change[self._ends[op.number]] -= op.bytes
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


def _reached(op: Op) -> float:
    return CONVOLUTIONS if op.kind == "convolution" else PRODUCTS


def by_seconds(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The dearest first."""
    return sorted(kernels, key=lambda kernel: -kernel.seconds)

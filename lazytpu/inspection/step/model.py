"""A cost model of a step on a chip, for machines without the TPU's compiler: fusion, times, and memory.

It takes a second for thousands of ops. `as_dict` gives its figures as a cost report does, so that every view shows
either these or libtpu's.

`fusion` groups ops into kernels. The time of a kernel is the maximum of

- its arithmetic: products and other ops, each at a fraction of their unit's peak rate,
- its bytes streamed at HBM's bandwidth,
- `LEAST`, or `SCALAR` if it computes single numbers.

Attention kernels take the time that the cost report estimates for them. Small arrays, of which several fit, stay in
vector memory between kernels; arguments are prefetched. One core runs kernels in order; collectives run in parallel,
and their consumers wait for them. Memory holds arguments throughout, a kernel's result until its last use, and the
step's results to the end.

Constants of the chip, collectives and kernels are the same as in the cost report (`lazytpu.inspection.tpu`). Its
schedule is different: there, a transfer ends before the op that reads it begins, because the compiler starts it early
enough. With kernels that wait like that, the steps of `make calibration` would wait 6.6, 5.1, 6.5, 26.6 and 0.4 us for
HBM, instead of 3.6, 2.6, 3.4, 13.6 and 0; libtpu reports 0.5, 1.7, 1.3, 16.3 and 0.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from typing import Any

from lazytpu.inspection.chains import longest_chain
from lazytpu.inspection.step.fusion import FusedKernel, fuse
from lazytpu.inspection.step.reading import StepOp, StepProgram
from lazytpu.inspection.tpu.collectives import seconds as collective_seconds
from lazytpu.inspection.tpu.schedule import LEAST
from lazytpu.passes.generations import Generation

PRODUCTS, CONVOLUTIONS = 0.35, 0.2
"""The fractions of the matrix unit's peak that products and convolutions reach. According to libtpu these are 0.14 to
0.7 and, with 32 to 64 channels, 0.1 to 0.25."""

SCALAR = 10
"Cycles of a kernel that only computes single numbers, which bypass the vector unit. An assumption, like `LEAST`."

VECTOR = 4
"Operations per lane and cycle, by four units (https://jax-ml.github.io/scaling-book/tpus)."


def computing(op: StepOp, facts: Generation) -> float:
    """Return the seconds of an op's arithmetic."""
    if not op.passes:
        return op.flops / (VECTOR * facts.lane_rate)
    return op.flops * op.passes / (CONVOLUTIONS if op.kind == "convolution" else PRODUCTS) / facts.device_flops


class Model:
    """The cost model of a step on a TPU generation. With `inside` it is a region: its small arguments and results stay
    in vector memory between iterations. Its own `inside` has the models of the regions of each branch and loop, by the
    number of the op."""

    def __init__(self, step: StepProgram, facts: Generation, *, inside: bool = False):
        self.step, self.facts, self.is_region = step, facts, inside
        self.vmem_limit = facts.vmem_bytes // 4
        self.kernels = fuse(step)
        self.inside: dict[int, list[Model]] = {}
        for kernel in self.kernels:
            self._cost(kernel)
        self.seconds = self._schedule()

    def _cost(self, kernel: FusedKernel) -> None:
        facts = self.facts
        if kernel.root.members:
            payload = max(kernel.written, sum(kernel.reads.values()))
            kind = kernel.root.kind.replace("_", "-")
            kernel.lane, kernel.bound = "links", "links"
            kernel.seconds = collective_seconds(kind, payload, kernel.root.members, facts)
            return
        if kernel.root.regions:
            self._cost_regions(kernel)
            return
        streamed = sum(
            size for size in (*kernel.reads.values(), *(op.bytes for op in kernel.outputs)) if size > self.vmem_limit
        )
        kernel.hbm_bytes = streamed
        scalar = all(op.bytes <= 16 for op in kernel.ops) and kernel.root.kind != "reduce"
        least = ((SCALAR if scalar else LEAST) / facts.clock, "latency")
        estimate = kernel.root.estimate
        if estimate is not None:
            kernel.seconds, kernel.bound = max(estimate.seconds(streamed, facts), least)
            return
        products = sum(computing(op, facts) for op in kernel.ops if op.passes)
        other_ops = sum(computing(op, facts) for op in kernel.ops if not op.passes)
        unit = "matrix unit" if products >= other_ops else "vector unit"
        moving = streamed / facts.device_hbm_bandwidth
        kernel.seconds, kernel.bound = max(least, (products + (0.0 if scalar else other_ops), unit), (moving, "HBM"))

    def _cost_regions(self, kernel: FusedKernel) -> None:
        """Set the time of a branch or loop.

        A branch takes as long as its longer side; a loop as long as its iterations, or one iteration if their number is
        unknown. Its bound is the bound of the longest kernel inside.
        """
        op = kernel.root
        models = [Model(region, self.facts, inside=True) for region in op.regions]
        if op.kind == "if":
            models = [max(models, key=lambda model: model.seconds)]
        self.inside[op.number] = models
        kernel.seconds = (op.trips or 1) * sum(model.seconds for model in models)
        longest = max((k for model in models for k in model.kernels), key=lambda k: k.seconds, default=None)
        kernel.bound = longest.bound if longest is not None else "latency"
        if op.kind == "while" and op.trips is None:
            kernel.bound += ", one iteration of an unknown number"

    def _schedule(self) -> float:
        """Run the kernels in order. Returns the seconds of the step.

        Meanwhile, arguments are prefetched from HBM as far ahead as vector memory allows, and results are written back.
        A kernel waits for arguments that are late.
        """
        facts, free = self.facts, {"core": 0.0, "links": 0.0, "HBM": 0.0}
        fetched: set[int] = set()
        in_flight: deque[tuple[float, int]] = deque()
        for kernel in self.kernels:
            fresh = [
                value
                for value in kernel.reads
                if value < 0 and value not in fetched and kernel.reads[value] <= self.vmem_limit and not self.is_region
            ]
            size = sum(kernel.reads[value] for value in fresh)
            fetched.update(fresh)
            room = 0.0
            while in_flight and sum(bytes_held for _, bytes_held in in_flight) + size > self.facts.vmem_bytes // 2:
                room = in_flight.popleft()[0]
            arrival = free["HBM"] = max(free["HBM"], room) + size / facts.device_hbm_bandwidth if size else 0.0
            inputs_ready = max((self.kernels[need].end for need in kernel.needs), default=0.0)
            kernel.start = max(free[kernel.lane], inputs_ready)
            if size and arrival > kernel.start + kernel.seconds:
                kernel.waited = arrival - kernel.start - kernel.seconds
                kernel.seconds, kernel.bound = arrival - kernel.start, "HBM"
            kernel.hbm_bytes += size
            kernel.end = free[kernel.lane] = kernel.start + kernel.seconds
            in_flight.append((kernel.end, size))
            writeback = sum(
                op.bytes for op in kernel.outputs if op.number in self.step.returned and op.bytes <= self.vmem_limit
            )
            if writeback and not self.is_region:
                kernel.hbm_bytes += writeback
                free["HBM"] = max(free["HBM"], kernel.end) + writeback / facts.device_hbm_bandwidth
        end = max((kernel.end for kernel in self.kernels), default=0.0)
        if free["HBM"] > end:  # the last kernel ends only when its result is written
            last = max(self.kernels, key=lambda kernel: kernel.end)
            last.waited += free["HBM"] - end
            last.seconds, last.end, last.bound = last.seconds + free["HBM"] - end, free["HBM"], "HBM"
        return max(free["HBM"], end)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as the JSON of a program in a cost report (docs/tpu-report.md), without the fields that
        only a compiler knows."""
        facts, arguments = self.facts, sum(argument.bytes for argument in self.step.arguments)
        ops = sorted(self._ops(), key=lambda op: -op["seconds"])
        flops, moved = sum(op["flops"] for op in ops), sum(op["bytes"] for op in ops)
        peak_rate, bandwidth, seconds = facts.device_flops, facts.device_hbm_bandwidth, max(self.seconds, 1e-12)
        # The results that have memory of their own while the kernel at the peak runs.
        peak = max(range(len(self.memory)), key=self.memory.__getitem__, default=-1)
        made = [op for kernel in self.kernels[: peak + 1] for op in kernel.outputs]
        alive = [op for op in made if self._ends[op.number] > peak and op.number not in self._reused]
        chain = longest_chain([kernel.seconds for kernel in self.kernels], [kernel.needs for kernel in self.kernels])
        return {
            "name": self.step.name,
            "topology": facts.name,
            "generation": facts.name,
            "compiler": None,
            "seconds": self.seconds,
            "complete": True,
            "exposed_seconds": self.exposed,
            "matrix_unit": {"flops": flops, "peak": peak_rate, "utilisation": flops / seconds / peak_rate},
            "traffic": {"bytes": moved, "bandwidth": bandwidth, "share": moved / seconds / bandwidth},
            "roofline": {"flops_seconds": flops / peak_rate, "bytes_seconds": moved / bandwidth},
            "ops": ops,
            "timeline": [
                {"lane": kernel.lane, "start": kernel.start, "end": kernel.end, "op": kernel.name}
                for kernel in self.kernels
            ],
            "path": [{"op": self.kernels[at].name, "seconds": self.kernels[at].seconds} for at in chain],
            "memory": {
                "peak": max(self.memory, default=arguments),
                "capacity": facts.device_hbm_bytes,
                "over_time": [
                    {"op": kernel.name, "bytes": used - arguments} for kernel, used in zip(self.kernels, self.memory)
                ],
                "largest": [
                    {"op": op.kind, "array": op.type, "bytes": op.bytes, "line": line_of(op)}
                    for op in sorted(alive, key=lambda op: -op.bytes)
                    if op.bytes
                ],
            },
            "advice": [],
        }

    def _ops(self, runs: int = 1) -> Iterator[dict[str, Any]]:
        """Yield the JSON of the kernels, and of the kernels inside branches and loops. As in the cost report, a kernel
        counts for the line of its product, else of its root, and waiting for memory for no line."""
        for kernel in self.kernels:
            inside = self.inside.get(kernel.root.number, ())
            for model in inside:
                yield from model._ops(runs * (kernel.root.trips or 1))
            fields = {"name": kernel.name, "kind": "compute" if kernel.lane == "core" else "collective", "runs": runs}
            fields |= {"opcode": kernel.main.kind, "result": kernel.main.type, "bound": kernel.bound}
            if kernel.waited:
                waiting = {"opcode": "transfer", "kind": "transfer", "line": None, "flops": 0.0, "bytes": 0}
                yield fields | waiting | {"seconds": runs * kernel.waited, "waited_seconds": runs * kernel.waited}
            if not inside:
                products = sum(op.flops for op in kernel.ops if op.passes)
                yield fields | {
                    "seconds": runs * (kernel.seconds - kernel.waited), "waited_seconds": 0.0, "flops": runs * products,
                    "bytes": runs * kernel.hbm_bytes, "line": line_of(kernel.main),
                }  # fmt: skip

    @cached_property
    def _ends(self) -> dict[int, int]:
        """For each result of a kernel, the number of the first kernel after its last use."""
        ends = {op.number: kernel.number + 1 for kernel in self.kernels for op in kernel.outputs}
        ends |= {value: kernel.number + 1 for kernel in self.kernels for value in kernel.reads if value >= 0}
        return ends | {value: len(self.kernels) for value in self.step.returned if value in ends}

    @cached_property
    def memory(self) -> list[int]:
        """Bytes alive while each kernel runs."""
        change = [sum(argument.bytes for argument in self.step.arguments), *[0] * len(self.kernels)]
        for kernel in self.kernels:
            for op in kernel.outputs:
                if op.number not in self._reused:
                    change[kernel.number] += op.bytes
                    change[self._ends[op.number]] -= op.bytes
        within = (
            max((model.temporary for model in self.inside.get(kernel.root.number, ())), default=0)
            for kernel in self.kernels
        )
        return [alive + inside for alive, inside in zip(accumulate(change[:-1]), within, strict=True)]

    @property
    def temporary(self) -> int:
        """The maximum number of bytes alive at a time besides the arguments and results."""
        arguments = sum(argument.bytes for argument in self.step.arguments)
        results = sum(self.step.ops[number].bytes for number in self.step.returned)
        return max(0, max(self.memory, default=0) - arguments - results)

    @cached_property
    def _reused(self) -> set[int]:
        """Results that reuse the memory of an argument: for each type, as many as it has aliased arguments."""
        free = Counter(argument.type for argument in self.step.arguments if argument.update is not None)
        reused: set[int] = set()
        for number in self.step.results:
            if number >= 0 and free[kind := self.step.ops[number].type]:
                free[kind] -= 1
                reused.add(number)
        return reused

    @property
    def exposed(self) -> float:
        """Seconds in which the core only waits for collectives."""
        busy = sum(kernel.seconds for kernel in self.kernels if kernel.lane == "core")
        return max(0.0, self.seconds - busy)


def line_of(op: StepOp) -> dict[str, Any] | None:
    """Return the JSON of an op's line, or None."""
    file, _, line = op.line.rpartition(":")
    return {"file": file, "line": int(line), "backward": op.backward, "module": op.module} if line.isdigit() else None

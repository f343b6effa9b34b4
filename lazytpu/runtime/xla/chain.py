"""Chains: programs that run in sequence, each on results of earlier ones, such as the clusters of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lazytpu.runtime.errors import RunError, run_error
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.analysis import Memory
from lazytpu.runtime.xla.client import Array
from lazytpu.runtime.xla.program import Program
from lazytpu.runtime.xla.signature import Signature, TensorSpec


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a program in a chain. Values are numbered: the chain's arguments first, then its constants, then all
    results in the order of the calls. No later call needs the values `dead`."""

    program: int
    inputs: tuple[int, ...]
    dead: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The calls of a chain in order, and the numbers of the values that are its results. `signature` is the signature
    of the whole chain, whose `donated` arguments a call overwrites. `constants` are small arrays by which calls of one
    program differ."""

    calls: tuple[Call, ...]
    results: tuple[int, ...]
    signature: Signature
    constants: tuple[np.ndarray[Any, Any], ...] = ()


class Chain:
    """Programs that run in sequence and pass values on, with the interface of one `Program`.

    All calls are enqueued at once, and the host waits for none: a call costs it about 10 us, and 1 us a result. A value
    that no later call needs is freed, or overwritten by the program that reads it last. Attributes are as in Program.
    `programs` lists each program once, however many calls it has. `key` is None: the programs are in the cache, not the
    chain.
    """

    __slots__ = ("__weakref__", "_constants", "memory", "name", "plan", "programs", "signature")

    key = None
    layouts = None  # arguments and results of a chain have the default layout

    def __init__(self, programs: Sequence[Program], plan: Plan, *, name: str = "program") -> None:
        self.programs = tuple(programs)
        self.plan = plan
        self.name = name
        self.signature = plan.signature
        self.memory = memory_of(self.programs, plan)
        self._constants = [client.to_device(constant) for constant in plan.constants]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the programs. The arrays at `signature.donated` are consumed.

        Raises:
            RunError: a program failed to start. The message names its call. `lost` lists the donated arguments that
                earlier calls consumed; the others are unchanged.
        """
        values: list[Any] = [*arrays, *self._constants]
        programs = self.programs
        for number, call in enumerate(self.plan.calls):
            try:
                results = programs[call.program].run([values[i] for i in call.inputs])
            except RunError as error:
                raise self._failure(arrays, number, error) from error
            for i in call.dead:
                values[i] = None
            values.extend(results)
        return [values[i] for i in self.plan.results]

    def _failure(self, arrays: Sequence[Array], number: int, error: RunError) -> RunError:
        lost = [i for i in self.signature.donated if client.is_deleted(arrays[i])]
        location = f"part {number + 1} of {len(self.plan.calls)} ({error.program}): {error.reason}"
        return run_error(self.name, location, lost)

    def __repr__(self) -> str:
        signature = self.signature
        return (
            f"<Chain {self.name}: {len(self.plan.calls)} calls of {len(self.programs)} programs, "
            f"{len(signature.arguments)} arguments, {len(signature.donated)} donated, {len(signature.results)} results>"
        )


def nbytes(spec: TensorSpec) -> int:
    """Return the bytes of an argument or result."""
    dtype, shape = spec
    return dtype.itemsize * prod(shape)


def memory_of(programs: Sequence[Program], plan: Plan) -> Memory:
    """Return the memory of a chain. `temporaries` is the peak of its programs' temporaries and the intermediate values,
    without the chain's results."""
    arguments = [nbytes(spec) for spec in plan.signature.arguments]
    outputs = sum(nbytes(spec) for spec in plan.signature.results)
    aliased = sum(arguments[i] for i in plan.signature.donated)
    peak = max((during for _, during in _levels(programs, plan, arguments)), default=0)
    return Memory(
        arguments=sum(arguments),
        outputs=outputs,
        aliased=aliased,
        temporaries=max(0, peak - (outputs - aliased)),
        code=sum(program.memory.code for program in programs),
    )


def _levels(programs: Sequence[Program], plan: Plan, arguments: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield for each call the bytes besides the chain's arguments before it, and the peak while it runs."""
    sizes = [*arguments, *(constant.nbytes for constant in plan.constants)]
    live = 0
    for call in plan.calls:
        program = programs[call.program]
        memory = program.memory
        results = [nbytes(spec) for spec in program.signature.results]
        yield live, live + memory.temporaries + memory.outputs - memory.aliased
        taken = {call.inputs[i] for i in program.signature.donated}
        freed = sum(sizes[i] for i in call.dead if i >= len(arguments) or i in taken)
        live += sum(results) - freed
        sizes.extend(results)

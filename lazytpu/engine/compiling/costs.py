"""Estimates in seconds of this machine now: the work of a module, times how fast XLA was here, and how busy it is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

import torch

from lazytpu.engine.compiling.choice import Costs
from lazytpu.runtime.cache.programs import KIND, program_key
from lazytpu.runtime.cache.speeds import Speed
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.jax_private import WITHOUT_FUSION_EMITTERS
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.module_options import Option, add_options

if TYPE_CHECKING:
    from lazytpu.engine.compiling.estimate import Work
    from lazytpu.engine.compiling.translate import Translated

QUICK: dict[str, Option] = {"xla_backend_optimization_level": 0, **WITHOUT_FUSION_EMITTERS}
"""The options with which XLA:CPU compiles a program in a seventh to a half of the time. The compilers of other
platforms have none that save as much (docs/background-compilation.md)."""

SECONDS = {"cpu": 0.6 if (os.cpu_count() or 1) > 1 else 1.0, "gpu": 2.0, "tpu": 4.0}
"By platform, seconds for a CPU second of XLA:CPU. It works on several cores, and other compilers have more to do."
LEAST = 0.1
"CPU seconds of an estimate from which on a measurement says something."
LOADED = 0.05
"Seconds to load a program from disk."
WORTH_A_LOOK = 0.1
"Seconds of the whole program from which on it is looked for, and the quick one, which takes some 10 us an op."
LONG = 4.0
"Seconds of the shortest other way from which on a step is taken apart to see whether its parts are shorter."


class Busy:
    """How busy the machine is, by what this thread has done since this was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    @property
    def load(self) -> float:
        """How many seconds this thread needed for a second of its CPU time: 1 on a quiet machine, 2 when another
        process wants the core as well."""
        wall, cpu = time.perf_counter() - self._wall, time.thread_time() - self._cpu
        return max(1.0, wall / cpu) if cpu > 0.05 else 1.0


class Estimator:
    """Estimates how long compilations take, and learns from those that are done."""

    def __init__(self) -> None:
        self.speed = Speed()
        self._at_work = 0
        self._begun = 0
        self._lock = threading.Lock()

    @contextmanager
    def alone(self) -> Iterator[Callable[[], bool]]:
        """Around a compilation: gives what says afterwards whether there was no other at the same time. Two share XLA's
        threads, so what they take is no measure of the machine."""
        with self._lock:
            others, self._at_work = self._at_work, self._at_work + 1
            self._begun += 1
            begun = self._begun
        try:
            yield lambda: not others and self._begun == begun
        finally:
            with self._lock:
                self._at_work -= 1

    def seconds(self, work: float, load: float) -> float:
        """What the compiler takes for `work` CPU seconds of the estimate, on a machine as busy as that."""
        return work * load * self.speed.ratio() * SECONDS[client.platform()]

    def measured(self, work: float, cpu: float) -> None:
        """A compilation of that took so many CPU seconds, `alone`. They say more than the wall time of a machine that
        does something else as well."""
        if work >= LEAST:
            self.speed.measured(cpu / work)

    def quick(self, work: Work, load: float) -> float:
        """Seconds until a program has run once that was compiled with less optimisation. Infinite where there is none:
        on platforms without such options, and while the user wants the same bits in each run
        (`torch.use_deterministic_algorithms`), since the two programs may round differently."""
        if client.platform() != "cpu" or torch.are_deterministic_algorithms_enabled():
            return inf
        return self.seconds(work.quick, load) + work.slower * load

    def takes_apart(self, work: Work, load: float) -> bool:
        """Whether it is worth finding the parts of a step whose module costs that, 0.13 ms an op."""
        return min(self.seconds(work.full, load), self.quick(work, load)) > LONG

    def costs(self, translated: Translated, load: float, known: Callable[[str], bool]) -> Costs:
        """Of each way to the program of a translated trace. A long one may be on disk, or `known` by its key."""
        work, parts = translated.work, translated.parts
        whole, quick = self.seconds(work.full, load), self.quick(work, load)
        if whole > WORTH_A_LOOK:
            if _there(translated.module, known):
                return Costs(LOADED)
            if quick < inf and _there(quick_module(translated.module), known):
                return Costs(whole, LOADED + work.slower * load, slower=work.slower * load, made=True)
        in_parts = inf if parts is None else self.seconds(parts.work, load)
        return Costs(whole, quick, in_parts, work.slower * load)


def quick_module(module: ir.Module) -> ir.Module:
    """The same module, to be compiled with less optimisation."""
    with module.context:
        copy = ir.Module.parse(client.module_bytecode(module))
        add_options(copy, QUICK)
    return copy


def _there(module: ir.Module, known: Callable[[str], bool]) -> bool:
    key = program_key(module)
    return known(key) or store().has(KIND, key)

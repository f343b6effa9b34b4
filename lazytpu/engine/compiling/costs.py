"""Compile time estimates in seconds: the work of a module, times XLA's measured speed on this machine and its load."""

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
"""Options with which XLA:CPU compiles a program in a seventh to a half of the time. Compilers of other platforms have
none that save as much (docs/background-compilation.md)."""

SECONDS = {"cpu": 0.6 if (os.cpu_count() or 1) > 1 else 1.0, "gpu": 2.0, "tpu": 4.0}
"""Seconds per CPU second of XLA:CPU, by platform. XLA:CPU uses several cores, and other compilers do more work."""
LEAST = 0.1
"""Estimate in CPU seconds from which on a measurement is meaningful."""
LOADED = 0.05
"Seconds to load a program from disk."
WORTH_A_LOOK = 0.1
"""Estimate in seconds from which on programs are looked up on disk; the lookup of the quick one takes some 10 us per
op."""
LONG = 4.0
"""Estimate in seconds of the fastest other strategy from which on a step is split to estimate its parts."""


class Busy:
    """Measures how busy the machine is, from the progress of this thread since construction."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    @property
    def load(self) -> float:
        """The wall seconds per CPU second of this thread: 1 on a quiet machine, 2 if another process needs the core
        too."""
        wall, cpu = time.perf_counter() - self._wall, time.thread_time() - self._cpu
        return max(1.0, wall / cpu) if cpu > 0.05 else 1.0


class Estimator:
    """Estimates compile times, and learns from finished compilations."""

    def __init__(self) -> None:
        self.speed = Speed()
        self._at_work = 0
        self._begun = 0
        self._lock = threading.Lock()

    @contextmanager
    def alone(self) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns whether no other compilation ran during this context.

        Concurrent compilations share XLA's threads, so their times do not measure the machine.
        """
        with self._lock:
            running, self._at_work = self._at_work, self._at_work + 1
            self._begun += 1
            begun = self._begun
        try:
            yield lambda: not running and self._begun == begun
        finally:
            with self._lock:
                self._at_work -= 1

    def seconds(self, work: float, load: float) -> float:
        """Return the compile time for `work` estimated CPU seconds at this load."""
        return work * load * self.speed.ratio() * SECONDS[client.platform()]

    def measured(self, work: float, cpu: float) -> None:
        """Learn from a compilation of `work` that ran `alone` for `cpu` seconds. CPU time is less affected by other
        processes than wall time."""
        if work >= LEAST:
            self.speed.measured(cpu / work)

    def quick(self, work: Work, load: float) -> float:
        """Return the seconds until a program with less optimisation was compiled and has run once.

        This is infinite on platforms without such options. It is also infinite under
        `torch.use_deterministic_algorithms`, since the two programs may round differently.
        """
        if client.platform() != "cpu" or torch.are_deterministic_algorithms_enabled():
            return inf
        return self.seconds(work.quick, load) + work.slower * load

    def takes_apart(self, work: Work, load: float) -> bool:
        """Return whether to look for the parts of a step with a module of this cost, which takes 0.13 ms per op."""
        return min(self.seconds(work.full, load), self.quick(work, load)) > LONG

    def costs(self, translated: Translated, load: float, known: Callable[[str], bool]) -> Costs:
        """Return the costs of all strategies for a translated trace. Long compilations are looked up on disk, or
        `known` by their key."""
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
    """Return the module with options for less optimisation."""
    with module.context:
        copy = ir.Module.parse(client.module_bytecode(module))
        add_options(copy, QUICK)
    return copy


def _there(module: ir.Module, known: Callable[[str], bool]) -> bool:
    """Return whether a module's program is in memory or on disk."""
    key = program_key(module)
    return known(key) or store().has(KIND, key)

"""Where the host's time of a step goes: the script, torch's dispatcher, and the parts of lazytpu's kernels.

`split(step)` measures a step that runs the same records each time. The kernels that it has generated get clocks between
their sections for that time, so the sections are measured, in the real step with its cold caches. Two rows follow from
others: `dispatcher` is the number of calls of kernels, each at the cost of a kernel that does nothing, and `script` is
the rest: the Python of the script and of torch, autograd's nodes and torch's composite functions.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from common import smallest

import lazytpu
from lazytpu.engine.cutting.cutter import Cutter
from lazytpu.frontend.library import replace_kernel
from lazytpu.frontend.ops import metadata, views
from lazytpu.frontend.recording import codegen, kernels
from lazytpu.runtime.xla.program import Program

SECTIONS = ("key", "trie", "results")
PARTS = ("script", "dispatcher", *SECTIONS, "views", "launch")
_clock = time.perf_counter_ns


def python_threads() -> list[int]:
    """The clocks of the main thread, of autograd, and of the one that launches cuts: for each, what
    CLOCK_THREAD_CPUTIME_ID is to it, as Linux numbers that."""
    launching = {each.native_id for each in threading.enumerate() if each.name == "lazytpu launcher"}
    threads = [
        int(each.name)
        for each in Path("/proc/self/task").iterdir()
        if int(each.name) in {os.getpid(), *launching} or (each / "comm").read_text().startswith("pt_autograd")
    ]
    return [(~thread << 3) | 6 for thread in threads]


@contextmanager
def without_device(spent: Counter[str]) -> Iterator[None]:
    """Count the nanoseconds that XLA takes on Python's threads as `device`."""
    run = Program.run

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time_ns()
        try:
            return run(*args, **kwargs)
        finally:
            spent["device"] += time.thread_time_ns() - start

    Program.run = timed
    try:
        yield
    finally:
        Program.run = run


def host(step: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds of CPU that each step takes on the threads that run Python, without XLA, sorted."""
    spent: Counter[str] = Counter()
    clocks = python_threads()
    times: list[float] = []
    with without_device(spent):
        for _ in range(repeats):
            spent.clear()
            start = sum(map(time.clock_gettime_ns, clocks))
            step()
            times.append((sum(map(time.clock_gettime_ns, clocks)) - start - spent["device"]) / 1e6)
            lazytpu.sync()
    return sorted(times)


def dispatch_floor(ops: int, repeats: int) -> float:
    """Microseconds of a Python kernel on "tpu" that returns a tensor it holds."""
    library = torch.library.Library("lazytpu_benchmark", "FRAGMENT")
    library.define("nothing(Tensor x, Tensor y) -> Tensor")
    x, y, result = (torch.randn(4, 4).to("tpu") for _ in range(3))
    library.impl("nothing", lambda x, y: result, "PrivateUse1")
    nothing = torch.ops.lazytpu_benchmark.nothing.default

    def run() -> float:
        start = time.thread_time()
        for _ in range(ops):
            nothing(x, y)
        return time.thread_time() - start

    try:
        return 1e6 * smallest(run, repeats) / ops
    finally:
        library._destroy()


def with_clocks(source: str) -> str:
    """The source of a kernel, with clocks after its key, after its step in the trie, and at its end."""
    lines = source.splitlines()
    result = lines.pop().removeprefix("    return ")
    key = next(i for i, line in enumerate(lines) if line.lstrip().startswith("_p = _r.state"))
    trie = next(i for i, line in enumerate(lines) if line.strip() == "_r.state = _s")
    clock = "            _c{} = CLOCK()"
    lines[1:1] = ["    _c0 = CLOCK()"]
    lines[key + 1 : key + 1] = [clock.format(1)]
    lines[trie + 3 : trie + 3] = [clock.format(2)]
    lines += [f"    _result = {result}", "    SPENT(_c0, _c1, _c2, CLOCK())", "    return _result"]
    return "\n".join(lines) + "\n"


@contextmanager
def sections(spent: Counter[str]) -> Iterator[None]:
    """Count the nanoseconds of each section of the kernels, of views and of cuts, and the calls of kernels."""

    def add(start: int, key: int, trie: int, end: int) -> None:
        for name, time_ in zip(SECTIONS, (key - start, trie - key, end - trie), strict=True):
            spent[name] += time_
        spent["calls"] += 1

    before: list[tuple[FunctionType, Any]] = []
    for op, generated in list(kernels._kernels.items()):
        call: Any = generated.call
        space = dict(call.__globals__)
        exec(compile(with_clocks(generated.source), f"<timed kernel of {op}>", "exec"), space)
        before.append((call, call.__code__))
        call.__globals__.update(CLOCK=_clock, SPENT=add)
        call.__code__ = space[codegen.function_name(op)].__code__
    library = torch.library.Library("aten", "IMPL")
    viewing = {**views.KERNELS, "as_strided": metadata.as_strided}
    cut = Cutter.cut_trace

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = _clock()
            try:
                return function(*args, **kwargs)
            finally:
                spent["views"] += _clock() - start
                spent["calls"] += 1

        return call

    def launch(*args: Any, **kwargs: Any) -> Any:
        start, inside = time.thread_time_ns(), spent["device"]
        try:
            return cut(*args, **kwargs)
        finally:
            spent["launch"] += time.thread_time_ns() - start - (spent["device"] - inside)

    for name, function in viewing.items():
        replace_kernel(library, name, timed(function))
    Cutter.cut_trace = launch
    try:
        with without_device(spent):
            yield
    finally:
        Cutter.cut_trace = cut
        for name, function in viewing.items():
            replace_kernel(library, name, function)
        _libraries.append(library)
        for call, code in before:
            call.__code__ = code


_libraries: list[torch.library.Library] = []  # kept alive: the registrations of a torch library end with it


def split(step: Callable[[], object], repeats: int = 30, warmup: int = 5) -> dict[str, float]:
    """Milliseconds of the host for one step, the least and the median of all, and each of PARTS. The step must cut."""
    for _ in range(warmup):
        step()
    lazytpu.sync()
    times = host(step, repeats)
    runs: list[Counter[str]] = []
    spent: Counter[str] = Counter()
    with sections(spent):
        for _ in range(repeats):
            spent.clear()
            step()
            lazytpu.sync()
            runs.append(Counter(spent))
    fastest = min(runs, key=lambda run: sum(run[name] for name in (*SECTIONS, "views")))
    reading = smallest(lambda: float(-(_clock() - _clock())), 100)  # between two clocks that follow each other
    parts = {name: (fastest[name] - reading * fastest["calls"]) / 1e6 for name in (*SECTIONS, "views")}
    parts["launch"] = fastest["launch"] / 1e6
    parts["dispatcher"] = fastest["calls"] * dispatch_floor(200, repeats) / 1e3
    parts["script"] = max(0.0, times[0] - sum(parts.values()))
    return {"least": times[0], "median": times[len(times) // 2], **{name: parts[name] for name in PARTS}}

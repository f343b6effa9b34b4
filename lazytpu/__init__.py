"""lazytpu: PyTorch, natively on TPU, in pure Python.

`import torch` alone makes "tpu" a device. This module has the other public functions: cuts, metrics, settings, graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import torch

from lazytpu import wiring
from lazytpu.frontend.activation import activate
from lazytpu.options import options
from lazytpu.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lazytpu import interop, pallas
    from lazytpu.engine.memory.alive import MemoryReport
    from lazytpu.engine.recompiles.explanation import Explanation
    from lazytpu.engine.warmup import Warmed
    from lazytpu.exporting.api import export
    from lazytpu.frontend.recording.modes import Mode
    from lazytpu.frontend.waits import Waits
    from lazytpu.inspection.graphs import ProgramGraph
    from lazytpu.inspection.tpu.report import TpuReport
    from lazytpu.rehearsal.job import ImaginedJob
    from lazytpu.runtime.cache.api import cache
    from lazytpu.runtime.cache.library import Unpacked
    from lazytpu.trace.cuts import Cuts

__all__ = [
    "cache",
    "explain",
    "explain_cut",
    "export",
    "graphs",
    "imagined_job",
    "interop",
    "mark_dynamic",
    "mark_step",
    "memory",
    "metrics",
    "mode",
    "options",
    "pallas",
    "reset_metrics",
    "set_mode",
    "sync",
    "tpu_report",
    "waits",
    "warmup",
]
__version__ = VERSION

wiring.register()


def __getattr__(name: str) -> Any:
    """Import modules at their first access: the cache of programs on disk, export, custom kernels, and interop with
    JAX."""
    if name == "export":
        from lazytpu.exporting.api import export

        return export
    if name == "cache":
        from lazytpu.runtime.cache.api import cache

        return cache
    if name == "pallas":
        import lazytpu.pallas as pallas

        return pallas
    if name == "interop":
        import lazytpu.interop as interop

        return interop
    raise AttributeError(f"module 'lazytpu' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted([*__all__, "__version__"])


def mark_step() -> None:
    """End the step: run the ops that this thread recorded, asynchronously, as one program.

    All live tensors get their values; the memory of overwritten ones is reused for the results. A step of the same ops
    on the same shapes reuses its program; a new step is compiled.
    """
    activate()
    from lazytpu.frontend.lines import call_site
    from lazytpu.frontend.tensors import recorder
    from lazytpu.trace.cuts import MARK

    recorder().cut(MARK, call_site())


def mark_dynamic(tensor: torch.Tensor, dim: int, *, min: int | None = None, max: int | None = None) -> None:
    """Declare that a dim of `tensor` will have other sizes, from `min` to `max`.

    If `options.buckets` is on, the tensor's data is padded to a bound within these when it is uploaded. Data already on
    the device is padded now, except under views.

    This is torch's `torch._dynamo.mark_dynamic` as well, which has the same effect. Raises IndexError for a dim that
    the tensor lacks, and ValueError for a range without its size.
    """
    activate()
    from lazytpu.frontend.ops.marking import mark

    mark(tensor, dim, min, max)


def sync() -> None:
    """Run the ops that all threads recorded, and wait until the device is done.

    Raises IndexError when an index was out of range on the device, and RuntimeError when a program failed there.
    """
    activate()
    from lazytpu.frontend.device.streams import synchronize

    synchronize()


def set_mode(mode: str) -> None:
    """Set the mode of the process: "debug", "strict", "fused" or "lazy"; the same as `lazytpu.options.mode = mode`.

    It holds for all threads except inside a block of `lazytpu.mode`. Pending ops are cut first.
    """
    options.mode = mode


def mode(mode: str) -> Mode:
    """Return a context manager: inside the block, the calling thread, and backward passes that it starts, work in
    `mode`."""
    activate()
    from lazytpu.frontend.recording.modes import Mode

    return Mode(mode)


def explain_cut(last: int = 10) -> Cuts:
    """Return the `last` cuts of the calling thread, oldest first; printed, each shows its cause, its line, and its
    number of ops.

    They do not include the cuts after every op in strict and debug mode.
    """
    activate()
    from lazytpu.frontend.tensors import recorder
    from lazytpu.trace.cuts import Cuts

    return Cuts(list(recorder().cuts)[-last:] if last else ())


@overload
def warmup(work: str | Path, /) -> Unpacked: ...
@overload
def warmup(work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Warmed: ...
def warmup(work: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Compile programs before the work begins.

    Given a function, calls it with the other arguments, and returns when its recorded ops were compiled and have run.
    The function's changes stay, including parameters and random numbers. Programs are compiled for one call: the first
    training step creates the optimizer's state as well, so call this twice to compile the second step's program too.
    Returns the numbers of `compiled` and `loaded` programs, the `seconds`, and the function's `value`.

    Given a path of a library from `lazytpu-show pack`, copies its entries into the cache on disk (`options.cache_dir`).
    Returns how many entries were `stored` and `present`, and which were `refused`. Its programs are machine code that
    this process will run: load only libraries of people you trust. Raises OSError, ValueError for a damaged file, and
    ValueError, with the differences, for one without entries for this platform, processor and versions.
    """
    activate()
    from pathlib import Path

    from lazytpu.engine import warmup

    if callable(work):
        return warmup.run(wiring.start(), sync, work, *args, **kwargs)
    if args or kwargs:
        raise TypeError(
            f"lazytpu.warmup takes a function and its arguments, or the path of a library, not {work!r} with arguments"
        )
    return warmup.load(Path(work))


def tpu_report(
    step: Callable[..., Any] | ProgramGraph,
    *args: Any,
    topology: str | None = None,
    progress: bool | None = None,
    **kwargs: Any,
) -> TpuReport:
    """Estimate the cost of a step on a TPU, which need not be present: `print(lazytpu.tpu_report(step, batch))`.

    `step` is a function of PyTorch code on "tpu" tensors, called with the other arguments, or a program of
    `lazytpu.graphs()`. The function is rehearsed: its Python runs, two or three times, until two calls agree, and
    nothing runs on the device. Afterwards tensors, modules, optimizers and schedulers are restored. Other changes (a
    counter, an iterator) stay. Host reads of its own results return 0 unless they are cheap to compute. The TPU's
    compiler then compiles its programs in separate processes. docs/tpu-report.md explains the report.

    This takes minutes for a large step. Standard error shows the progress: on a terminal unless `progress` is False,
    elsewhere only if it is True.

    `topology` names the chips: "v5e:4x4", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1", up to a full pod; "v6e" alone is the
    smallest, "v5e:4x4*2" two slices. The default is that of `imagined_job`, or "v6e:2x2". Raises PlatformError when
    libtpu is not installed (pip install 'lazytpu[tpu]'), CompileError, ValueError
    for an unknown topology, and the errors of the function.
    """
    activate()
    wiring.start()
    from lazytpu.rehearsal.tpu_report import report

    return report(step, topology, progress, *args, **kwargs)


def imagined_job(ranks: int | None = None, rank: int = 0, topology: str | None = None) -> ImaginedJob:
    """Return a context manager: in its block, this process is rank `rank` of a job of `ranks` processes, of which no
    other one exists.

    Scripts for `torch.distributed` run in it unchanged, and `lazytpu.tpu_report` reports their steps for that many
    devices: `with lazytpu.imagined_job(ranks=256): lazytpu.tpu_report(step, topology="v5e:16x16")`. Collectives outside
    of a report are computed as if all ranks held the same tensors. docs/scale.md has an example.

    `topology` names the chips of the job, for `lazytpu.distributed.mesh` and for reports; there is a rank for each of
    its devices.

    Raises ValueError for a rank that the job does not have, and for another number of ranks than the topology's.
    Entering the block raises RuntimeError in a process group.
    """
    activate()
    from lazytpu.rehearsal.job import ImaginedJob

    return ImaginedJob(ranks, rank, topology)


def metrics() -> dict[str, Any]:
    """Return the counters since the start.

    - Steps: `steps`, `hits`, `misses`, `stepwise`, `clustered` and `quick` (run op by op, in parts, and with less
      optimisation, see docs/background-compilation.md), and `records` (ops).
    - Collectives: `windows` (cuts that ran in one program with them), `split_windows` (in pieces, as ranks differed).
    - Programs: `compiles` (compiled by XLA), `cache_hits` (read from disk), `cache_misses` (not on disk, and compiled).
    - Wall milliseconds: `trace_ms` (host, between cuts), `launch_ms`, `miss_ms`, `compile_ms`, `wait_ms`, `device_ms`.
    - Host: `cpu_fallbacks` (ops run on the CPU, see `options.cpu_fallback`), and `constant_reads` (host reads of
      constants, which need no data of the device, see docs/modes.md).
    - Bugs: `sharing_errors` (exceptions in the search for a program for many sizes, see docs/padding.md, or on the
      host; the step has its exact program), and `pass_errors` (passes that failed and were left out of a program, see
      docs/passes.md).
    - Bytes of device memory: `live_bytes`, and `peak_bytes`, which includes the temporaries of programs.
    """
    from lazytpu.aten.views.gather_count import gathers
    from lazytpu.engine.compiling.pass_errors import PASS_ERRORS
    from lazytpu.engine.errors.unexpected import UNEXPECTED
    from lazytpu.runtime.buffers.buffer import MEMORY
    from lazytpu.runtime.cache.programs import TRAFFIC

    counted = wiring.start().metrics.as_dict(MEMORY.live, MEMORY.peak, gathers())
    counted["sharing_errors"] = UNEXPECTED.count
    counted["pass_errors"] = PASS_ERRORS.count
    return {**counted, "cache_hits": TRAFFIC.hits, "cache_misses": TRAFFIC.misses}


def reset_metrics() -> None:
    """Reset the counters to zero, the peak of memory to the bytes alive now, and forget all `waits`."""
    from lazytpu.frontend.waits import forget

    wiring.start().reset_metrics()
    forget()


def memory(*, holders: bool = False) -> MemoryReport:
    """Return the live memory of the device, by category and by the source line that created it, and its growth since
    the last call: `print(lazytpu.memory())`.

    Its fields are bytes: `allocated`, `peak`, `free`, `total`, `values`; `by_category()`, `by_line()`, `growth()` and
    `as_dict()` sum them up. It searches all of Python's objects (about 0.1 s), runs nothing, and does not wait.

    With `holders` it also finds the variable, list or attribute that holds each tensor, such as `losses[3]`
    (`by_holder()`), which takes up to a second.
    """
    return wiring.start().memory_since(holders)


def explain() -> Explanation:
    """Explain why programs were compiled: `print(lazytpu.explain())` after any step.

    For each program: the reason code, the differences from the nearest earlier program, a diff, and the remedy. Also
    lists the small traces that ran on the host instead, the graph breaks of torch.compile, how often traces with
    collectives ran as one program, and the `waits`. LAZYTPU_DEBUG=1 prints the reasons as they happen.
    """
    from lazytpu.dynamo.breaks import graph_breaks

    engine = wiring.start()
    chooser = engine.cutter.chooser
    together = tuple(chooser.windows.log)
    return engine.compiler.recompiles.explanation(graph_breaks(), tuple(chooser.on_host.log), together, waits())


def waits() -> Waits:
    """Return the reads and synchronizations at which the host waited for the device: `print(lazytpu.waits())`.

    For each expression of the program, the longest wait in total first: its `place`, source `text`, `count`, `seconds`
    and `longest`; the `cuts` that it caused, and `splits`, the number of training steps that it split in two programs;
    the `reason` where a library waits. `torch.tpu.set_sync_debug_mode` reports waits as they happen.
    """
    from lazytpu.frontend.waits import waits

    return waits()


def graphs() -> list[ProgramGraph]:
    """Return the programs so far, oldest first: `.text()` in the lazytpu dialect, `.stablehlo()`, `.passes`,
    `.name`."""
    from lazytpu.inspection.graphs import GRAPHS

    return list(GRAPHS)

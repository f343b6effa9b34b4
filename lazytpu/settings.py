"""The table of settings: for each, its default, its allowed values, and its meaning."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from lazytpu import readers

PREFIX = "LAZYTPU_"


class Values(TypedDict, total=False):
    """The keyword arguments of `lazytpu.options(...)`."""

    mode: str
    debug: int
    dump: str | os.PathLike[str] | None
    verify: bool
    verify_sizes: bool
    bounds_check: bool
    trace_limit: int
    cpu_fallback: bool
    nan_check: bool
    background_compile: float
    on_host: bool
    compile_after_exit: float
    clusters: str
    platform: str | None
    target: str | None
    memory_limit: int | str
    cache_dir: str | os.PathLike[str] | None
    cache_limit: int | str
    on_recompile: str
    recompile_budget: int
    collectives: str
    buckets: str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `read` converts the user's value, or the text of the variable, or raises ValueError."""

    name: str
    default: Any
    allowed: str
    meaning: str
    read: Callable[[Any], Any]
    empty: bool = False
    """Whether an empty variable is a value; for other settings it means the default."""

    @property
    def variable(self) -> str:
        """The environment variable, such as LAZYTPU_TRACE_LIMIT."""
        return f"{PREFIX}{self.name.upper()}"

    def parse(self, value: Any, source: str) -> Any:
        """Convert `value`. Raises ValueError with `source`, the value, and the allowed values."""
        try:
            return self.read(value)
        except (ValueError, TypeError, OverflowError, OSError, RuntimeError):  # the last three: numbers and paths
            raise ValueError(f"{source} is {value!r}; allowed: {self.allowed} ({self.meaning})") from None


_ALL = (
    Setting(
        "mode",
        "fused",
        "debug, strict, fused or lazy",
        "when recorded ops run: lazy at reads and mark_step(), fused also where a step begins and ends, strict each at "
        "once, debug the same and waits",
        readers.one_of("debug", "strict", "fused", "lazy"),
    ),
    Setting(
        "debug",
        0,
        "0 to 4",
        "printed output: 1 compilations, 2 time per pass, 3 the IR around the pipeline, 4 the IR after each pass",
        readers.integer(0, 4),
    ),
    Setting(
        "dump",
        None,
        "a folder, made if it does not exist; empty for none",
        "where each program is written: NNN-name.imported.mlir before the passes, NNN-name.lazytpu.mlir after them, "
        "NNN-name.stablehlo.mlir, and NNN-name.why.txt",
        readers.folder,
    ),
    Setting(
        "verify",
        False,
        "0 or 1",
        "verify the IR after every pass, not only before the first and after the last",
        readers.flag,
    ),
    Setting(
        "verify_sizes",
        False,
        "0 or 1",
        "compare a program for many sizes with the import of a trace, at each size before it first serves it",
        readers.flag,
    ),
    Setting(
        "bounds_check",
        True,
        "0 or 1",
        "check values on the device, such as indices, and raise a failure at the read that needs it",
        readers.flag,
    ),
    Setting(
        "trace_limit",
        50_000,
        "a whole number, at least 1",
        "ops recorded without a cut before lazytpu cuts by itself",
        readers.integer(1),
    ),
    Setting(
        "cpu_fallback",
        False,
        "0 or 1",
        "run ops that nothing expresses on the CPU, with a warning for each, instead of raising NotImplementedError",
        readers.flag,
    ),
    Setting(
        "nan_check",
        False,
        "0 or 1",
        "in debug mode, raise FloatingPointError at an op that makes a NaN or an infinity from finite operands",
        readers.flag,
    ),
    Setting(
        "background_compile",
        15.0,
        "seconds, 0 or more; inf",
        "how long a step of fused mode waits for a program before it runs op by op, if that is sooner; 0 compiles the "
        "whole program before its first use, without a thread",
        readers.seconds,
    ),
    Setting(
        "on_host",
        True,
        "0 or 1",
        "in fused mode, compute traces of few elements on the host instead of compiling them, while they are short or "
        "vary; lazytpu.explain() lists them",
        readers.flag,
    ),
    Setting(
        "compile_after_exit",
        60.0,
        "seconds, 0 or more; inf",
        "how long programs that take long are still compiled for the cache on disk when the process has ended",
        readers.seconds,
    ),
    Setting(
        "clusters",
        "auto",
        "auto, off, meanwhile or only",
        "compile large steps in parts, equal parts once: to run until the whole step is compiled in the background, "
        "always (meanwhile) or where that is sooner (auto); or instead of it",
        readers.one_of("auto", "off", "meanwhile", "only"),
    ),
    Setting(
        "platform",
        None,
        "cpu, tpu, gpu, cuda, rocm, or a name of PJRT_NAMES_AND_LIBRARY_PATHS; empty for jax's default",
        "where XLA compiles for and runs; read when the first tensor is made",
        readers.platform,
    ),
    Setting(
        "target",
        None,
        "cpu, gpu, tpu, v5e, v5p, v6e, tpu7x; empty for the platform",
        "the target of the passes: the passes of a TPU can be run and dumped where there is none",
        readers.target,
    ),
    Setting(
        "memory_limit",
        0,
        "0, or bytes from 1 MiB on, or a number with kB, MB, GB, KiB, MiB or GiB",
        "the most memory of a TPU that a program may take, arguments included: its compiler computes values again "
        "rather than keep them; 0 for the memory of the chip",
        readers.memory,
    ),
    Setting(
        "cache_dir",
        Path("~/.cache/lazytpu"),
        "a folder of its own, made if it does not exist; empty or off for none",
        "where compiled programs are kept for the processes that follow; lazytpu in $XDG_CACHE_HOME if that is set",
        readers.cache_folder,
        empty=True,
    ),
    Setting(
        "cache_limit",
        10 * 10**9,
        "bytes, or a number with kB, MB, GB, KiB, MiB or GiB; 0 for no limit",
        "how large that folder may grow before the programs not used for longest are removed",
        readers.size,
    ),
    Setting(
        "on_recompile",
        "ignore",
        "ignore, warn or raise",
        "the reaction each time that a step is compiled anew more often than recompile_budget allows",
        readers.one_of("ignore", "warn", "raise"),
    ),
    Setting(
        "recompile_budget",
        8,
        "a whole number, at least 0",
        "how often a step may be compiled anew, not counting warm-up",
        readers.integer(0),
    ),
    Setting(
        "collectives",
        "together",
        "checked, together or trusted",
        "whether ranks compare collectives before they launch them, and launch all of a step together, in one program, "
        "where they are about to launch equal steps; trusted ranks that differ compute wrong values",
        readers.one_of("checked", "together", "trusted"),
    ),
    Setting(
        "buckets",
        "auto",
        "off, auto, or sizes such as 64,128,256",
        "the bounds of programs that are made for many sizes: four to each power of two, fewer where padding costs "
        "little (auto), or these; off makes a program for each size",
        readers.buckets,
    ),
)
SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _ALL}

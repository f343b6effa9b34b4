"""The settings of lazytpu: each is an environment variable, an attribute, and a keyword of a context manager.

    LAZYTPU_DEBUG=2 python train.py                   # for a whole process

    lazytpu.options.debug = 2                         # from here on
    with lazytpu.options(debug=2, dump="graphs"):     # for a block
        ...

The variables are read once, at the first import of lazytpu, which `import torch` causes in every program. An invalid
variable is therefore reported at the first use of the device (`Options.check`). Settings hold for the whole process,
including all of its threads.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from lazytpu.settings import PREFIX, SETTINGS, Setting, Values

__all__ = ["Options", "options"]


class Options:
    """The current settings. Reading an attribute is as fast as reading any slot; writing one checks the value."""

    __slots__ = (
        "_unknown",
        "_wrong",
        "background_compile",
        "bounds_check",
        "buckets",
        "cache_dir",
        "cache_limit",
        "clusters",
        "collectives",
        "compile_after_exit",
        "cpu_fallback",
        "debug",
        "dump",
        "memory_limit",
        "mode",
        "nan_check",
        "on_host",
        "on_recompile",
        "platform",
        "recompile_budget",
        "target",
        "trace_limit",
        "verify",
        "verify_sizes",
    )

    mode: str
    """When recorded ops run (LAZYTPU_MODE), in threads outside `lazytpu.mode`. "lazy": at host reads and mark_step().
    "fused": also after each optimizer.step(), as soon as another op is recorded, where a step begins, and where a loop
    without steps repeats. "strict": each at once. "debug": each at once, and waits for it."""
    debug: int
    """The printed information (LAZYTPU_DEBUG): 1 compilations, 2 time per pass, 3 IR around the pipeline, 4 IR after
    each pass."""
    dump: Path | None
    """The folder for the files of every program (LAZYTPU_DUMP); None writes none."""
    verify: bool
    verify_sizes: bool
    """Compare a program for many sizes with the import of a trace, at each size before its first use
    (LAZYTPU_VERIFY_SIZES)."""
    bounds_check: bool
    """Check values on the device, such as indices (LAZYTPU_BOUNDS_CHECK)."""
    trace_limit: int
    """The number of ops recorded without a cut after which lazytpu cuts (LAZYTPU_TRACE_LIMIT)."""
    nan_check: bool
    """In debug mode, raise FloatingPointError at an op that computes a NaN or an infinity from finite operands
    (LAZYTPU_NAN_CHECK)."""
    cpu_fallback: bool
    """Run ops that no rule expresses on the CPU (LAZYTPU_CPU_FALLBACK), instead of raising NotImplementedError."""
    background_compile: float
    """Seconds that a step in fused mode waits for a program (LAZYTPU_BACKGROUND_COMPILE) before it runs op by op, if
    that is sooner, while the compilation continues; 0 compiles the whole program before its first use, without a
    thread."""
    on_host: bool
    """In fused mode, compute traces of few elements on the host instead of compiling them (LAZYTPU_ON_HOST), while they
    are short or vary; `lazytpu.explain()` lists them. If False, every computation is a program, or an op of one."""
    compile_after_exit: float
    """Seconds that a helper process continues to compile for the cache on disk after the end of this process
    (LAZYTPU_COMPILE_AFTER_EXIT); 0 ends both together. It holds for later compilations."""
    clusters: str
    """Compile large steps in parts, and equal parts once (LAZYTPU_CLUSTERS): "meanwhile" runs the parts until the whole
    step is compiled in the background, "auto" where that is sooner by an estimate; "only" never compiles the whole
    step, "off" compiles whole steps only."""
    platform: str | None
    """The platform of XLA (LAZYTPU_PLATFORM); None is jax's default. Read when the first tensor is created."""
    memory_limit: int
    """The most bytes of a TPU's memory that one program may take, including its arguments (LAZYTPU_MEMORY_LIMIT): to
    stay below, the compiler recomputes values instead of storing them. 0 is the chip's memory. Compiled programs stay.
    """
    target: str | None
    """The target that the passes optimize programs for (LAZYTPU_TARGET); None is the platform. Compiled programs
    stay."""
    cache_dir: Path | None
    """The folder that stores compiled programs for later processes (LAZYTPU_CACHE_DIR); None stores none on disk. The
    default is $XDG_CACHE_HOME/lazytpu if that variable is set."""
    cache_limit: int
    """The most bytes in `cache_dir`, above which the least recently used programs are removed (LAZYTPU_CACHE_LIMIT); 0
    is no limit."""
    on_recompile: str
    """The reaction to each recompile of a step beyond the budget (LAZYTPU_ON_RECOMPILE): "ignore", "warn" with the
    reason, or "raise" a RuntimeError with it instead of compiling."""
    recompile_budget: int
    """How often a step may be recompiled (LAZYTPU_RECOMPILE_BUDGET). Its first program, the second one with the
    optimizer's states, and programs of another mode or setting do not count."""
    collectives: str
    """How ranks launch collectives (LAZYTPU_COLLECTIVES). "together": after a comparison, and all of a cut in one
    program if all ranks have it. "checked": after a comparison, each as a program of its own. "trusted": without
    one."""
    buckets: str | tuple[int, ...]
    """The bounds of programs for many sizes (LAZYTPU_BUCKETS). "auto": four in each power of two, fewer where padding
    costs little. Sizes, such as (64, 128, 256): the bounds up to the largest. "off": a program for each size."""

    _wrong: dict[str, ValueError]
    """By setting, the error of its invalid variable; until the setting is written, its value is the default."""
    _unknown: tuple[str, ...]
    """Environment variables that begin with LAZYTPU_ and name no setting."""

    def __init__(self, environment: Mapping[str, str] = os.environ):
        """Read the settings from an environment. An unset or invalid variable means the default, and so does an empty
        one, unless `Setting.empty`. `check` reports invalid ones."""
        wrong: dict[str, ValueError] = {}
        for setting in SETTINGS.values():
            value, text = setting.default, environment.get(setting.variable)
            if text is not None and (text.strip() or setting.empty):
                try:
                    value = setting.parse(text.strip(), setting.variable)
                except ValueError as error:
                    wrong[setting.name] = error
            object.__setattr__(self, setting.name, value)
        variables = {setting.variable for setting in SETTINGS.values()}
        unknown = tuple(name for name in environment if name.startswith(PREFIX) and name not in variables)
        object.__setattr__(self, "_wrong", wrong)
        object.__setattr__(self, "_unknown", unknown)

    def check(self) -> None:
        """Raise ValueError for invalid variables, with the allowed values; warn about unknown variables."""
        for name in self._unknown:
            close = difflib.get_close_matches(name.removeprefix(PREFIX).lower(), SETTINGS, n=1)
            hint = f"did you mean {SETTINGS[close[0]].variable}?" if close else f"settings are {', '.join(SETTINGS)}"
            warnings.warn(f"{name} is no setting of lazytpu; {hint}", UserWarning, stacklevel=2)
        if self._wrong:
            raise ValueError("; ".join(map(str, self._wrong.values())))

    def __setattr__(self, name: str, value: Any) -> None:
        setting = _setting(name)
        object.__setattr__(self, name, setting.parse(value, f"lazytpu.options.{name}"))
        self._wrong.pop(name, None)
        if self is options:
            for changed in _watchers.get(name, ()):
                changed()

    def __call__(self, **values: Unpack[Values]) -> Override:
        """Return a context manager that sets `values` for its block. Raises ValueError at once for an invalid value."""
        return Override(self, {name: _setting(name).parse(v, f"lazytpu.options({name})") for name, v in values.items()})

    def __repr__(self) -> str:
        return f"lazytpu.options({', '.join(f'{s.name}={getattr(self, s.name)!r}' for s in SETTINGS.values())})"


class Override:
    """Settings for a block of code; the block may be entered again, also within itself."""

    def __init__(self, target: Options, values: dict[str, Any]):
        self._target = target
        self._values = values
        self._before: list[dict[str, Any]] = []

    def __enter__(self) -> Options:
        self._before.append({name: getattr(self._target, name) for name in self._values})
        self._set(self._values)
        return self._target

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._set(self._before.pop())

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self._target, name, value)


def _setting(name: str) -> Setting:
    try:
        return SETTINGS[name]
    except KeyError:
        raise AttributeError(f"lazytpu has no setting {name!r}; there are {', '.join(SETTINGS)}") from None


_watchers: dict[str, list[Callable[[], None]]] = {}


def watch(name: str, changed: Callable[[], None]) -> None:
    """Call `changed` whenever the process's setting `name` is set from now on."""
    _watchers.setdefault(name, []).append(changed)


options = Options()

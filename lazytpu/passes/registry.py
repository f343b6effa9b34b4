"""The registry of passes: the built-in ones, and the passes that other packages register.

    from lazytpu.passes import register

    @register("cubes", phase="simplify", targets=("tpu",))
    @dataclass(frozen=True)
    class CubesPass(ModulePass): ...

A package names the module that registers its passes in an entry point of the group `lazytpu.passes`; the module is
imported before the first program is compiled. Nothing here imports xDSL or a pass: a process that finds all of its
programs in the disk cache needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from lazytpu.passes.phases import ORDER, PHASES
from lazytpu.passes.target import NAMES, Target

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

GROUP = "lazytpu.passes"
"The group of entry points."


@dataclass(frozen=True, slots=True)
class RegisteredPass:
    """A pass, the phase it runs in (None: only if a pipeline names it), and its targets (empty: all).

    `target_options` are the fields of Target that are passed to it as options of the same name. A pass is `required` if
    values or limits would differ without it: if it fails, the step fails. If another pass fails, the program is
    compiled without it, or with the pass `instead`, if there is one.
    """

    name: str
    load: Callable[[], type[ModulePass]]
    phase: str | None = None
    targets: tuple[str, ...] = ()
    target_options: tuple[str, ...] = ()
    built_in: bool = False
    required: bool = False
    instead: str | None = None

    def text(self, target: Target) -> str:
        """The pass and its options in pipeline syntax."""
        values = {name: getattr(target, name) for name in self.target_options}
        options = " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
        return f"{self.name}{{{options}}}" if options else self.name


def _built_in(
    path: str,
    phase: str | None = None,
    targets: tuple[str, ...] = (),
    target_options: tuple[str, ...] = (),
    *,
    required: bool = False,
    instead: str | None = None,
) -> RegisteredPass:
    """The pass `folder/some-name`: the class SomeNamePass of folder/some_name.py, imported on first use."""
    *folder, name = path.split("/")

    def load() -> type[ModulePass]:
        module = import_module(".".join(["lazytpu.passes", *folder, name.replace("-", "_")]))
        return getattr(module, name.title().replace("-", "") + "Pass")

    return RegisteredPass(name, load, phase, targets, target_options, True, required, instead)


# Passes of one phase run in this order.
BUILT_IN: Mapping[str, RegisteredPass] = {
    entry.name: entry
    for entry in (
        _built_in("canonicalize"),
        _built_in("clusters/cluster-fusion"),
        _built_in("constant-folding"),
        _built_in("cse"),
        _built_in("dce"),
        _built_in("attention/decompose-attention", "recorded", targets=("cpu", "gpu"), required=True),
        _built_in("gather-first", "simplify", targets=("tpu",)),
        _built_in("collectives/own-shapes", "patterns", targets=("tpu",)),
        _built_in("attention/fuse-attention", "patterns", targets=("tpu",)),
        _built_in("attention/flash-attention", "patterns", targets=("tpu",), instead="decompose-attention"),
        _built_in("loops/roll-loops", "patterns", target_options=("platform",)),
        _built_in("layout/split-tokens", "layout", targets=("tpu",)),
        _built_in("layout/pack-scalars", "layout", targets=("tpu",)),
        _built_in("layout/assign-layout", "layout", targets=("tpu",), target_options=("generation",)),
        _built_in("fusions/keep-overwritten", "final", targets=("cpu",), required=True),
        _built_in("fusions/keep-compared", "final", targets=("cpu",), required=True),
        _built_in("fusions/bound-fusions", "final", targets=("cpu",)),
        _built_in("mark-donation"),
        _built_in("padding/pad-sizes", required=True),
        _built_in("collectives/shard-reductions", "collectives", targets=("tpu",)),
        _built_in("collectives/overlap-collectives", "collectives", targets=("tpu",), target_options=("generation",)),
        _built_in("limit-memory", required=True),
    )
}
"The built-in passes, one line each. A phase puts the pass into the pipelines of its targets."

_registered: dict[str, RegisteredPass] = {}  # by other packages, in order of registration
_watchers: list[Callable[[], None]] = []

Pass = TypeVar("Pass", bound="type[ModulePass]")


def register(
    name: str, *, phase: str | None = None, targets: Iterable[str] = (), required: bool = False
) -> Callable[[Pass], Pass]:
    """Register the decorated class, a subclass of xDSL's `ModulePass`, as the pass `name`.

    With a `phase`, one of `lazytpu.passes.phases.PHASES`, it runs in the pipeline of every program that is compiled
    from then on for one of `targets`: names of platforms ("tpu") and generations ("v6e"), by default all. Passes of
    one phase run in the order of registration, after the built-in ones. Without a phase, it runs only where a pipeline
    names it: `lazytpu-opt -p`.

    A program for which the pass fails is compiled without it, with a warning; where it is `required`, the error is
    raised.

    A class that is defined again, in a notebook, replaces its earlier definition. Raises ValueError when another pass
    has the name, and for unknown phases and targets.
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  (used without parentheses)
        raise TypeError(f'register takes the name of the pass, as in @register("my-pass"); got {name!r}')
    target_names = (targets,) if isinstance(targets, str) else tuple(targets)
    if phase is not None and phase not in PHASES:
        raise ValueError(f"there is no phase {phase!r} in the pipeline; the phases are {', '.join(PHASES)}")
    for target in target_names:
        if target not in NAMES:
            raise ValueError(f"there is no target {target!r}; targets are {', '.join(NAMES)}")

    def decorate(pass_class: Pass) -> Pass:
        own_name = vars(pass_class).get("name")
        if own_name is not None and own_name != name:
            raise ValueError(f"{pass_class.__qualname__} is registered as {name!r}, but its `name` is {own_name!r}")
        registered = BUILT_IN.get(name) or _registered.get(name)
        if registered is not None and (registered.built_in or not _same(registered.load(), pass_class)):
            raise ValueError(f"there is a pass named {name!r} already, in {registered.load().__module__}")
        pass_class.name = name
        _registered[name] = RegisteredPass(name, lambda: pass_class, phase, target_names, required=required)
        _changed()
        return pass_class

    return decorate


def _same(left: type[ModulePass], right: type[ModulePass]) -> bool:
    return (left.__module__, left.__qualname__) == (right.__module__, right.__qualname__)


def unregister(name: str) -> None:
    """Remove a registered pass. Raises KeyError when no pass is registered under the name."""
    del _registered[name]
    _changed()


@contextmanager
def registered(
    pass_class: type[ModulePass], *, phase: str | None = None, targets: Iterable[str] = (), required: bool = False
) -> Generator[None, None, None]:
    """Register a pass under its `name`, as `register` does, for the duration of the block. For tests."""
    register(pass_class.name, phase=phase, targets=targets, required=required)(pass_class)
    try:
        yield
    finally:
        unregister(pass_class.name)


def watch(changed: Callable[[], None]) -> None:
    """Call `changed` whenever a pass is registered or removed."""
    _watchers.append(changed)


def _changed() -> None:
    for notify in _watchers:
        notify()


@cache
def _discover() -> None:
    """Import the modules that entry points name, once. Raises RuntimeError naming the package when one fails."""
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            package = point.dist.name if point.dist is not None else "an installed package"
            raise RuntimeError(
                f"{package} provides passes for lazytpu through its entry point {point.name} = {point.value}, which "
                f"fails to load: {type(error).__name__}: {error}. Fix or uninstall the package."
            ) from error


def passes() -> Mapping[str, RegisteredPass]:
    """All passes by name: the built-in ones, then the registered ones in order of registration."""
    _discover()
    return {**BUILT_IN, **_registered}


def at(phase: str, target: Target) -> list[RegisteredPass]:
    """The passes that run in a phase of the pipeline for a target, in order."""
    return [entry for entry in passes().values() if entry.phase == phase and target.among(entry.targets)]


def for_target(target: Target) -> str:
    """Return the pipeline of a target, in the syntax of `lazytpu-opt -p`: the passes of every target, and in each phase
    the passes registered for this one."""
    names: list[str] = []
    for step in ORDER:
        if step.startswith("<"):
            names += [entry.text(target) for entry in at(step.strip("<>"), target)]
        else:
            names.append(step)
    return ",".join(names)


def foreign(target: Target) -> list[str]:
    """The names of the passes in the pipeline of a target that are not built in."""
    entries = passes().values()
    return [p.name for p in entries if not p.built_in and p.phase is not None and target.among(p.targets)]

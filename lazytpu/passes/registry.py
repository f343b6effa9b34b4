"""The passes by name: those of lazytpu, and those that others register.

    from lazytpu.passes import register

    @register("cubes", phase="simplify", targets=("tpu",))
    @dataclass(frozen=True)
    class CubesPass(ModulePass): ...

A package registers the passes of its modules by an entry point of the group `lazytpu.passes` that names such a module;
it is imported before the first program is made. Nothing here imports xDSL or a pass: a process that finds all of its
programs on disk needs neither.
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
class Registered:
    """A pass: where in the pipeline it runs (None: only where it is named), and for which targets (none: for all).

    `given` are fields of Target that it takes as options of the same name. `ours` says whether it is lazytpu's own.
    """

    name: str
    load: Callable[[], type[ModulePass]]
    phase: str | None = None
    targets: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    ours: bool = False

    def text(self, target: Target) -> str:
        """The pass as a pipeline names it, with the options that it is given."""
        values = {name: getattr(target, name) for name in self.given}
        options = " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
        return f"{self.name}{{{options}}}" if options else self.name


def _built_in(
    path: str, phase: str | None = None, targets: tuple[str, ...] = (), given: tuple[str, ...] = ()
) -> Registered:
    """The pass called `folder/some-name`: the class SomeNamePass of folder/some_name.py, imported when it is first
    run."""
    *folder, name = path.split("/")

    def load() -> type[ModulePass]:
        module = import_module(".".join(["lazytpu.passes", *folder, name.replace("-", "_")]))
        return getattr(module, name.title().replace("-", "") + "Pass")

    return Registered(name, load, phase, targets, given, ours=True)


# In the order in which those of one phase run.
BUILT_IN: Mapping[str, Registered] = {
    each.name: each
    for each in (
        _built_in("canonicalize"),
        _built_in("clusters/cluster-fusion"),
        _built_in("constant-folding"),
        _built_in("cse"),
        _built_in("dce"),
        _built_in("attention/decompose-attention", "recorded", targets=("cpu", "gpu")),
        _built_in("gather-first", "simplify", targets=("tpu",)),
        _built_in("attention/fuse-attention", "patterns", targets=("tpu",)),
        _built_in("attention/flash-attention", "patterns", targets=("tpu",)),
        _built_in("layout/split-tokens", "layout", targets=("tpu",)),
        _built_in("layout/pack-scalars", "layout", targets=("tpu",)),
        _built_in("layout/assign-layout", "layout", targets=("tpu",), given=("generation",)),
        _built_in("fusions/keep-compared", "final", targets=("cpu",)),
        _built_in("fusions/bound-fusions", "final", targets=("cpu",)),
        _built_in("mark-donation"),
        _built_in("collectives/shard-reductions", "collectives", targets=("tpu",)),
        _built_in("collectives/overlap-collectives", "collectives", targets=("tpu",), given=("generation",)),
        _built_in("limit-memory"),
    )
}
"The passes of lazytpu. One line each; a line with a phase puts the pass into the pipeline of its targets."

_registered: dict[str, Registered] = {}  # by others, in the order in which they came
_watchers: list[Callable[[], None]] = []

Pass = TypeVar("Pass", bound="type[ModulePass]")


def register(name: str, *, phase: str | None = None, targets: Iterable[str] = ()) -> Callable[[Pass], Pass]:
    """Make the decorated class, a subclass of xDSL's `ModulePass`, the pass `name`.

    With a `phase`, one of `lazytpu.passes.phases.PHASES`, it is part of every program that is made from then on for one
    of the `targets`: names of platforms ("tpu") and generations ("v6e"), all when none are named. In one phase, passes
    run in the order in which they were registered, after lazytpu's own. Without a phase it runs where a pipeline names
    it: `lazytpu-opt -p`.

    A class that is defined again, in a notebook, takes the place of its former self. Raises ValueError when the name
    is another pass's, and for unknown phases and targets.
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  (used without parentheses)
        raise TypeError(f'register is called with the name of the pass: @register("my-pass"), not {name!r}')
    wanted = (targets,) if isinstance(targets, str) else tuple(targets)
    if phase is not None and phase not in PHASES:
        raise ValueError(f"there is no phase {phase!r} in the pipeline; the phases are {', '.join(PHASES)}")
    for target in wanted:
        if target not in NAMES:
            raise ValueError(f"there is no target {target!r}; targets are {', '.join(NAMES)}")

    def decorate(made: Pass) -> Pass:
        own = vars(made).get("name")
        if own is not None and own != name:
            raise ValueError(f"{made.__qualname__} is registered as {name!r}, but its `name` is {own!r}")
        former = BUILT_IN.get(name) or _registered.get(name)
        if former is not None and (former.ours or not _same(former.load(), made)):
            raise ValueError(f"there is a pass named {name!r} already, in {former.load().__module__}")
        made.name = name
        _registered[name] = Registered(name, lambda: made, phase, wanted)
        _changed()
        return made

    return decorate


def _same(one: type[ModulePass], other: type[ModulePass]) -> bool:
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def unregister(name: str) -> None:
    """Take a pass that was registered out again. Raises KeyError when there is none of that name."""
    del _registered[name]
    _changed()


@contextmanager
def registered(
    made: type[ModulePass], *, phase: str | None = None, targets: Iterable[str] = ()
) -> Generator[None, None, None]:
    """Inside the block a pass is registered by its `name`, as `register` does; after it no longer. For tests."""
    register(made.name, phase=phase, targets=targets)(made)
    try:
        yield
    finally:
        unregister(made.name)


def watch(changed: Callable[[], None]) -> None:
    """Call `changed` whenever the passes are others from then on."""
    _watchers.append(changed)


def _changed() -> None:
    for changed in _watchers:
        changed()


@cache
def _discover() -> None:
    """Import what the entry points name, once. Raises RuntimeError that names the package when that fails."""
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            package = point.dist.name if point.dist is not None else "an installed package"
            raise RuntimeError(
                f"{package} brings passes for lazytpu by its entry point {point.name} = {point.value}, which fails to "
                f"load: {type(error).__name__}: {error}. Mend or uninstall it."
            ) from error


def passes() -> Mapping[str, Registered]:
    """All passes by name: lazytpu's own, then those of others as they came."""
    _discover()
    return {**BUILT_IN, **_registered}


def at(phase: str, target: Target) -> list[Registered]:
    """The passes that run in a phase of the pipeline for a target, in order."""
    return [each for each in passes().values() if each.phase == phase and target.among(each.targets)]


def for_target(target: Target) -> str:
    """The pipeline that makes programs for a target, in the syntax of `lazytpu-opt -p`: the passes that all share, and
    in each phase those that are registered there for this target."""
    names: list[str] = []
    for entry in ORDER:
        if entry.startswith("<"):
            names += [each.text(target) for each in at(entry.strip("<>"), target)]
        else:
            names.append(entry)
    return ",".join(names)


def foreign(target: Target) -> list[str]:
    """The passes from outside lazytpu that are part of the pipeline for a target."""
    found = passes().values()
    return [each.name for each in found if not each.ours and each.phase is not None and target.among(each.targets)]

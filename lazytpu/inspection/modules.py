"""The time of each module of a step, with all that it contains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class ModuleTime:
    """Seconds of a module's ops, and of the modules inside, in the forward and the backward pass."""

    path: str = ""
    forward: float = 0.0
    backward: float = 0.0
    inside: dict[str, ModuleTime] = field(default_factory=dict[str, "ModuleTime"])

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return self.forward + self.backward

    @property
    def depth(self) -> int:
        """The number of modules around it."""
        return self.path.count(".")

    def add(self, path: str, backward: bool, seconds: float) -> None:
        """Add the time of an op of the module at `path` in this one."""
        self.forward += 0.0 if backward else seconds
        self.backward += seconds if backward else 0.0
        if path:
            name, _, further = path.partition(".")
            inside = self.inside.setdefault(name, ModuleTime(f"{self.path}.{name}".lstrip(".")))
            inside.add(further, backward, seconds)

    def tree(self) -> Iterator[ModuleTime]:
        """Yield the modules inside, each before its parts, most expensive first."""
        for module in sorted(self.inside.values(), key=lambda module: -module.seconds):
            yield module
            yield from module.tree()


def module_times(ops: Iterable[tuple[str, bool, float]]) -> list[ModuleTime]:
    """Return the modules of a step in the order of their tree, from (module, backward, seconds) of its ops."""
    root = ModuleTime()
    for path, backward, seconds in ops:
        if path:
            root.add(path, backward, seconds)
    return list(root.tree())

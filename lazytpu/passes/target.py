"""The target of a program: the hardware that passes optimize for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lazytpu.passes.generations import GENERATIONS, Generation

PLATFORMS = ("cpu", "gpu", "tpu")


@dataclass(frozen=True, slots=True)
class Target:
    """A platform and, for a TPU, its generation: a name in `generations.GENERATIONS`, or None when it is unknown.

    Raises ValueError for an unknown platform or generation.
    """

    platform: str
    generation: str | None = None

    def __post_init__(self) -> None:
        valid = self.generation is None or (self.platform == "tpu" and self.generation in GENERATIONS)
        if self.platform not in PLATFORMS or not valid:
            raise ValueError(f"there is no target {self}; targets are {', '.join(NAMES)}")

    @classmethod
    def parse(cls, text: str) -> Target:
        """The target of a platform, a generation, or a topology such as "v6e:2x2", which stands for its generation.
        Raises ValueError for any other name."""
        name = text.strip().lower().partition(":")[0]
        return cls("tpu", name) if name in GENERATIONS else cls(name)

    @property
    def facts(self) -> Generation | None:
        """The figures of the generation; None when it is unknown."""
        return None if self.generation is None else GENERATIONS[self.generation]

    def among(self, names: Iterable[str]) -> bool:
        """Whether this is one of the named platforms and generations; no names mean every target."""
        targets = tuple(names)
        return not targets or self.platform in targets or self.generation in targets

    def __str__(self) -> str:
        return self.generation or self.platform


NAMES = (*PLATFORMS, *GENERATIONS)
"The names that `Target.parse` accepts."

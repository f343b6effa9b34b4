"""What a program is made for, as far as passes care."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lazytpu.passes.generations import GENERATIONS, Generation

PLATFORMS = ("cpu", "gpu", "tpu")


@dataclass(frozen=True, slots=True)
class Target:
    """A platform, and of a TPU its generation: a name of `generations.GENERATIONS`, None when it is not known.

    Raises ValueError for a platform or a generation that there is not.
    """

    platform: str
    generation: str | None = None

    def __post_init__(self) -> None:
        known = self.generation is None or (self.platform == "tpu" and self.generation in GENERATIONS)
        if self.platform not in PLATFORMS or not known:
            raise ValueError(f"there is no target {self}; targets are {', '.join(NAMES)}")

    @classmethod
    def parse(cls, text: str) -> Target:
        """The target that a name stands for: a platform, a generation, or a topology such as "v6e:2x2", which is that
        of its generation. Raises ValueError."""
        name = text.strip().lower().partition(":")[0]
        return cls("tpu", name) if name in GENERATIONS else cls(name)

    @property
    def facts(self) -> Generation | None:
        """Figures of the generation; None when it is not known."""
        return None if self.generation is None else GENERATIONS[self.generation]

    def among(self, names: Iterable[str]) -> bool:
        """Whether it is one of these platforms and generations; no names at all stand for every target."""
        wanted = tuple(names)
        return not wanted or self.platform in wanted or self.generation in wanted

    def __str__(self) -> str:
        return self.generation or self.platform


NAMES = (*PLATFORMS, *GENERATIONS)
"What `Target.parse` takes."

"""Names of topologies, such as "v6e:2x2"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

# Generation -> (dimensions of a topology, chips of the largest one, XLA devices per chip).
_GENERATIONS = {"v5e": (2, 256, 1), "v6e": (2, 256, 1), "v5p": (3, 8960, 1), "tpu7x": (3, 9216, 2)}


@dataclass(frozen=True, slots=True)
class Topology:
    """An arrangement of TPU chips such as "v6e:2x2": its generation, and the chips in each dimension.

    "v5e:4x4*2" has two slices of 4x4 chips, which are connected by the data center's network.
    """

    generation: str
    shape: tuple[int, ...]
    slices: int = 1

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Parse the name of a topology. A generation alone, "v6e", stands for its smallest topology. Raises ValueError
        with the form of a name."""
        match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)(?:\*(\d+))?", full_name(text))
        generation, shape = (match[1], tuple(map(int, match[2].split("x")))) if match else ("", ())
        slices = int(match[3] or 1) if match else 0
        dimensions, largest, _ = _GENERATIONS.get(generation, (0, 0, 0))
        if len(shape) != dimensions or not 1 <= prod(shape) <= largest or slices < 1:
            raise ValueError(
                f"{text!r} is no TPU topology: a generation and its chips in each dimension, v5e:4x4 and v6e:2x2 "
                "(up to 256 chips), v5p:2x2x1 (up to 8,960), tpu7x:2x2x1 (up to 9,216); v6e alone is the smallest; "
                "v5e:4x4*2 has two slices"
            )
        return cls(generation, shape, slices)

    @property
    def chips(self) -> int:
        """The number of chips in all slices."""
        return prod(self.shape) * self.slices

    @property
    def devices(self) -> int:
        """The number of XLA devices: two for each chip of a tpu7x."""
        return self.chips * _GENERATIONS[self.generation][2]

    @property
    def smallest(self) -> Topology:
        """The smallest topology of this generation that libtpu knows, one host of four chips. A program for one device
        is compiled for it, so that its compilation, and its cache entry, is the same for a pod."""
        return Topology.parse(smallest(self.generation))

    def __str__(self) -> str:
        return f"{self.generation}:{'x'.join(map(str, self.shape))}{f'*{self.slices}' if self.slices > 1 else ''}"


def full_name(topology: str) -> str:
    """Return a topology's name in lower case. A generation alone, "v6e", stands for its smallest topology."""
    name = topology.strip().lower()
    return smallest(name) if name in _GENERATIONS else name


def smallest(generation: str) -> str:
    """Return the smallest topology of a generation, "v6e:2x2"."""
    dimensions, _, _ = _GENERATIONS[generation]
    return str(Topology(generation, (2, 2, 1)[:dimensions]))

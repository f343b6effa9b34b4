"""The ops that process groups record; `lazytpu.aten.collectives` has their rules.

`members` are the global ranks of the `group`, in its order; the program runs on their devices. An operand must cover
its whole storage, because it is sent in memory order.

In an imagined job, the program runs on all ranks: these form `mesh`, and the group lies along its `axes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

LIBRARY = torch.library.Library("lazytpu_dist", "DEF")
LIBRARY.define("all_reduce(Tensor self, str kind, str group, int[] members, int[] mesh=[], int[] axes=[]) -> Tensor")
LIBRARY.define("all_gather(Tensor self, str group, int[] members, int[] mesh=[], int[] axes=[]) -> Tensor")
LIBRARY.define(
    "reduce_scatter(Tensor self, str kind, int[] size, "
    "str group, int[] members, int[] mesh=[], int[] axes=[]) -> Tensor"
)
LIBRARY.define("all_to_all(Tensor self, str group, int[] members, int[] mesh=[], int[] axes=[]) -> Tensor")
LIBRARY.define("broadcast(Tensor self, int root, str group, int[] members, int[] mesh=[], int[] axes=[]) -> Tensor")
LIBRARY.define(
    "scatter(Tensor self, int root, int[] size, str group, int[] members, int[] mesh=[], int[] axes=[]) -> Tensor"
)

# The part along `dim`, with `count` elements there, of this process, which has the number `place` among these ranks.
LIBRARY.define(
    "own_part(Tensor self, int dim, int count, int place, int[] among, int[] mesh=[], int[] axes=[]) -> Tensor"
)


def _alike(self: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty_like(self)


def _gathered(self: torch.Tensor, group: str, members: Sequence[int], *mesh: Any) -> torch.Tensor:
    return self.new_empty((len(members), *self.shape))


def _part(self: torch.Tensor, kind: Any, size: Sequence[int], *group: Any) -> torch.Tensor:
    return self.new_empty(size)


def _own_part(self: torch.Tensor, dim: int, count: int, place: int, *group: Any) -> torch.Tensor:
    return self.new_empty([*self.shape[:dim], count, *self.shape[dim + 1 :]])


for _name, _meta in (
    ("all_reduce", _alike),
    ("all_to_all", _alike),
    ("broadcast", _alike),
    ("all_gather", _gathered),
    ("reduce_scatter", _part),
    ("scatter", _part),
    ("own_part", _own_part),
):
    LIBRARY.impl(_name, _meta, "Meta")

OPS: Any = torch.ops.lazytpu_dist

"""Process groups of a job of which only this rank exists (`lazytpu.imagined_job`).

In a rehearsal, collectives are recorded with the groups of the whole job, so that the program is the same on all ranks.
Otherwise they are computed as if every rank held the tensors of this one, because the script may read them:
DistributedDataParallel reads the order of its buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from lazytpu.distributed.dense import dense, put
from lazytpu.distributed.group import DeviceGroup, collective
from lazytpu.distributed.lattice import Lattice, lattice_of
from lazytpu.distributed.ops import LIBRARY, OPS
from lazytpu.distributed.work import Recorded
from lazytpu.frontend.tensors import recorder
from lazytpu.runtime.tpu.topology import Topology


@dataclass(slots=True)
class Job:
    """The imagined job of this process, which is its rank `rank` of `size`, on the chips of `topology`, if it is known.
    `ended` says that its block is over."""

    size: int
    rank: int
    topology: Topology | None = None
    ended: bool = False
    lattices: dict[tuple[int, ...], Lattice] = field(default_factory=dict[tuple[int, ...], Lattice])

    def lattice(self, members: Sequence[int]) -> Lattice:
        """Return the mesh of the job in which `members` are the ranks along some axes."""
        key = tuple(members)
        if key not in self.lattices:
            self.lattices[key] = lattice_of(key, self.size)
        return self.lattices[key]


JOB: Job | None = None


def is_imagined() -> bool:
    """Return whether this process is in the block of an imagined job."""
    return JOB is not None


class ImaginedGroup(DeviceGroup):
    """A process group of the global ranks `members` of an imagined job."""

    def __init__(self, job: Job, name: str, members: Sequence[int], rank: int):
        DeviceGroup.__init__(self, name, members, rank)
        self.job = job

    def _record(self, op: Any, *arguments: Any) -> torch.Tensor:
        self._check_open()
        if recorder().platform is None or arguments[0].device.type != "tpu":
            return AS_IF_ALL_EQUAL[str(op).rpartition(".")[2]](*arguments, self.key, self.members)
        lattice = self.job.lattice(self.members)
        return op(*arguments, self.key, self.members, lattice.mesh, lattice.axes)

    def _handle(self, result: Any) -> Recorded:
        return Recorded(result)

    def _own_part(self, tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
        self._check_open()
        if recorder().platform is None:
            return tensor.narrow(dim, self.rank() * count, count).clone()
        lattice = self.job.lattice(self.members)
        return OPS.own_part(tensor, dim, count, self.rank(), self.members, lattice.mesh, lattice.axes)

    def on_host(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Compute a collective of CPU tensors. Raises RuntimeError for one that sends the data of another rank: it may
        be an object, whose size even this rank does not know."""
        self._check_open()
        method = getattr(DeviceGroup, name).__wrapped__
        options = next((argument for argument in (*args, *kwargs.values()) if hasattr(argument, "rootRank")), None)
        if options is not None and name in ("broadcast", "scatter") and options.rootRank != self.rank():
            raise self._absent(name, options.rootRank)
        return method(self, *args, **kwargs)

    @collective
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather the tensors. Outside of a rehearsal the results share one value, so that thousands of them need no
        program."""
        unequal = any(slot.shape != input.shape for slots, input in zip(outputs, inputs, strict=True) for slot in slots)
        if unequal or recorder().platform is not None:
            return DeviceGroup.allgather.__wrapped__(self, outputs, inputs, opts)
        for slots, input in zip(outputs, inputs, strict=True):
            self._check_count("all_gather", slots)
            own = dense(input)
            for slot in slots:
                put(slot, own)
        return self._handle([self._gathered(input) for input in inputs])

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if recorder().platform is None and opts.rootRank != self.rank():
            raise self._absent("scatter", opts.rootRank)
        return super().scatter(outputs, inputs, opts)

    def _compared(self, sent: list[int] | None, received: list[int] | None) -> list[list[int]]:
        """Return the sizes that each member sends: those of this one. Raises ValueError if it expects others."""
        if sent is None or received is None:
            raise ValueError(f"all_to_all: the split sizes are not {self.size()} sizes that add up to their tensor")
        if any(size != sent[self.rank()] for size in received):
            raise ValueError(
                f"all_to_all: rank {self.job.rank} expects parts of {received}, and sends {sent}. In an imagined job "
                f"each rank sends the same, so it would receive parts of {sent[self.rank()]}: sizes that depend on the "
                "data of other ranks cannot be known here. Split evenly while the job is imagined"
            )
        return [sent] * self.size()

    # -- messages and barriers

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int = 0) -> Any:
        """Drop the tensors: nobody receives them."""
        self._check_open()
        return Recorded(tensors)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        raise self._absent("recv", source)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        raise self._absent("recv", None)

    def barrier(self, opts: Any = None) -> Any:
        """Return at once: the other ranks are never late."""
        self._check_open()
        return Recorded([])

    def _start_coalescing(self, device: torch.device) -> None:
        """Do nothing: each call returns a complete handle."""

    def _end_coalescing(self, device: torch.device) -> Any:
        return Recorded([])

    # -- the interface that torch expects of a process group

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def set_timeout(self, timeout: Any) -> None:
        """Do nothing: nothing waits."""

    def shutdown(self) -> None:
        """Do nothing: there are no connections."""

    def _check_open(self) -> None:
        if self.job.ended:
            raise RuntimeError(
                f"this process group belongs to an imagined job of {self.job.size} ranks, whose block has ended. "
                "Models and tensors that use its groups work only inside of the block: create them there"
            )

    def _absent(self, name: str, root: int | None) -> RuntimeError:
        source = "another rank" if root is None else f"rank {self.members[root]}"
        return RuntimeError(
            f"{name} takes the data of {source}, which does not exist in an imagined job: this process is rank "
            f"{self.job.rank} of {self.job.size}, the only one"
            + ("" if root is None else f". Imagine rank {self.members[root]} to have its data")
        )


def create(request: Any) -> ImaginedGroup:
    """Create a process group of the imagined job, as torch's extended backend API requests it."""
    assert JOB is not None
    members = list(request.global_ranks_in_group) or list(range(request.group_size))
    group = ImaginedGroup(JOB, str(request.group_id), members, request.group_rank)
    group.store, group.make = request.store, create
    return group


# -- collectives of ranks that all hold the same


def _rank(members: Sequence[int]) -> int:
    assert JOB is not None
    return members.index(JOB.rank)


def _reduced(x: torch.Tensor, kind: str, count: int) -> torch.Tensor:
    """Return the reduction of `count` equal tensors."""
    if kind == "add":
        return x * count
    return x**count if kind == "mul" else x.clone()


def _all_reduce(x: torch.Tensor, kind: str, group: str, members: Sequence[int], *mesh: Any) -> torch.Tensor:
    return _reduced(x, kind, len(members))


def _all_gather(x: torch.Tensor, group: str, members: Sequence[int], *mesh: Any) -> torch.Tensor:
    return x.unsqueeze(0).repeat(len(members), *[1] * x.dim())


def _reduce_scatter(
    x: torch.Tensor, kind: str, size: Sequence[int], group: str, members: Sequence[int], *mesh: Any
) -> torch.Tensor:
    own = x.reshape(len(members), prod(size))[_rank(members)]
    return _reduced(own, kind, len(members)).reshape(list(size))


def _all_to_all(x: torch.Tensor, group: str, members: Sequence[int], *mesh: Any) -> torch.Tensor:
    count = len(members)
    return x.reshape(count, x.numel() // count)[_rank(members)].repeat(count).reshape(x.shape)


def _broadcast(x: torch.Tensor, root: int, group: str, members: Sequence[int], *mesh: Any) -> torch.Tensor:
    return x.clone()


def _scatter(
    x: torch.Tensor, root: int, size: Sequence[int], group: str, members: Sequence[int], *mesh: Any
) -> torch.Tensor:
    return x.reshape(len(members), prod(size))[_rank(members)].clone().reshape(list(size))


def _own_part(x: torch.Tensor, dim: int, count: int, place: int, among: Sequence[int], *mesh: Any) -> torch.Tensor:
    return x.narrow(dim, place * count, count).clone()


AS_IF_ALL_EQUAL: dict[str, Callable[..., torch.Tensor]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "scatter": _scatter,
}
for _name, _function in (*AS_IF_ALL_EQUAL.items(), ("own_part", _own_part)):
    LIBRARY.impl(_name, _function, "CPU")  # for reads in rehearsals

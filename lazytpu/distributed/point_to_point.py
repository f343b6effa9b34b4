"""What goes through the host, over gloo: messages between two ranks, and barriers.

Ranks call these in orders of their own: a ring of ranks that send first and receive then would wait for ever, if each
message were a program of two devices, which run their programs in the order of the launches.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from lazytpu.distributed.messages import Message
from lazytpu.distributed.work import all_of, on_wait
from lazytpu.distributed.world import World, finish, flush
from lazytpu.frontend.torch_private import CallbackWork


class PointToPoint:
    """The part of a process group that does this. `host` is the gloo group of the same members."""

    world: World
    key: str
    members: list[int]
    host: Any
    works: list[Any] | None

    def _later(self, work: Any) -> Any:
        """A handle; one that is being coalesced is also waited for with the others."""
        if self.works is not None:
            self.works.append(work)
        return work

    @torch.no_grad()
    def send(self, tensors: list[torch.Tensor], destination: int, tag: int = 0) -> Any:
        """Start to send the tensors to a member. Waits until they are computed, and for nothing else: they are read
        before what is pending is cut, so that what they do not need stays behind."""
        copies = [tensor.detach().cpu().contiguous() for tensor in tensors]
        flush()
        return self._later(on_wait(self._message(copies, destination, tag, sends=True), partial(_keep, copies)))

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        """Start to receive from a member; the tensors have the values after the handle's `wait()`."""
        flush()
        copies = _host_copies(tensors)
        message = self._message(copies, source, tag, sends=False)
        return self._later(on_wait(message, partial(_fill, tensors, copies)))

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        """The same from whoever sends first."""
        flush()
        copies = _host_copies(tensors)
        message = self._message(copies, None, tag, sends=False)
        return self._later(on_wait(message, partial(_fill, tensors, copies)))

    def _message(self, copies: list[torch.Tensor], other: int | None, tag: int, sends: bool) -> Message:
        def begin(other: int | None) -> Any:
            if other is None:
                return self.host.recv_anysource(copies, tag)
            return (self.host.send if sends else self.host.recv)(copies, other, tag)

        return Message(self.world, self.key, self.members, other, begin).start(copies, tag, sends)

    def barrier(self, opts: Any = None) -> Any:
        """Wait until all members are here, who then have posted their collectives of this group. Who does not come is
        named, and so is what failed in the group."""
        flush()
        coming = self.world.meeting("barriers", self.key, self.members, "barrier")

        def wait(timeout: Any) -> bool:
            coming.meet()
            if self.world.control.why_broken(self.key) is not None:
                finish()
            return True

        return CallbackWork(wait)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """The same, naming the members that do not come."""
        flush()
        self.host.monitored_barrier(timeout, wait_all_ranks)

    def _start_coalescing(self, device: torch.device) -> None:
        self.works = []

    def _end_coalescing(self, device: torch.device) -> Any:
        works, self.works = self.works or [], None
        return all_of(works, [])


def _host_copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """CPU tensors of the same shapes, whose contents do not matter."""
    return [torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu") for tensor in tensors]


def _keep(*held: Any) -> None:
    """Nothing: what is sent has to live until it is sent."""


@torch.no_grad()
def _fill(tensors: list[torch.Tensor], copies: list[torch.Tensor], *held: Any) -> None:
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.detach().copy_(copy)

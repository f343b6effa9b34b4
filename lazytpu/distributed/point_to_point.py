"""Messages between two ranks, and barriers. They go through the host, over gloo.

Devices run programs in launch order, and ranks call sends and receives in different orders. If each message were a
program of two devices, a ring of ranks that send first and then receive would deadlock.
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
    """The methods of a process group for messages and barriers. `host` is the gloo group of the same members."""

    world: World
    key: str
    members: list[int]
    host: Any
    works: list[Any] | None

    def _later(self, work: Any) -> Any:
        """Return the handle, which also joins the group of calls that are being coalesced."""
        if self.works is not None:
            self.works.append(work)
        return work

    @torch.no_grad()
    def send(self, tensors: list[torch.Tensor], destination: int, tag: int = 0) -> Any:
        """Start to send the tensors to a member. Waits only until the tensors are computed.

        They are read before pending collectives are cut, so that only the ops that they need run here.
        """
        copies = [tensor.detach().cpu().contiguous() for tensor in tensors]
        flush()
        return self._later(on_wait(self._message(copies, destination, tag, sends=True), partial(_keep, copies)))

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        """Start to receive from a member. The tensors have the received values after the handle's `wait()`."""
        flush()
        copies = _host_copies(tensors)
        message = self._message(copies, source, tag, sends=False)
        return self._later(on_wait(message, partial(_fill, tensors, copies)))

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        """Start to receive from any member, whichever sends first."""
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
        """Wait until all members have called it; they have posted their earlier collectives of this group then.

        Raises CollectiveError, naming late members, and any failure in the group.
        """
        flush()
        meeting = self.world.meeting("barriers", self.key, self.members, "barrier")

        def wait(timeout: Any) -> bool:
            meeting.meet()
            if self.world.control.why_broken(self.key) is not None:
                finish()
            return True

        return CallbackWork(wait)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until all members have called it; the error names the members that have not."""
        flush()
        self.host.monitored_barrier(timeout, wait_all_ranks)

    def _start_coalescing(self, device: torch.device) -> None:
        self.works = []

    def _end_coalescing(self, device: torch.device) -> Any:
        works, self.works = self.works or [], None
        return all_of(works, [])


def _host_copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return uninitialized CPU tensors of the same shapes and dtypes."""
    return [torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu") for tensor in tensors]


def _keep(*tensors: Any) -> None:
    """Do nothing. Holding the arguments keeps the sent tensors alive until they are sent."""


@torch.no_grad()
def _fill(tensors: list[torch.Tensor], copies: list[torch.Tensor], *unused: Any) -> None:
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.detach().copy_(copy)

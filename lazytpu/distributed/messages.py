"""One end of a message between two ranks, which gloo carries when both are there.

Gloo compares nothing: it takes a smaller message, or one of another dtype, for what was expected, and a larger one ends
the process. So each end tells the helper what it sends or expects, and gloo starts when the helper knows of both: on
the thread that listens to it, since the caller may be doing something else that others wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from lazytpu.distributed.control import SETTLING, CollectiveError
from lazytpu.distributed.work import NO_TIMEOUT
from lazytpu.distributed.world import World
from lazytpu.frontend.lines import call_site
from lazytpu.interrupts import interruptible
from lazytpu.options import options

ANSWER = 5.0  # seconds in which the helper has to say that the other end did not come, and where it is


class Message:
    """A message of a member of the group `key` of ranks `members`. Its other end is a member's number, or None for
    anyone who sends; `begin` starts gloo's work with that."""

    def __init__(self, world: World, key: str, members: list[int], other: int | None, begin: Callable[[Any], Any]):
        self.world = world
        self.key = key
        self.members = members
        self.other = other
        self._begin = begin
        self._work: Any = None
        self._error: Exception | None = None
        self._known = threading.Event()  # that the other end is there, or that it will never be

    def start(self, tensors: list[torch.Tensor], tag: int, sends: bool) -> Message:
        """Tell the helper of it; without comparison, begin."""
        peer = "anyone" if self.other is None else f"rank {self.members[self.other]}"
        shapes, sizes = (", ".join(map(how, tensors)) for how in (_shape, _size))
        what = f"send {shapes} to {peer}" if sends else f"recv {shapes} from {peer}"
        flight, number = self.world.flight, next(self.world.messages)
        self.entry = flight.post(f"messages of {self.key}", str(call_site()), number, what, ())
        if options.collectives == "trusted":
            self._begun(self.other)
            return self
        self.world.control.mail(
            number,
            self._told,
            group=self.key,
            tag=tag,
            other=None if self.other is None else self.members[self.other],
            sends=sends,
            what=sizes,
            shown=f"{shapes} at {self.entry.line}",
        )
        return self

    def _told(self, rank: int, text: str) -> None:
        if text:
            self._error = CollectiveError(text)
            self._known.set()
        else:
            self._begun(self.members.index(rank))

    def _begun(self, other: int | None) -> None:
        self.entry.reached()
        try:
            self._work = self._begin(other)
        except Exception as error:  # noqa: BLE001  (raised where it is waited for)
            self._error = error
        self.entry.reached()
        self._known.set()

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until it has been sent or received.

        Raises CollectiveError when the other end is something else, is gone, or does not come in time.
        """
        seconds = timeout.total_seconds() or self.world.seconds[self.key]
        try:
            if not self._is_known(seconds):
                self.world.control.withdraw(self.entry.number or 0, seconds)
                if not self._is_known(ANSWER):
                    raise CollectiveError(f"the helper process of this job does not answer after {seconds:g} s")
            if self._error is not None:
                raise self._error
            self._work.wait(timeout) if timeout > NO_TIMEOUT else self._work.wait()
        except RuntimeError as error:
            self.entry.failed = True
            self.world.watch.dump(self.entry.group, str(error))
            text = str(error)
            if "gloo" in text.lower() and (gone := self.world.control.why_soon(f"start of {self.key}", SETTLING)):
                text = f"{gone}\n({text})"
            raise CollectiveError(f"{self.entry.signature} at {self.entry.line}: {text}") from error
        self.entry.reached()
        return True

    @interruptible
    def _is_known(self, seconds: float) -> bool:
        return self._known.wait(seconds)

    def _source_rank(self) -> int:
        return self._work._source_rank()


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _size(tensor: torch.Tensor) -> str:
    """What gloo needs to be equal."""
    return f"{tensor.dtype} {tensor.numel()}"

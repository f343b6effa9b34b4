"""One end of a message between two ranks, which gloo transfers once both ends are announced.

Gloo compares nothing: it accepts a smaller message or another dtype, and a larger message aborts the process. So each
end is announced to the helper. Gloo starts when the helper has matched both, on the thread that listens to the helper,
since the caller may be busy with something that other ranks wait for.
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

ANSWER = 5.0  # seconds in which the helper has to answer a `withdraw`


class Message:
    """A message of the group `key` with the ranks `members`.

    `other` is the member index of the other end; None accepts any sender. `begin` starts gloo's work with this index.
    """

    def __init__(self, world: World, key: str, members: list[int], other: int | None, begin: Callable[[Any], Any]):
        self.world = world
        self.key = key
        self.members = members
        self.other = other
        self._begin = begin
        self._work: Any = None
        self._error: Exception | None = None
        self._known = threading.Event()  # the other end is announced, or will never be

    def start(self, tensors: list[torch.Tensor], tag: int, sends: bool) -> Message:
        """Announce this end to the helper. With `collectives="trusted"`, start at once."""
        peer = "anyone" if self.other is None else f"rank {self.members[self.other]}"
        shapes, sizes = (", ".join(map(format, tensors)) for format in (_shape, _size))
        call = f"send {shapes} to {peer}" if sends else f"recv {shapes} from {peer}"
        flight, number = self.world.flight, next(self.world.messages)
        self.entry = flight.post(f"messages of {self.key}", str(call_site()), number, call, ())
        if options.collectives == "trusted":
            self._begun(self.other)
            return self
        self.world.control.mail(
            number,
            self._matched,
            group=self.key,
            tag=tag,
            other=None if self.other is None else self.members[self.other],
            sends=sends,
            what=sizes,
            shown=f"{shapes} at {self.entry.line}",
        )
        return self

    def _matched(self, rank: int, text: str) -> None:
        if text:
            self._error = CollectiveError(text)
            self._known.set()
        else:
            self._begun(self.members.index(rank))

    def _begun(self, other: int | None) -> None:
        self.entry.reached()
        try:
            self._work = self._begin(other)
        except Exception as error:  # noqa: BLE001 (re-raised by wait)
            self._error = error
        self.entry.reached()
        self._known.set()

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the message has been sent or received.

        Raises CollectiveError when the other end does not match, is lost, or does not arrive in time.
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
            if "gloo" in text.lower() and (lost := self.world.control.why_soon(f"start of {self.key}", SETTLING)):
                text = f"{lost}\n({text})"
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
    """Return the properties that gloo needs to be equal: dtype and element count."""
    return f"{tensor.dtype} {tensor.numel()}"

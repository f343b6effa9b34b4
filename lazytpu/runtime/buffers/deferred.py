"""Deferred buffers: the memory of a value whose program waits to be launched."""

from __future__ import annotations

from typing import Any, Protocol

from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.kept import KeptBuffer

# The slots of a buffer, which the properties below hide.
_ARRAY: Any = Buffer.__dict__["array"]
_OUTCOME: Any = Buffer.__dict__["outcome"]
_ERROR: Any = Buffer.__dict__["error"]


class Waiting(Protocol):
    """The launcher of the program."""

    def wait_for(self, buffer: DeferredBuffer) -> None:
        """Wait until a buffer is kept or failed."""
        ...


class Failure(Protocol):
    """The reason a value was never computed."""

    def told(self) -> BaseException:
        """Return the error for the caller to raise, and note that the user has seen it."""
        ...


class DeferredBuffer(Buffer):
    """A buffer whose `array` and `outcome` block until the program that computes it is launched. `keep` turns it into a
    plain `Buffer`. After `fail`, both are None and `error` gives the reason.

    Until then it occupies no memory and counts as none.
    """

    __slots__ = ()

    def __init__(self, launcher: Waiting) -> None:
        _ARRAY.__set__(self, None)
        _OUTCOME.__set__(self, None)
        _ERROR.__set__(self, (launcher,))  # the launcher in a tuple while waiting, then None or a Failure
        self.nbytes = 0
        self.origin = None
        self.pins = 0

    def keep(self, made: Buffer) -> None:
        """Become the buffer `made`, to which no other reference may exist; a plain copy if `made` is a `KeptBuffer`."""
        array = made.array
        nbytes = made.plain_nbytes if isinstance(made, KeptBuffer) else made.nbytes
        made.release()
        self.origin = made.origin
        _OUTCOME.__set__(self, made.outcome)
        _ARRAY.__set__(self, array)
        _ERROR.__set__(self, None)  # last, since it ends the wait: another thread may read the buffer at any time
        self.__class__ = Buffer  # pyright: ignore[reportAttributeAccessIssue]  # both have the same slots
        self.count(nbytes)

    def fail(self, failure: Failure) -> None:
        """Record that the value is never computed."""
        _ERROR.__set__(self, failure)

    def gone(self) -> bool:
        """Whether the value is known never to be computed. Unlike a read of `array`, this does not block."""
        return not is_waiting(self) and Buffer.gone(self)  # no super(): it may become a plain one at any time

    def taken(self) -> bool:
        """Whether a failed run has consumed the array. A deferred run has consumed nothing."""
        return not is_waiting(self) and Buffer.taken(self)

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The array, after waiting for it. None if the run failed."""
        _wait(self)
        return _ARRAY.__get__(self)

    @property
    def outcome(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The state of the run, after waiting for its launch. None if it failed."""
        _wait(self)
        return _OUTCOME.__get__(self)

    @property
    def error(self) -> BaseException | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The reason the value is never computed, if that is known already."""
        failure = failure_of(self)
        return None if failure is None else failure.told()


def _wait(buffer: DeferredBuffer) -> None:
    """Wait until a buffer is kept or failed. A function, since the buffer's class may change between a property's
    look-up and this call."""
    waiting = _ERROR.__get__(buffer)
    if type(waiting) is tuple:
        waiting[0].wait_for(buffer)


def is_waiting(buffer: Buffer) -> bool:
    """Whether a deferred buffer is neither kept nor failed."""
    return type(_ERROR.__get__(buffer)) is tuple


def failure_of(buffer: Any) -> Any:
    """Return the `Failure` of a deferred buffer, or None, without marking it as seen by the user."""
    failure = _ERROR.__get__(buffer) if type(buffer) is DeferredBuffer else None
    return None if type(failure) is tuple else failure

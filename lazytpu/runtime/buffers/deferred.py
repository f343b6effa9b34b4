"""The memory of a value whose program waits to be launched."""

from __future__ import annotations

from typing import Any, Protocol

from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.kept import KeptBuffer

# The slots of a buffer, which the properties below hide.
_ARRAY: Any = Buffer.__dict__["array"]
_OUTCOME: Any = Buffer.__dict__["outcome"]
_ERROR: Any = Buffer.__dict__["error"]


class Waiting(Protocol):
    """What launches the program."""

    def wait_for(self, buffer: DeferredBuffer) -> None:
        """Wait until a buffer is kept or failed."""
        ...


class Failure(Protocol):
    """Why a value was never computed."""

    def told(self) -> BaseException:
        """The error, which whoever asks is going to raise."""
        ...


class DeferredBuffer(Buffer):
    """A buffer like any other, but that whoever asks for its `array` or `outcome` waits until it has them. From then on
    it is a plain `Buffer`. If it `fail`s it never has them, and its `error` says why.

    Until then it takes no memory, and counts as none.
    """

    __slots__ = ()

    def __init__(self, launcher: Waiting) -> None:
        _ARRAY.__set__(self, None)
        _OUTCOME.__set__(self, None)
        _ERROR.__set__(self, (launcher,))  # that, or a Failure
        self.nbytes = 0
        self.origin = None
        self.pins = 0

    def keep(self, made: Buffer) -> None:
        """Become the buffer `made`, which nothing else has; a plain copy of it if it is of another kind."""
        array = made.array
        nbytes = made.plain_nbytes if isinstance(made, KeptBuffer) else made.nbytes
        made.release()
        self.origin = made.origin
        _OUTCOME.__set__(self, made.outcome)
        _ARRAY.__set__(self, array)
        _ERROR.__set__(self, None)  # now it does not wait: another thread may ask at any time
        self.__class__ = Buffer  # pyright: ignore[reportAttributeAccessIssue]  # both have the same slots
        self.count(nbytes)

    def fail(self, failure: Failure) -> None:
        """It is never computed."""
        _ERROR.__set__(self, failure)

    def gone(self) -> bool:
        """Whether it is known that it is never computed. This waits for nothing, unlike what asks for the array."""
        return not is_waiting(self) and Buffer.gone(self)  # no super(): it may become a plain one at any time

    def taken(self) -> bool:
        """A run that waits has taken nothing."""
        return not is_waiting(self) and Buffer.taken(self)

    @property
    def array(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Waits for it. None if it failed."""
        _wait(self)
        return _ARRAY.__get__(self)

    @property
    def outcome(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Waits for it. None if it failed."""
        _wait(self)
        return _OUTCOME.__get__(self)

    @property
    def error(self) -> BaseException | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Why it is never computed, if that is known already."""
        failure = failure_of(self)
        return None if failure is None else failure.told()


def _wait(buffer: DeferredBuffer) -> None:
    """Wait until a buffer is kept or failed. No method: its class may change between a property's look-up and this."""
    held = _ERROR.__get__(buffer)
    if type(held) is tuple:
        held[0].wait_for(buffer)


def is_waiting(buffer: Buffer) -> bool:
    """Whether a deferred buffer is neither kept nor failed."""
    return type(_ERROR.__get__(buffer)) is tuple


def failure_of(buffer: Any) -> Any:
    """Why a deferred buffer is never computed, if that is known already. This tells nobody."""
    held = _ERROR.__get__(buffer) if type(buffer) is DeferredBuffer else None
    return None if type(held) is tuple else held

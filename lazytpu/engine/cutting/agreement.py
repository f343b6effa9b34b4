"""How the processes of a job make sure that they launch the same collectives in one order (R8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that is about to be launched: its `group` and the processes in it, what it does with what
    (`signature`, equal on all members), and the user's line."""

    group: str
    members: tuple[int, ...]
    signature: str
    line: str


class Turn(Protocol):
    """One collective that is about to be launched."""

    def wait(self) -> None:
        """Wait until the others will launch the same. Raises an error when they will not."""
        ...

    def launched(self, status: Any) -> None:
        """It was launched; the array `status` is there when it is done."""
        ...

    def is_awaited(self) -> bool:
        """Whether the script has waited for it: then the others come to it whatever the script does next."""
        ...


class Agreement(Protocol):
    """How the processes make sure that they are about to launch the same collectives."""

    def post(self, calls: Sequence[Call]) -> Sequence[Turn]:
        """Tell the others what this process launches next, without waiting."""
        ...

    def is_awaited(self, groups: Iterable[str]) -> bool:
        """Whether the script has waited for all collectives of these groups."""
        ...

    def rehearsed(self, groups: Sequence[str]) -> None:
        """The collectives recorded last, of these groups, will never be launched."""
        ...

    def lost(self, groups: Mapping[str, Sequence[int]], error: BaseException) -> None:
        """A trace with collectives of these groups, given with their members, has failed: those that were not launched
        never will be."""
        ...


class Alone(Agreement):
    """There are no other processes."""

    def post(self, calls: Sequence[Call]) -> Sequence[Turn]:
        raise AssertionError(f"a collective outside of a process group: {calls[0]}")

    def is_awaited(self, groups: Iterable[str]) -> bool:
        return True

    def rehearsed(self, groups: Sequence[str]) -> None:
        """There is nobody who counts them."""

    def lost(self, groups: Mapping[str, Sequence[int]], error: BaseException) -> None:
        """There is nobody to tell."""

"""How the processes of a job ensure that all launch the same collectives in the same order (R8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that is about to be launched.

    `group` is its process group and `members` the ranks in it. `signature` describes the operation and its operand, and
    is equal on all members. `line` is the user's source line.
    """

    group: str
    members: tuple[int, ...]
    signature: str
    line: str


@dataclass(frozen=True, slots=True)
class Mark:
    """How a rank can run a cut with collectives.

    `digest` is that of the program with which it can launch all of them; empty if it has none. `about` describes the
    cut, for a rank that has a program while the others differ; empty unless they may.
    """

    digest: str = ""
    about: str = ""


NO_MARK = Mark()

Split = Sequence[tuple[int, str, bool]]
"""Why a cut is not whole: ranks, what each says about its cut, and whether it has a program."""


class Turn(Protocol):
    """The ticket of one collective that is about to be launched. `members` are the ranks in it."""

    @property
    def members(self) -> tuple[int, ...]: ...

    def wait(self) -> None:
        """Wait until the other ranks are about to launch the same collective. Raise an error if they will not."""
        ...

    def is_whole(self) -> bool:
        """Wait until the other ranks have posted this collective, the first of a marked cut. Return whether all ranks
        launch the cut as one program. Raise an error if they will not post it."""
        ...

    def split(self) -> Split:
        """Return why the cut is not whole, after `is_whole`; empty if that is unknown."""
        ...

    def launched(self, status: Any) -> None:
        """Note that the collective was launched. The array `status` is ready when the collective has finished."""
        ...

    def is_awaited(self) -> bool:
        """Return whether the script has waited for this collective. If so, the other ranks reach it whatever the script
        does next."""
        ...


class Agreement(Protocol):
    """Compares the collectives of the ranks before they are launched."""

    def post(self, calls: Sequence[Call], mark: Mark = NO_MARK) -> Sequence[Turn]:
        """Announce to the other ranks which collectives this rank launches next, without waiting. Return a ticket for
        each.

        With the digest of a `mark` this rank can launch them as one program. It does so if all members post equal ones.
        """
        ...

    def posted(self, group: str) -> int:
        """Return how many collectives of a group this rank has posted; ranks at the same collective are at the same
        number."""
        ...

    def mesh_of(self, members: Sequence[int]) -> tuple[Sequence[int], Sequence[int]] | None:
        """Return the sizes of a mesh of all ranks of the job, major first, and the axes of it along which `members`
        lie, the last of which varies fastest. None if they lie along no axes."""
        ...

    def is_awaited(self, groups: Iterable[str]) -> bool:
        """Return whether the script has waited for all collectives of these groups."""
        ...

    def rehearsed(self, groups: Sequence[str]) -> None:
        """Note that the most recently recorded collectives, of these groups, will never be launched."""
        ...

    def lost(self, groups: Mapping[str, Sequence[int]], error: BaseException) -> None:
        """Note that a trace with collectives has failed, so that those not launched yet never will be.

        `groups` maps the groups of the trace's collectives to their members.
        """
        ...


class Alone(Agreement):
    """The agreement of a process without peers."""

    def post(self, calls: Sequence[Call], mark: Mark = NO_MARK) -> Sequence[Turn]:
        raise AssertionError(f"a collective outside of a process group: {calls[0]}")

    def posted(self, group: str) -> int:
        return 0

    def mesh_of(self, members: Sequence[int]) -> tuple[Sequence[int], Sequence[int]] | None:
        return None

    def is_awaited(self, groups: Iterable[str]) -> bool:
        return True

    def rehearsed(self, groups: Sequence[str]) -> None:
        """Do nothing: no other rank counts collectives."""

    def lost(self, groups: Mapping[str, Sequence[int]], error: BaseException) -> None:
        """Do nothing: there is no rank to notify."""

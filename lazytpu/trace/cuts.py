"""Why traces are cut: a cause is one of these constants, and a place in the user's program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

READ: Final = "host read"
STEP: Final = "optimizer.step()"
MARK: Final = "mark_step()"
SYNC: Final = "synchronize()"
BEGIN: Final = "step begins"
BLOCK: Final = "repeated block"
LIMIT: Final = "size limit"
IDLE: Final = "device idle"
THREAD: Final = "another thread reads"
MODE: Final = "mode changed"

KEPT: Final = 64  # cuts that a recorder remembers


@dataclass(frozen=True, slots=True)
class Cut:
    """One cut: its `cause`, the `place` in the user's program (None when no frame of it was there), the ops that `ran`,
    and those that were `left` pending."""

    cause: str
    place: Any
    ran: int
    left: int

    def __str__(self) -> str:
        where = "" if self.place is None else f" at {self.place}, {self.place.text()!r}"
        left = f", {self.left} left pending" if self.left else ""
        return f"{self.cause}{where}: {self.ran} {'op' if self.ran == 1 else 'ops'} ran{left}"


class Cuts(tuple[Cut, ...]):
    """Cuts, oldest first; as text, one a line."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no cuts"

    __repr__ = __str__

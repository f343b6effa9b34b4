"""The captured state of a function: the variables of its closure, the globals that it reads, its defaults, the object
it is bound to, and their contents.

Captured state is part of a kernel like its static arguments: a change makes another kernel. A function that changes it
while it is traced has a side effect.

No bytecode is analyzed. A code object lists the names that it loads, globals and attributes together. So the capture is
larger than the reads of one call, which costs at worst an additional trace:

1. A function captures its cells, its defaults, and the globals with a listed name. So do the functions it captures.
2. Of an object, every attribute counts that is plain or a container, recursively. Another object in it counts if its
   name is listed, or if the code reads attributes by computed names.
3. Of a class, attributes count by the same rule, and functions count if their name is listed or special. Of a module,
   only listed names count. Python's own library, jax, numpy and torch do not change.
4. An object whose state Python does not show (an iterator, a generator of random numbers, a weak reference) refuses the
   kernel.

The walk is slow. So it records its reads, and the next call repeats only these: while each returns the same object, the
key is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lazytpu.frontend.recording.keys import exact
from lazytpu.kernels import errors
from lazytpu.kernels.capture_reads import Reads
from lazytpu.kernels.capture_walk import PLAIN, Walk


class Captured:
    """The captured variables of a function."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function = function
        self.name = name
        self._names = frozenset[str]()
        self._last: tuple[Reads, tuple[Any, ...]] | None = None

    def now(self, arguments: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the current captured values as part of a key. Numbers, strings, containers and numpy arrays count by
        contents; objects count by identity and by contents. The contents of `arguments` count as well. Raises TypeError
        for a value that cannot be compared."""
        last = self._last
        if last is not None and not arguments and last[0].same():
            return last[1]
        walk = self._walk(arguments)
        key = tuple([(name, key) for (_, name), (_, key) in walk.variables.items()])
        if not arguments:
            self._last = walk.reads, key
        return key

    @contextmanager
    def unchanged(self, name: str) -> Generator[None]:
        """Raise RuntimeError when the block assigns a captured variable. Additions to a container go unnoticed."""
        before = self._assigned()
        yield
        after = self._assigned()
        changed = [key[1] for key, value in before.items() if after.get(key, value) != value]
        if changed:
            raise errors.side_effect(name, f"it changes {', '.join(changed)}")

    def _assigned(self) -> Mapping[tuple[int, str], Any]:
        pairs = self._walk().variables.items()
        return {where: exact(value) if isinstance(value, PLAIN) else Same(value) for where, (value, _) in pairs}

    def _walk(self, arguments: Sequence[Any] = ()) -> Walk:
        """Walk until all names that the code lists are known."""
        while True:
            walk = Walk(self._names, Same, lambda description: errors.opaque(self.name, description))
            try:
                walk.function(self.function)
                for index, argument in enumerate(arguments):
                    walk.note(-index, "an argument", argument)
            except RecursionError:
                raise errors.opaque(self.name, "objects that are nested too deep") from None
            if walk.names <= self._names:
                return walk
            self._names |= walk.names  # the new names may lead to further variables


@dataclass(frozen=True, eq=False)
class Same:
    """An object that is equal only to itself. It is kept alive, so that no other object gets its address."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

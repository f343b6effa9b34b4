"""Verifies a bucket's program at each size before it serves it, and drops one that is wrong."""

from __future__ import annotations

import threading
from functools import partial

from lazytpu.collection import no_collection
from lazytpu.engine.launching.binding import Binding
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.recompiles.history import Recompiles
from lazytpu.engine.recompiles.reasons import dropped
from lazytpu.engine.recompiles.wording import program_name
from lazytpu.engine.sizes.expressions import Verified
from lazytpu.engine.sizes.templates import OneSize, Sized
from lazytpu.engine.trace_cache import lookup
from lazytpu.inspection.graphs import GRAPHS
from lazytpu.trace.recorder import Trace

MOST_WRONG = 2
"Programs of a bucket that are dropped before it is refused."


class Wrong(OneSize):
    """A program for many sizes does not compute what a trace does. The message names the size, the op and its line."""


class Verifier:
    """Keeps this invariant: a program of a bucket runs at a size only if `padding.verified` has the size.

    1. Whoever binds a program to a trace calls `verify` first. A trace's plan then keeps the bound program, so a hit
       does nothing here.
    2. Sizes are added where the import of a trace of these sizes was equal to the program's expressions: here, or
       when the program was made (`padded`).
    3. The trace index keeps the sizes with the expressions that they were compared with.
    """

    def __init__(self, recompiles: Recompiles, preparing: threading.RLock):
        self._recompiles = recompiles
        self._preparing = preparing
        self._unsaved: dict[Verified, None] = {}

    def verify(self, shared: Compiled, sized: Sized) -> None:
        """Compare a program of a bucket with a trace, unless that was done for its sizes. Raises OneSize."""
        padding = shared.binding.padding
        assert padding is not None
        verified, at = padding.verified, tuple([sized.sizes[name] for name in padding.symbols])
        if at in verified.sizes:
            return
        from lazytpu.engine.sizes.verification import verify  # here: it loads xDSL and every rule

        with self._preparing, no_collection():
            verified.sizes[at] = verify(shared.binding, sized)
        if verified.save is None:  # the whole program is not compiled yet
            return
        self._unsaved[verified] = None
        if len(verified.sizes) >= 2 * verified.saved:  # so that a thousand sizes are written ten times
            self._save(verified)

    def drop(
        self, shared: Compiled, sized: Sized, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...], error: OneSize
    ) -> Wrong:
        """Forget a program of a bucket that differs from a trace. The next one is made to fit this trace, too; a bucket
        whose programs were wrong several times has none. Returns the error that says so."""
        bucket, padding = sized.bucket, shared.binding.padding
        assert padding is not None
        padding.verified.wrong = True
        self._unsaved.pop(padding.verified, None)
        if padding.verified.content is not None:
            lookup.forget(padding.verified.content)
        programs, jobs = bucket.plan.programs, bucket.plan.jobs
        for key in [key for key, program in list(programs.items()) if program.binding.padding is padding]:
            programs.pop(key, None)
        jobs[:] = [job for job in jobs if job.meanwhile is not shared]
        bucket.wrong.append(sized)
        wrong = Wrong(f"the one for many sizes was dropped, as it is not this program: {error}")
        if len(bucket.wrong) > MOST_WRONG:
            bucket.refused[live] = str(wrong)
        records = sized.records
        with self._recompiles.making(
            len(GRAPHS), program_name(records), trace, records, live, dead, partial(dropped, str(wrong))
        ) as making:
            making.entry.notes, making.entry.source = (sized.text, str(wrong)), "refused"
        return wrong

    def keep(self, content: str | None, key: str, binding: Binding, name: str, records: int) -> None:
        """The trace index has a program: write the sizes that it will be verified at there, too."""
        if content is not None and binding.padding is not None:
            verified = binding.padding.verified
            verified.content = content
            verified.save = partial(lookup.note, content, key, binding, name, records, again=True)

    def close(self, end: float) -> bool:
        """At the end of the process: write what was verified since the last time. Returns True, as it is done."""
        for verified in list(self._unsaved):
            self._save(verified)
        return True

    def _save(self, verified: Verified) -> None:
        self._unsaved.pop(verified, None)
        if verified.save is not None and not verified.wrong:
            verified.saved = len(verified.sizes)
            verified.save()

"""Decides whether a bucket's program serves a size, and drops one that is wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from lazytpu.collection import no_collection
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.recompiles.history import Recompiles
from lazytpu.engine.recompiles.reasons import dropped
from lazytpu.engine.recompiles.wording import program_name
from lazytpu.engine.sizes.templates import OneSize, Sized
from lazytpu.inspection.graphs import GRAPHS
from lazytpu.options import options
from lazytpu.trace.recorder import Trace


class Unserved(OneSize):
    """A guard of a bucket's program does not hold at the sizes of a trace, which has an exact program. The bucket goes
    on."""


class Wrong(OneSize):
    """A program for many sizes does not compute what a trace does. The message names the size, the op and its line."""


class Verifier:
    """Keeps two invariants for whoever binds a program to a trace. A hit finds the bound program and does nothing here.

    1. A program of a bucket runs at a size only if its guards hold there.
    2. With `options.verify_sizes`, it runs at a size only if the import of the trace was equal to its expressions.
    """

    def __init__(self, recompiles: Callable[[], Recompiles], preparing: threading.RLock):
        self._recompiles = recompiles
        self._preparing = preparing

    def verify(self, shared: Compiled, sized: Sized) -> None:
        """Check the guards of a program at the sizes of a trace, and compare it with the trace if that is asked for.
        Raises OneSize."""
        padding = shared.binding.padding
        assert padding is not None
        failing = padding.expressions.failing(sized.sizes)
        if failing is not None:
            at = ", ".join(f"{name} = {size}" for name, size in sized.sizes.items())
            raise Unserved(f"the one for many sizes holds where {failing}, which is not so at {at}")
        at = tuple([sized.sizes[name] for name in padding.symbols])
        if options.verify_sizes and at not in padding.verified:
            from lazytpu.engine.sizes.verification import verify  # here: it loads xDSL and every rule

            with self._preparing, no_collection():
                verify(shared.binding, sized)
            padding.verified.add(at)

    def drop(
        self, shared: Compiled, sized: Sized, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...], error: OneSize
    ) -> Wrong:
        """Forget the programs of a bucket, which differ from a trace, and refuse further ones. Returns the error that
        says so."""
        bucket, padding = sized.bucket, shared.binding.padding
        programs, jobs = bucket.plan.programs, bucket.plan.jobs
        for key in [key for key, program in list(programs.items()) if program.binding.padding is padding]:
            programs.pop(key, None)
        jobs[:] = [job for job in jobs if job.meanwhile is not shared]
        wrong = Wrong(f"the one for many sizes was dropped, as it is not this program: {error}")
        bucket.refused[live] = str(wrong)
        records = sized.records
        with self._recompiles().making(
            len(GRAPHS), program_name(records), trace, records, live, dead, partial(dropped, str(wrong))
        ) as making:
            making.entry.notes, making.entry.source = (sized.text, str(wrong)), "refused"
        return wrong

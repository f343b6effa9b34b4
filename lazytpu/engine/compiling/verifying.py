"""The check that a bucket's program serves a size, and the removal of wrong programs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from lazytpu.collection import no_collection
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.recompiles.history import Recompiles
from lazytpu.engine.recompiles.reasons import dropped
from lazytpu.engine.recompiles.wording import program_name
from lazytpu.engine.sizes.buckets import OneSize
from lazytpu.engine.sizes.templates import Sized
from lazytpu.inspection.graphs import GRAPHS
from lazytpu.options import options
from lazytpu.trace.pending import Trace


class Verifier:
    """Keeps two invariants for code that binds programs to traces. A hit finds the bound program and does nothing here.

    1. A program of a bucket runs at a size only if its guards hold there.
    2. With `options.verify_sizes`, it runs at a size only if the import of the trace agreed with its expressions.
    """

    def __init__(self, recompiles: Callable[[], Recompiles], preparing: threading.RLock):
        self._recompiles = recompiles
        self._preparing = preparing

    def verify(self, shared: Compiled, sized: Sized) -> bool:
        """Return whether a program's guards hold at the sizes of a trace; if not, the trace needs an exact program.

        With `options.verify_sizes`, also compare the program with the trace, and raise OneSize if they differ.
        """
        padding = shared.binding.padding
        assert padding is not None
        if (failing := padding.expressions.failing(sized.sizes)) is not None:
            for making in sized.bucket.makings:
                making.limit(f"it serves the sizes where {failing}")
            return False
        at = tuple([sized.sizes[name] for name in padding.symbols])
        if options.verify_sizes and at not in padding.verified:
            from lazytpu.engine.sizes.verification import verify  # here: it loads xDSL and every rule

            with self._preparing, no_collection():
                verify(shared.binding, sized)
            padding.verified.add(at)
        return True

    def drop(
        self, shared: Compiled, sized: Sized, trace: Trace, live: tuple[int, ...], dead: tuple[int, ...], error: OneSize
    ) -> None:
        """Remove the programs of a bucket that differ from a trace by this error, and refuse further ones."""
        bucket, padding = sized.bucket, shared.binding.padding
        programs, jobs = bucket.plan.programs, bucket.plan.jobs
        for key in [key for key, program in list(programs.items()) if program.binding.padding is padding]:
            programs.pop(key, None)
        jobs[:] = [job for job in jobs if job.meanwhile is not shared]
        bucket.refused[live] = text = f"the one for many sizes was dropped, as it is not this program: {error}"
        records = sized.records
        with self._recompiles().making(
            len(GRAPHS), program_name(records), trace, records, live, dead, partial(dropped, text)
        ) as making:
            making.entry.notes, making.entry.source = (sized.text, text), "refused"

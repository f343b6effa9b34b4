"""Compilation on threads of its own: a step whose program takes long to compile runs op by op until it is there.

A cut that misses waits for its program as long as `options.background_compile` says, so small programs are simply
compiled. What takes longer goes on compiling while the script goes on, and the first cut after that uses it. With
`options.clusters` at "meanwhile" a large step is first compiled in parts, which run until then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from lazytpu.engine.compiling.compiler import Prepared
from lazytpu.engine.compiling.progress import QUIET, Progress, say
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.interrupts import Interrupted, interruptible
from lazytpu.options import options
from lazytpu.runtime.compiling import elsewhere
from lazytpu.runtime.compiling.elsewhere import Ticket
from lazytpu.trace.trie import CutPlan
from lazytpu.trace.value import again

AT_ONCE = 2  # programs that XLA compiles at a time: each takes all cores for part of its time, and much memory


class Job:
    """A program that a thread compiles. Once `done`, it is `compiled`, or `error` says why not.

    It computes the slots `live` of its plan and takes the memory of the inputs `donated`. `what` names it. `late` says
    that a cut went on without it. `meanwhile` is the same program in parts, if it was taken apart and they are
    compiled: `usable` is set from then on, and also when the whole is done. `ticket` is that of the helper process, if
    it compiles the program.
    """

    __slots__ = (
        "began",
        "compiled",
        "donated",
        "done",
        "error",
        "late",
        "live",
        "meanwhile",
        "number",
        "thread",
        "ticket",
        "usable",
        "what",
    )

    def __init__(self, prepared: Prepared):
        self.live, self.donated = prepared.binding.live, prepared.binding.donated
        self.number = prepared.number
        self.what = f"program {prepared.number} {prepared.name} ({len(prepared.records):,} recorded ops)"
        self.began = time.perf_counter()
        self.done = threading.Event()
        self.usable = threading.Event()
        self.meanwhile: Compiled | None = None
        self.compiled: Compiled | None = None
        self.error: BaseException | None = None
        self.late = False
        self.thread: threading.Thread | None = None
        self.ticket: Ticket | None = None

    def fits(self, needed: frozenset[int], free: frozenset[int]) -> bool:
        """Whether its program will compute these slots, and take the memory of no inputs but these."""
        if not self.done.is_set() and (self.thread is None or self.thread.ident is None):
            return False  # an interrupt came before its thread began
        return needed.issubset(self.live) and self.donated <= free

    def handed(self, ticket: Ticket) -> None:
        """The helper process compiles it."""
        self.ticket = ticket

    @property
    def seconds(self) -> float:
        """How long ago it was asked for."""
        return time.perf_counter() - self.began


class Background:
    """The programs that are being compiled. `build` compiles one on any thread, and raises what went wrong; `parts`
    compiles one in parts, if it was taken apart."""

    def __init__(self, build: Callable[[Prepared], Compiled], parts: Callable[[Prepared], Compiled | None]):
        self.build = build
        self.parts = parts
        self.progress = Progress(self.unfinished)
        self._jobs: dict[Job, None] = {}  # in the order they came; a dict, as its operations are atomic
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._closed = False

    def unfinished(self) -> list[Job]:
        """What is not compiled yet, oldest first."""
        return list(self._jobs)

    def program(
        self,
        plan: CutPlan,
        live: Collection[int],
        dead: Collection[int],
        patience: float,
        prepare: Callable[[], Prepared],
    ) -> tuple[Compiled | Job, bool]:
        """The program of a plan that computes at least the slots `live` and takes the memory of at most the inputs
        `dead`, and whether it was compiled before now. `prepare` is called when no job compiles one yet.

        If it is not compiled `patience` seconds after it began, or its parts are compiled before it, this returns its
        job instead. If it cannot be compiled, the error is raised; but if a cut got the job before, the next cut gets
        it again, with `error` set. The cut after that tries anew.
        """
        needed, free = frozenset(live), frozenset(dead)
        job = next((job for job in list(plan.jobs) if job.fits(needed, free)), None)
        hit = job is not None and job.done.is_set()
        if job is None:
            prepared = prepare()
            if prepared.ready is not None:
                return prepared.ready, False
            job = self._start(plan, prepared)
        self._wait(job, patience)
        if not job.done.is_set():
            job.late = True
            return job, False
        if job in plan.jobs:
            plan.jobs.remove(job)
        if job.error is not None and not job.late:
            raise again(job.error)
        return (job if job.compiled is None else job.compiled), hit

    def _wait(self, job: Job, patience: float) -> None:
        if not _wait(job.usable, min(patience, QUIET) - job.seconds):
            self.progress.show()
            _wait(job.usable, patience - job.seconds)

    def _start(self, plan: CutPlan, prepared: Prepared) -> Job:
        """Begin to compile for a plan. When no thread can start, as at the end of the process, it is compiled here."""
        job = Job(prepared)
        self._jobs[job] = None
        if self._closed:
            self._compile(job, prepared)
        else:
            job.thread = threading.Thread(target=self._work, args=(job, prepared), name="lazytpu compiler", daemon=True)
            plan.jobs.append(job)  # first: after an interrupt of start() the thread runs
            try:
                job.thread.start()
            except RuntimeError:  # the system has no more threads
                self._compile(job, prepared)
        return job

    def close(self, end: float) -> bool:
        """At the end of the process: begin nothing more, and wait for what is being compiled until `end`
        (time.monotonic()), except in the helper process, which goes on. Returns whether all of it is done."""
        self._closed = True
        self.progress.close()
        left = elsewhere.leave() if options.compile_after_exit else []
        if left:
            say(
                f"not compiled yet: {', '.join(ticket.name for ticket in left)}; a helper process goes on for at most "
                f"{options.compile_after_exit:g} s, for the next run (LAZYTPU_COMPILE_AFTER_EXIT)"
            )
        for job in self.unfinished():
            if job.ticket in left:
                del self._jobs[job]  # nothing becomes of it here
        jobs = self.unfinished()
        if jobs:
            say(f"waiting for {len(jobs)} programs to be compiled")
        return all(job.done.wait(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic()))) for job in jobs)

    def _work(self, job: Job, prepared: Prepared) -> None:
        with self._slots:
            if self._closed:
                self._finish(job)  # it has not begun, so it is not worth waiting for
            else:
                self._compile(job, prepared)

    def _compile(self, job: Job, prepared: Prepared) -> None:
        try:
            if not prepared.parts_only:
                job.meanwhile = self.parts(prepared)
                if job.meanwhile is not None:
                    job.usable.set()
            job.compiled = self.build(replace(prepared, handed=job.handed))
        except BaseException as error:  # noqa: BLE001  (raised at the cut that wants the program)
            job.error = again(error)
        finally:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        self._jobs.pop(job, None)
        job.done.set()
        job.usable.set()


@interruptible
def _wait(event: threading.Event, seconds: float) -> bool:
    try:
        return event.wait(max(0.0, seconds))
    except BaseException as error:  # only the handler of a signal raises here
        raise Interrupted from error

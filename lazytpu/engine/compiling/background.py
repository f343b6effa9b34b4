"""Background compilation: a step whose program takes long continues by a faster strategy until the program is ready.

A cut that misses chooses by estimates (`choice`). It waits for its program, or for the same program compiled quickly or
in parts, or runs op by op. It waits for at most `options.background_compile` seconds. If it continued with a
substitute, the whole program is compiled in the background and used by the first cut after that.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import replace

from lazytpu.engine.compiling.choice import SAVED, SAVED_RARELY, Choice, Costs, Unknown, choose, naps, wait_on
from lazytpu.engine.compiling.jobs import Job
from lazytpu.engine.compiling.prepared import Prepared
from lazytpu.engine.compiling.progress import QUIET, Progress
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.recompiles.hints import LAST_BATCH
from lazytpu.inspection.terminal import say
from lazytpu.interrupts import Interrupted, interruptible
from lazytpu.options import options
from lazytpu.runtime.compiling import elsewhere
from lazytpu.runtime.compiling.elsewhere import Ticket
from lazytpu.trace.trie import CutPlan
from lazytpu.trace.value import again

AT_ONCE = 2  # concurrent compilations: each takes all cores for part of its time, and much memory
BEHIND = 1  # concurrent compilations for steps that run already, on which other steps must not wait

Build = Callable[[Prepared], Compiled]


class CompileWarning(UserWarning):
    """The whole program of a step could not be compiled; the step continues with its substitute."""


class Background:
    """The programs being compiled in the background.

    `build` compiles one on any thread, and raises its errors. `quick` compiles it with less optimisation, and `parts`
    in parts, or returns None if it was not split. `costs` estimates these. `leave` has one compiled after the process
    ends.
    """

    def __init__(
        self,
        build: Build,
        quick: Build,
        parts: Callable[[Prepared], Compiled | None],
        costs: Callable[[Prepared], Costs],
        leave: Callable[[Prepared], None],
    ):
        self.build = build
        self.quick = quick
        self.parts = parts
        self.costs = costs
        self.leave = leave
        self.progress = Progress(self.unfinished)
        self._jobs: dict[Job, None] = {}  # oldest first; a dict, since its operations are atomic
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._behind = threading.BoundedSemaphore(BEHIND)
        self._waking = threading.Lock()
        self._closed = False

    def unfinished(self) -> list[Job]:
        """Return the jobs being compiled, oldest first."""
        return list(self._jobs)

    def program(
        self,
        plan: CutPlan,
        live: Collection[int],
        dead: Collection[int],
        patience: float,
        prepare: Callable[[], Prepared],
        unknown: Callable[[], Unknown],
    ) -> tuple[Compiled | Job, bool]:
        """Return a program that computes at least the slots `live` and donates at most the inputs `dead`, and whether
        it was compiled before.

        `prepare` is called if no job compiles one yet. `unknown` returns the ops that must be compiled to run without a
        program.

        If a substitute exists, which is the job's `meanwhile` or the ops, return the job after at most `patience`
        seconds. Wait longer if compiling the ops would take longer than the wait.

        A compile error is raised, unless an earlier cut has the job. Then the next cut gets the job once more, with
        `error` set, and the cut after that tries anew.
        """
        # Find a compatible job, or prepare the program and start one.
        needed, free = frozenset(live), frozenset(dead)
        job = next((job for job in list(plan.jobs) if job.fits(needed, free)), None)
        hit = job is not None and job.done.is_set()
        if job is None:
            prepared = prepare()
            if prepared.ready is not None:
                return prepared.ready, False
            costs = self.costs(prepared)
            rare = prepared.making.entry.hint == LAST_BATCH.name
            saved = SAVED_RARELY if rare else SAVED
            choice = choose(costs, lambda: unknown().seconds(costs.whole, prepared.load), saved)
            job = self._start(plan, prepared, choice, costs.whole)
            job.naps = naps(costs, choice.way) if rare else 0
        elif job.rests and job.naps:
            job.naps -= 1
        elif job.rests:
            self._wake(job)
        # Wait for the program or its substitute, unless an earlier cut has waited already.
        if job.way != "op by op" and not job.late:
            self._wait(job, patience, unknown)
        elif job.seconds > QUIET and not job.done.is_set():
            self.progress.show()
        if not job.done.is_set():
            job.late = True
            if job.meanwhile is None:
                job.making.entry.way = "op by op"
            return job, False
        # The job is done: return its program, or raise its error.
        if job in plan.jobs:
            plan.jobs.remove(job)
        if job.error is not None and not job.late:
            raise again(job.error)
        return (job if job.compiled is None else job.compiled), hit

    def _wait(self, job: Job, patience: float, unknown: Callable[[], Unknown]) -> None:
        """Wait for a job's program or substitute, for `patience` seconds or as long as that is faster than running op
        by op."""
        if not _wait(job.usable, min(patience, QUIET) - job.seconds):
            self.progress.show()
            if not _wait(job.usable, patience - job.seconds):
                op_by_op = unknown().seconds(job.whole, job.load)
                _wait(job.usable, wait_on(job.seconds, job.expected, op_by_op) - job.seconds)

    def _start(self, plan: CutPlan, prepared: Prepared, choice: Choice, whole: float) -> Job:
        """Start a job for a plan, and return it. Compile on this thread if no thread can start, as at the end of the
        process."""
        job = Job(prepared, choice, whole)
        prepared.making.chose(choice.way, choice.seconds)
        self._jobs[job] = None
        if self._closed:
            self._compile(job)
        else:
            plan.jobs.append(job)  # before start(), after whose interrupt the thread may run
            self._on_thread(job, self._first)
        return job

    def behind(self, prepared: Prepared, meanwhile: Compiled) -> Job:
        """Return the job of a program for steps that continue with `meanwhile`, which serves as well; no cut waits for
        it.

        Its `compiled` is `meanwhile` if XLA refuses the program, and None at the end of the process.
        """
        job = Job(prepared, Choice("whole", 0.0), 0.0)
        job.meanwhile, job.late = meanwhile, True
        job.usable.set()
        return self._begun(job)

    def whole(self, prepared: Prepared) -> Job:
        """Return the job of a program for a cut that continues in pieces; no cut waits for it. Its `error` is set if
        XLA refuses the program; both it and `compiled` are None at the end of the process."""
        job = Job(prepared, Choice("whole", 0.0), 0.0)
        job.late = job.behind = True
        return self._begun(job)

    def join(self, job: Job) -> None:
        """Wait until a job is done."""
        _wait(job.done, threading.TIMEOUT_MAX)

    def _begun(self, job: Job) -> Job:
        """Compile the program of a job that no cut waits for, unless the process is ending. Returns the job."""
        if self._closed:
            self._finish(job)
        else:
            self._jobs[job] = None
            self._on_thread(job, self._second)
        return job

    def _wake(self, job: Job) -> None:
        """Compile the whole of a program when a second step runs its substitute."""
        with self._waking:
            if self._closed or not job.rests:
                return
            job.rests = False
        job.began = time.perf_counter()
        self._jobs[job] = None
        self._on_thread(job, self._second)

    def _on_thread(self, job: Job, work: Callable[[Job], None]) -> None:
        """Run `work` on a new thread, or compile the job on this one if none can start."""
        thread = threading.Thread(target=work, args=(job,), name="lazytpu compiler", daemon=True)
        if job.thread is None:
            job.thread = thread
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            self._compile(job)

    def close(self, end: float) -> bool:
        """Start nothing more at the end of the process, and wait for compilations until `end` (time.monotonic()).
        Return whether all are done.

        The helper process continues, also with programs that wait for their turn here.
        """
        self._closed = True
        self.progress.close()
        elsewhere.remind()
        later = self._left() if options.compile_after_exit else []
        if later:
            say(
                f"not compiled yet: {', '.join(ticket.name for ticket in later)}; a helper process goes on for at most "
                f"{options.compile_after_exit:g} s, for the next run (LAZYTPU_COMPILE_AFTER_EXIT)"
            )
        for job in self.unfinished():
            if job.ticket in later:
                del self._jobs[job]  # this process abandons it
        jobs = self.unfinished()
        if jobs:
            say(f"waiting for {len(jobs)} program{'s' if len(jobs) > 1 else ''} to be compiled")
        return all(job.done.wait(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic()))) for job in jobs)

    def _left(self) -> list[Ticket]:
        """Return the tickets with which the helper process continues.

        Hand it also the whole programs of steps that ran twice. This process would have compiled them next, and the
        next run needs them.
        """
        for job in self.unfinished():
            prepared = job.prepared  # its thread may just start, and clear this at the end of the process
            if job.queues and prepared is not None:
                self.leave(replace(prepared, handed=job.handed))
        return elsewhere.leave()

    # -- on the threads

    def _first(self, job: Job) -> None:
        """Compile a program by the strategy that was chosen, or whole if that fails."""
        with self._slots:
            if self._closed:
                self._finish(job)  # it has not started, so nothing is lost
            elif not self._shorter(job):
                self._compile(job)

    def _second(self, job: Job) -> None:
        """Compile the whole program of a step that continues with a substitute."""
        job.queues = True
        with self._behind:
            job.queues = self._closed
            if self._closed:
                self._finish(job)
            else:
                self._compile(job)

    def _shorter(self, job: Job) -> bool:
        """Compile a program quickly or in parts, then let the job rest. Return whether this was chosen and succeeded.

        An error in the program is raised when the whole of it fails.
        """
        prepared = job.prepared
        assert prepared is not None
        try:
            job.meanwhile = {"quick": self.quick, "parts": self.parts}.get(job.way, _nothing)(prepared)
        except BaseException as error:  # noqa: BLE001
            say(f"{job.what} could not be compiled the {job.way} way, and is as a whole: {error}")
        if job.meanwhile is None:
            return False
        self._jobs.pop(job, None)
        job.rests = True
        job.usable.set()
        return True

    def _compile(self, job: Job) -> None:
        prepared = job.prepared
        assert prepared is not None
        try:
            behind = job.behind or job.meanwhile is not None
            job.compiled = self.build(replace(prepared, handed=job.handed, behind=behind))
        except BaseException as error:  # noqa: BLE001  (raised at the cut that needs the program)
            if job.meanwhile is None:
                job.error = again(error)
            else:
                job.compiled = job.meanwhile
                _tell(job, error)
        finally:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        self._jobs.pop(job, None)
        job.prepared = None
        job.done.set()
        job.usable.set()


def _nothing(prepared: Prepared) -> None:
    return None


def _tell(job: Job, error: BaseException) -> None:
    """Warn that a step continues with its substitute."""
    how = {"quick": "less optimisation", "parts": "its parts"}.get(job.way, "that for many sizes")
    try:
        warnings.warn(
            f"{job.what} goes on with {how}, as XLA could not compile it: {error}", CompileWarning, stacklevel=1
        )
    except CompileWarning:  # where warnings are errors: this warning must not fail a cut
        say(str(error))


@interruptible
def _wait(event: threading.Event, seconds: float) -> bool:
    try:
        return event.wait(max(0.0, seconds))
    except BaseException as error:  # only a signal handler raises here
        raise Interrupted from error

"""Distributes the entries to worker processes, and appends their rows to the results file, one JSON object a line.

A restarted sweep continues where it stopped. A worker that dies or takes too long for an entry is replaced; that entry
fails, and the others are not affected.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tools.conformance.entries import Entry, entries
from tools.conformance.rows import LARGE, Job, Row, finished
from tools.conformance.trial import conduct

START_SECONDS = 300.0  # to import torch, jax and the database on a busy machine
ENTRIES_A_WORKER = 120  # programs stay in memory, 6 MB an entry: a worker then starts afresh
Work = Callable[[Connection], None]
"""The main function of a worker process, with its end of a pipe."""


class Worker:
    """A process that answers one row for each job. `limit` is the most seconds for one job; `work` is its main
    function."""

    def __init__(self, limit: float, work: Work):
        self.limit, self.jobs = limit, 0
        self.job: Job | None = None  # none before it is ready
        context = multiprocessing.get_context("spawn")  # a forked process may not use the device
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.allow(START_SECONDS)

    def allow(self, seconds: float) -> None:
        """From now on: more is too long."""
        self.allowed, self.deadline = seconds, time.monotonic() + seconds

    def give(self, job: Job) -> None:
        self.job, self.jobs = job, self.jobs + 1
        with contextlib.suppress(BrokenPipeError):  # it has died since: its pipe has ended
            self.pipe.send(job)
        self.allow(self.limit)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def work(pipe: Connection) -> None:
    """Run the worker process of the suite."""
    answer(pipe, conduct)


def answer(pipe: Connection, conduct: Callable[[Entry, int], Row], of: Mapping[str, Any] | None = None) -> None:
    """Answer jobs with rows, until the pipe ends; `conduct` takes an entry and a number of samples. For `of` see
    `entries`."""
    import torch

    import lazytpu

    lazytpu.options.cpu_fallback = False  # an op that ran on the CPU would agree with it
    torch.set_num_threads(1)
    table = {(e.name, str(e.dtype).removeprefix("torch.")): e for e in entries(LARGE, of=of)}
    pipe.send(None)
    while True:
        try:
            op, dtype, k, seed = pipe.recv()
        except EOFError:
            return
        entry = table[op, dtype]
        try:
            row = conduct(replace(entry, seed=seed), k)
        except Exception as error:  # noqa: BLE001
            row = Row(op, dtype, k, seed)
            row.add("process", 0, error)
        pipe.send(asdict(row))


def sweep(jobs: list[Job], results: Path, processes: int, limit: float, quiet: bool, work: Work = work) -> int:
    """Run the jobs that the results do not have yet. Returns how many of these failed."""
    results.parent.mkdir(parents=True, exist_ok=True)
    done = finished(results)
    todo = deque(job for job in jobs if job not in done)
    bar = tqdm(total=len(jobs), initial=len(jobs) - len(todo), unit="op", smoothing=0.05, disable=quiet, ascii=" =")
    workers: list[Worker] = []
    failed = 0
    with results.open("a") as file:
        if file.tell() and not results.read_text().endswith("\n"):
            file.write("\n")
        try:
            while todo or any(w.job for w in workers):
                while len(workers) < min(processes, len(todo) + sum(bool(w.job) for w in workers)):
                    workers.append(Worker(limit, work))
                for row in _collect(workers, todo):
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    failed += bool(row["failures"])
                    bar.set_postfix_str(f"{failed} failed, {row['op']} {row['dtype']}"[:50], refresh=False)
                    bar.update()
        finally:
            for worker in workers:
                worker.stop()
            bar.close()
    return failed


def _collect(workers: list[Worker], todo: deque[Job]) -> list[dict[str, Any]]:
    """Wait for an answer, a death or a deadline; the rows that came, and the next jobs dealt."""
    rows: list[dict[str, Any]] = []
    soonest = min(w.deadline for w in workers)
    wait([w.pipe for w in workers], max(0.0, soonest - time.monotonic()))
    for worker in list(workers):
        lost = ""
        if worker.pipe.poll():  # also after its deadline: this process may have waited for the processor
            try:
                row = worker.pipe.recv()
                rows += [row] if row else []
            except (EOFError, OSError):
                worker.process.join()
                lost = f"the worker process died with exit code {worker.process.exitcode}"
        elif time.monotonic() < worker.deadline:
            continue
        else:
            lost = f"took more than {worker.allowed:g} s"
        if lost:
            if worker.job is None:
                raise RuntimeError(f"a worker process does not start: it {lost.removeprefix('the worker process ')}")
            row = Row(*worker.job)
            row.add("process", 0, RuntimeError(lost))
            rows.append(asdict(row))
        worker.job = None
        if lost or worker.jobs >= ENTRIES_A_WORKER or not todo:
            worker.stop()
            workers.remove(worker)
        else:
            worker.give(todo.popleft())
    return rows


def jobs_of(
    dtypes: tuple[str, ...], only: str, samples: dict[str, int], seed: int, of: Mapping[str, Any] | None = None
) -> list[Job]:
    """Return the jobs of a sweep; `samples` has the number of samples for a dtype, and under "" for the others."""
    names = [(e.name, str(e.dtype).removeprefix("torch.")) for e in entries(dtypes, only, of=of)]
    return [(op, dtype, samples.get(dtype, samples[""]), seed) for op, dtype in names]

"""Estimates in seconds: of this machine, now."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from lazytpu.engine.compiling.costs import LONG, SECONDS, Busy, Estimator
from lazytpu.engine.compiling.estimate import Work

WORK = Work(10.0, 2.0, 0.5)


def test_what_was_measured_decides(empty_cache: Path) -> None:
    estimator = Estimator()
    assert estimator.seconds(10.0, 1.0) == 10.0 * SECONDS["cpu"]
    for _ in range(30):
        estimator.measured(10.0, 30.0)
    assert estimator.seconds(10.0, 1.0) == pytest.approx(30.0 * SECONDS["cpu"], rel=0.05)
    assert Estimator().seconds(5.0, 2.0) == pytest.approx(30.0 * SECONDS["cpu"], rel=0.1), "on a machine twice as busy"


def test_small_programs_say_nothing(empty_cache: Path) -> None:
    estimator = Estimator()
    estimator.measured(0.01, 5.0)
    assert estimator.seconds(10.0, 1.0) == 10.0 * SECONDS["cpu"]


def test_the_quick_way_counts_its_slower_run(empty_cache: Path) -> None:
    estimator = Estimator()
    assert estimator.quick(WORK, 2.0) == pytest.approx(estimator.seconds(2.0, 2.0) + 1.0)


def test_steps_are_taken_apart_where_no_other_way_is_short(empty_cache: Path) -> None:
    estimator = Estimator()
    long = 2 * LONG / SECONDS["cpu"]
    assert not estimator.takes_apart(Work(100.0, 0.1), 1.0)
    assert not estimator.takes_apart(Work(0.1, 0.1), 1.0)
    assert estimator.takes_apart(Work(4 * long, long), 1.0)


def test_two_compilations_at_a_time_are_no_measure() -> None:
    estimator = Estimator()
    with estimator.alone() as first:
        pass
    assert first()
    with estimator.alone() as outer, estimator.alone() as inner:
        pass
    assert not outer() and not inner()


def test_waiting_for_a_core_shows() -> None:
    busy = Busy()
    assert busy.load == 1.0
    while time.thread_time() < busy._cpu + 0.06:
        pass
    time.sleep(0.2)
    assert busy.load > 2.0


def test_estimates_of_threads_are_counted_together() -> None:
    estimator, alone = Estimator(), []
    barrier = threading.Barrier(4)

    def compile_one() -> None:
        with estimator.alone() as how:
            barrier.wait(30)
        alone.append(how())

    threads = [threading.Thread(target=compile_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert alone == [False] * 4
    with estimator.alone() as last:
        pass
    assert last()

"""Compile-time estimates in seconds, for the current machine and load."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from lazytpu.engine.compiling.costs import LONG, SECONDS, Busy, Estimator
from lazytpu.engine.compiling.estimate import Work

WORK = Work(10.0, 2.0, 0.5)


def test_estimates_follow_the_measurements(empty_cache: Path) -> None:
    estimator = Estimator()
    assert estimator.seconds(10.0, 1.0) == 10.0 * SECONDS["cpu"]
    for _ in range(30):
        estimator.measured(10.0, 30.0)
    assert estimator.seconds(10.0, 1.0) == pytest.approx(30.0 * SECONDS["cpu"], rel=0.05)
    assert Estimator().seconds(5.0, 2.0) == pytest.approx(30.0 * SECONDS["cpu"], rel=0.1), "on a machine twice as busy"


def test_small_programs_are_not_measured(empty_cache: Path) -> None:
    estimator = Estimator()
    estimator.measured(0.01, 5.0)
    assert estimator.seconds(10.0, 1.0) == 10.0 * SECONDS["cpu"]


def test_quick_estimate_includes_the_slower_run(empty_cache: Path) -> None:
    estimator = Estimator()
    assert estimator.quick(WORK, 2.0) == pytest.approx(estimator.seconds(2.0, 2.0) + 1.0)


def test_only_steps_slow_in_every_mode_are_clustered(empty_cache: Path) -> None:
    estimator = Estimator()
    long = 2 * LONG / SECONDS["cpu"]
    assert not estimator.takes_apart(Work(100.0, 0.1), 1.0)
    assert not estimator.takes_apart(Work(0.1, 0.1), 1.0)
    assert estimator.takes_apart(Work(4 * long, long), 1.0)


def test_concurrent_compilations_are_not_measured() -> None:
    estimator = Estimator()
    with estimator.alone() as first:
        pass
    assert first()
    with estimator.alone() as outer, estimator.alone() as inner:
        pass
    assert not outer() and not inner()


def test_load_counts_the_wait_for_a_core() -> None:
    busy = Busy()
    assert busy.load == 1.0
    while time.thread_time() < busy._cpu + 0.06:
        pass
    time.sleep(0.2)
    assert busy.load > 2.0


def test_concurrent_compilations_of_threads_are_not_measured() -> None:
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

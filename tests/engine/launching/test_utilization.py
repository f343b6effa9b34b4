"""Utilization: the percentage of time in which programs ran, from a counter of their milliseconds."""

from __future__ import annotations

from lazytpu.engine.launching.utilization import Utilization


class Clock:
    """A clock of elapsed seconds, and of milliseconds in which the device was busy."""

    seconds, busy = 0.0, 0.0

    def passes(self, seconds: float, busy: float) -> None:
        self.seconds, self.busy = self.seconds + seconds, self.busy + busy


def test_percent_is_of_the_time_since_the_last_figure() -> None:
    clock = Clock()
    used = Utilization(lambda: clock.busy, lambda: clock.seconds)
    assert used.percent() == 0
    for seconds, busy, percent in [(2, 1000, 50), (1, 0, 0), (0.5, 500, 100), (1, 1300, 100), (4, 10, 0)]:
        clock.passes(seconds, busy)
        assert used.percent() == percent, "estimated runs may exceed the period"


def test_short_period_repeats_the_last_figure() -> None:
    clock = Clock()
    used = Utilization(lambda: clock.busy, lambda: clock.seconds)
    clock.passes(1, 250)
    assert used.percent() == 25
    clock.passes(0.1, 100)
    assert used.percent() == 25
    clock.passes(0.1, 0)
    assert used.percent() == 50, "a short period counts into the next figure"


def test_reset_counter_starts_a_new_figure() -> None:
    clock = Clock()
    used = Utilization(lambda: clock.busy, lambda: clock.seconds)
    clock.passes(1, 900)
    assert used.percent() == 90
    clock.passes(1, -600)
    assert used.percent() == 30

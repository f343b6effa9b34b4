"""Percent of the time in which programs ran, from a counter of their milliseconds."""

from __future__ import annotations

from lazytpu.engine.launching.utilization import Utilization


class Clock:
    """Seconds that passed, and milliseconds that the device was busy."""

    seconds, busy = 0.0, 0.0

    def passes(self, seconds: float, busy: float) -> None:
        self.seconds, self.busy = self.seconds + seconds, self.busy + busy


def test_percent_of_the_time_since_the_figure_before() -> None:
    clock = Clock()
    used = Utilization(lambda: clock.busy, lambda: clock.seconds)
    assert used.percent() == 0
    for seconds, busy, percent in [(2, 1000, 50), (1, 0, 0), (0.5, 500, 100), (1, 1300, 100), (4, 10, 0)]:
        clock.passes(seconds, busy)
        assert used.percent() == percent, "more than all of it is counted where runs are estimated"


def test_a_short_period_has_the_figure_before() -> None:
    clock = Clock()
    used = Utilization(lambda: clock.busy, lambda: clock.seconds)
    clock.passes(1, 250)
    assert used.percent() == 25
    clock.passes(0.1, 100)
    assert used.percent() == 25
    clock.passes(0.1, 0)
    assert used.percent() == 50, "and counts into the next one"


def test_a_counter_that_was_set_back() -> None:
    clock = Clock()
    used = Utilization(lambda: clock.busy, lambda: clock.seconds)
    clock.passes(1, 900)
    assert used.percent() == 90
    clock.passes(1, -600)
    assert used.percent() == 30

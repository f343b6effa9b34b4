"""The recent utilization of the device, from the program times that the engine counts."""

from __future__ import annotations

import time
from collections.abc import Callable

PERIOD = 1 / 6
"""Minimal time in seconds between two figures: in a shorter period a single run would decide the figure."""


class Utilization:
    """The percentage of time in which programs ran since the previous figure. `device_ms` returns their total
    milliseconds."""

    def __init__(self, device_ms: Callable[[], float], clock: Callable[[], float] = time.perf_counter) -> None:
        self._device_ms, self._clock = device_ms, clock
        self._since, self._counted, self._percent = clock(), device_ms(), 0

    def percent(self) -> int:
        """Return the utilization, 0 to 100; the previous figure if it is less than `PERIOD` old."""
        now, counted = self._clock(), self._device_ms()
        if now - self._since >= PERIOD:
            busy = counted - self._counted if counted >= self._counted else counted  # the counter was reset
            self._percent = min(100, round(0.1 * busy / (now - self._since)))
            self._since, self._counted = now, counted
        return self._percent

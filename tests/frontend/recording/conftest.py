"""Each test records as a process does that has just started: what it counts depends on no test before it."""

import pytest


@pytest.fixture(autouse=True)
def of_its_own(fresh_traces: None) -> None:
    """Traces that begin with the same ops share them, and with them where earlier tests had them cut."""

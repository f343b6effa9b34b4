"""The checks that a test put off (deferred.py) are part of the test."""

from __future__ import annotations

from collections.abc import Generator

import deferred
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Flush after the test function, drop what is left when it failed."""
    try:
        result = yield
        deferred.flush()
        return result
    finally:
        deferred.forget()

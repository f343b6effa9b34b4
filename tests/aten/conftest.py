"""Runs the deferred checks of a test file (deferred.py) after its last test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aten import deferred


@pytest.fixture(autouse=True, scope="module")
def checks_are_made() -> Iterator[None]:
    yield
    deferred.finish()

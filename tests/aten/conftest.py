"""The checks that the tests of a file put off (deferred.py) are made when its last one has run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aten import deferred


@pytest.fixture(autouse=True, scope="module")
def checks_are_made() -> Iterator[None]:
    yield
    deferred.finish()

"""A fixture that compiles programs for many sizes without the background."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lazytpu


@pytest.fixture
def bucketed() -> Iterator[None]:
    """Use programs for many sizes, and compile them on the thread that cuts."""
    lazytpu.sync()
    with lazytpu.options(buckets="auto", background_compile=0.0):
        yield
        lazytpu.sync()

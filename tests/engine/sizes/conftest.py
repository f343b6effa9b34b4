"""Tests of sizes whose programs are compiled at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lazytpu


@pytest.fixture
def bucketed() -> Iterator[None]:
    """Programs for many sizes, without the background."""
    lazytpu.sync()
    with lazytpu.options(buckets="auto", background_compile=0.0):
        yield
        lazytpu.sync()

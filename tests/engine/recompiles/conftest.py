"""These tests explain new programs, including programs for traces that differ only in sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lazytpu


@pytest.fixture(autouse=True)
def a_program_for_each_size() -> Iterator[None]:
    with lazytpu.options(buckets="off"):
        yield

"""These tests tell why traces have programs of their own, those that differ in sizes alone included."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lazytpu


@pytest.fixture(autouse=True)
def a_program_for_each_size() -> Iterator[None]:
    with lazytpu.options(buckets="off"):
        yield

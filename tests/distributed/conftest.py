from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/distributed/" in str(item.path):
            item.add_marker(pytest.mark.xdist_group("distributed"))  # they share two processes


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    """Two ranks that all tests of this folder share, and that end with them: gloo's threads poll."""
    two = Ranks()
    yield two
    assert two.close() == [0, 0]


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    """Three ranks."""
    group = Ranks(3)
    yield group
    assert group.close() == [0] * 3

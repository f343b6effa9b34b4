"""Shared fixtures for tests of compiled functions: each starts with nothing compiled by Dynamo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/dynamo/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"))

"""Shared fixtures for tests of compiled functions: each starts with nothing compiled by Dynamo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import lazytpu


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def captured() -> Iterator[None]:
    """Let Dynamo capture ops whose results have sizes that depend on values."""
    patched = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)  # pyright: ignore[reportAttributeAccessIssue]
    with patched, lazytpu.options(buckets="auto", background_compile=0.0):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/dynamo/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"))

"""The device, and programs compiled in less time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lazytpu  # noqa: F401  (the device, also where the package is not installed)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    """LLVM without its optimizations: two thirds of the time, and what is computed is the same."""
    from lazytpu.runtime.cache import programs

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(programs.OPTIONS, "xla_backend_optimization_level", 0)
        yield

"""The device, and programs compiled in less time."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

import lazytpu  # noqa: F401  (the device, also where the package is not installed)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    """LLVM without its optimizations: two thirds of the time, and what is computed is the same."""
    from lazytpu.engine import compiler

    with pytest.MonkeyPatch.context() as patch:
        options = {"xla_backend_optimization_level": 0}
        patch.setattr(compiler.Program, "compile", functools.partial(compiler.Program.compile, options=options))
        yield

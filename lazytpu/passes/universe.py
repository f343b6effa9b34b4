"""What `xdsl-opt` and `xdsl-gui` see of lazytpu through the entry point `xdsl.universe`: the dialect and the passes.

There the passes are called `lazytpu-cse` and so on, because xDSL has a cse, a dce and a canonicalize of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Dialect
from xdsl.passes import ModulePass
from xdsl.universe import Universe

from lazytpu.passes.registry import BUILT_IN

PREFIX = "lazytpu-"


def _dialect() -> Dialect:
    from lazytpu.ir.dialect import LAZYTPU

    return LAZYTPU


def _passes() -> dict[str, Callable[[], type[ModulePass]]]:
    return {PREFIX + name: _renamed(PREFIX + name, built_in.load) for name, built_in in BUILT_IN.items()}


def _renamed(name: str, factory: Callable[[], type[ModulePass]]) -> Callable[[], type[ModulePass]]:
    """A pass class whose own name is the one it is offered under; the pass driver compares the two."""

    def make() -> type[ModulePass]:
        plain = factory()
        return type(plain.__name__, (plain,), {"name": name})

    return make


UNIVERSE = Universe(all_dialects={"lazytpu": _dialect}, all_passes=_passes())

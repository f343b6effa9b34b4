"""The dialect and the passes for `xdsl-opt` and `xdsl-gui`, through the entry point `xdsl.universe`.

The passes are named `lazytpu-cse` and so on there, because xDSL has a cse, a dce and a canonicalize of its own.
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
    return {PREFIX + name: _renamed(PREFIX + name, entry.load) for name, entry in BUILT_IN.items()}


def _renamed(name: str, factory: Callable[[], type[ModulePass]]) -> Callable[[], type[ModulePass]]:
    """A pass class whose `name` is the one it is registered under, as the driver of xDSL requires."""

    def make() -> type[ModulePass]:
        plain = factory()
        return type(plain.__name__, (plain,), {"name": name})

    return make


UNIVERSE = Universe(all_dialects={"lazytpu": _dialect}, all_passes=_passes())

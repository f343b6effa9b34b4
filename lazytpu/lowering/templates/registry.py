"""The template registry, and lowered templates, each made once for its name, operand types and parameters."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from lazytpu.ir.template import Param
from lazytpu.ir.types import numpy_dtype
from lazytpu.runtime.jax_functions import lower_jax_function

Types: TypeAlias = "tuple[tuple[str, tuple[int, ...]], ...]"
"""(dtype, shape) of each operand or result."""

TEMPLATES: dict[str, Callable[..., Any]] = {}
NARROW: set[str] = set()
"Those that are traced without 64-bit types."

# The modules of this package that register templates, imported at the first use of one.
FAMILIES = tuple(m.name for m in pkgutil.iter_modules([os.path.dirname(__file__)]) if m.name != "registry")

_NAMES = {numpy_dtype(name): name for name in ("f16", "bf16", "f32", "f64", "c64", "c128")}
_NAMES |= {numpy_dtype(f"{sign}{bits}"): f"{sign}{bits}" for sign in ("i", "ui") for bits in (8, 16, 32, 64)}
_NAMES |= {np.dtype(np.bool_): "i1"}


@dataclass(frozen=True, eq=False)
class Instance:
    """A template lowered for certain operands and parameters: MLIR bytecode of a module with `@main`."""

    name: str
    results: Types
    bytecode: bytes


def template(name: str, *, x64: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a JAX function `f(*arrays, **params) -> array or tuple of arrays` as the template `name`. Without `x64`
    it is traced without 64-bit types, which Pallas cannot lower for a TPU."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if name in TEMPLATES:
            raise ValueError(f"template {name!r} is registered twice")
        TEMPLATES[name] = function
        if not x64:
            NARROW.add(name)
        return function

    return register


def find(name: str) -> Callable[..., Any]:
    """The function of a template."""
    for family in FAMILIES if name not in TEMPLATES else ():
        importlib.import_module(f"lazytpu.lowering.templates.{family}")
    if name not in TEMPLATES:
        raise ValueError(f"there is no template {name!r}; there are {', '.join(sorted(TEMPLATES))}")
    return TEMPLATES[name]


# Keyed by the text of the parameters: as keys themselves, 1, 1.0 and True would be the same. Never emptied: a key is an
# op of the user's model, and an instance a few KB.
_INSTANCES: dict[tuple[str, Types, str, str | None], Instance] = {}


def instance(name: str, operands: Types, params: dict[str, Param], platform: str | None = None) -> Instance:
    """A template lowered for these operands and parameters, for a platform or for ours (5 to 25 ms, once in the
    process)."""
    key = (name, operands, repr(sorted(params.items())), platform)
    found = _INSTANCES.get(key)
    if found is None:
        function = partial(find(name), **params)
        types = [(numpy_dtype(dtype), shape) for dtype, shape in operands]
        bytecode, results = lower_jax_function(function, types, platform, name not in NARROW)
        made = Instance(name, tuple((_NAMES[dtype], shape) for dtype, shape in results), bytecode)
        # Of two threads that lower the same, the first wins.
        found = _INSTANCES.setdefault(key, made)
    return found

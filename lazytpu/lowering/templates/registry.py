"""The registry of templates, and the cache of lowered ones, by name, operand types and parameters."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from lazytpu.ir.template import Param
from lazytpu.ir.types import numpy_dtype
from lazytpu.runtime.xla.jax_functions import lower_jax_function

Types: TypeAlias = "tuple[tuple[str, tuple[int, ...]], ...]"
"""(dtype, shape) of each operand or result."""

TEMPLATES: dict[str, Callable[..., Any]] = {}
NARROW: set[str] = set()
"Templates that are traced without 64-bit types."
NEEDS: dict[str, Callable[..., Mapping[str, Any]]] = {}
"The options of XLA's compiler that a program with a template needs, of the template's platform and parameters."

# The modules of this package that register templates. They are imported at the first use of a template.
FAMILIES = tuple(m.name for m in pkgutil.iter_modules([os.path.dirname(__file__)]) if m.name != "registry")

_NAMES = {numpy_dtype(name): name for name in ("f16", "bf16", "f32", "f64", "c64", "c128")}
_NAMES |= {numpy_dtype(f"{sign}{bits}"): f"{sign}{bits}" for sign in ("i", "ui") for bits in (8, 16, 32, 64)}
_NAMES |= {np.dtype(np.bool_): "i1"}


@dataclass(frozen=True, eq=False)
class Instance:
    """A template lowered for given operand types and parameters: MLIR bytecode of a module with `@main`."""

    name: str
    results: Types
    bytecode: bytes


def template(
    name: str, *, x64: bool = True, needs: Callable[..., Mapping[str, Any]] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a JAX function `f(*arrays, **params) -> array or tuple of arrays` as the template `name`. Without `x64`
    it is traced without 64-bit types, which Pallas cannot lower for a TPU. `needs(platform, **params)` are options of
    XLA's compiler that programs with it are compiled with."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if name in TEMPLATES:
            raise ValueError(f"template {name!r} is registered twice")
        TEMPLATES[name] = function
        if not x64:
            NARROW.add(name)
        if needs is not None:
            NEEDS[name] = needs
        return function

    return register


def find(name: str) -> Callable[..., Any]:
    """The function of a template. Raises ValueError for an unknown name."""
    for family in FAMILIES if name not in TEMPLATES else ():
        importlib.import_module(f"lazytpu.lowering.templates.{family}")
    if name not in TEMPLATES:
        raise ValueError(f"there is no template {name!r}; the templates are {', '.join(sorted(TEMPLATES))}")
    return TEMPLATES[name]


# Keyed by the text of the parameters, because 1, 1.0 and True are equal as keys. Never emptied: each entry is for an op
# of the user's model, and takes a few KB.
_INSTANCES: dict[tuple[str, Types, str, str | None], Instance] = {}


def instance(name: str, operands: Types, params: dict[str, Param], platform: str | None = None) -> Instance:
    """Return a template lowered for these operand types and parameters, and for a platform (None: the platform of this
    process). Takes 5 to 25 ms, once per process."""
    key = (name, operands, repr(sorted(params.items())), platform)
    lowered = _INSTANCES.get(key)
    if lowered is None:
        function = partial(find(name), **params)
        types = [(numpy_dtype(dtype), shape) for dtype, shape in operands]
        bytecode, results = lower_jax_function(function, types, platform, name not in NARROW)
        new = Instance(name, tuple((_NAMES[dtype], shape) for dtype, shape in results), bytecode)
        # If two threads lower the same template, the first one wins.
        lowered = _INSTANCES.setdefault(key, new)
    return lowered

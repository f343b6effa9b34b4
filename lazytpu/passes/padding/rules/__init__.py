"""The rules of `pad-sizes`, one for each op of the dialect, by the families of `lazytpu/ir/`. Each file registers its
own."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for family in iter_modules(__path__):
    import_module(f"{__name__}.{family.name}")

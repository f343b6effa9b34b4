"""Facades: stand-ins for torch's C++ classes whose instances for "tpu" need methods in Python.

Such a class cannot be changed in place. So `torch.<Name>` becomes a facade: a subclass of the native class that
constructs instances of the right class. All of these are instances of the facade.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Facade(type):
    """The metaclass of facades; a class derived from a facade behaves like any other class."""

    native: type
    construct: Callable[..., Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.construct(*args, **kwargs) if _is_facade(cls) else super().__call__(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.native) if _is_facade(cls) else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.native) if _is_facade(cls) else super().__subclasscheck__(subclass)


def facade(native: type, construct: Callable[..., Any]) -> Facade:
    """Return a class that stands for `native` as `torch.<its name>`; calling it calls `construct`."""
    names = {"native": native, "construct": staticmethod(construct), "__doc__": native.__doc__, "__module__": "torch"}
    kind = Facade if type(native) is type else type("Facade", (Facade, type(native)), {})
    return kind(native.__name__, (native,), names)


def _is_facade(cls: type) -> bool:
    return "native" in vars(cls)

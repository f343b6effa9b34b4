"""Keeps torch from importing dynamo, 0.6 s of CPU, where nothing is compiled with it.

Some functions of torch import dynamo when they are first called, to be told what calls them untraced: the meta
functions of many ops, and methods of optimizers. The steps of optimizers import it to break its graphs. Before dynamo
is there, nothing traces, and they are called as they are. From its import on, by `torch.compile` say, all is as without
lazytpu.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from lazytpu.frontend import torch_private as private
from lazytpu.frontend.libraries.on_import import when_imported


def install() -> None:
    """Until dynamo is imported, call such functions as they are."""
    if private.DYNAMO in sys.modules:
        return
    # The wrapper of these functions looks this attribute up by `getattr`, a name that its module may have, too.
    module: Any = private.untraced_calls
    module.getattr = _getattr
    # These functions are in classes, in wrappers and in the hands of the script: they stay, their code changes.
    steps = {step: step.__code__ for step in _breaking_steps()}
    for step in steps:
        step.__code__ = _UNBROKEN

    def put_back(dynamo: Any) -> None:
        del module.getattr
        for step, code in steps.items():
            step.__code__ = code

    when_imported(private.DYNAMO, put_back)


def _getattr(function: Any, name: str, default: Any) -> Any:
    loaded = name != private.UNTRACED or private.DYNAMO in sys.modules
    return getattr(function, name, default if loaded else function)


def _breaking_steps() -> Iterator[FunctionType]:
    """The steps of torch's optimizers that break dynamo's graphs."""
    code = _code_inside(private.breaking_step)
    if code.co_freevars != _UNBROKEN.co_freevars:
        return
    for kind in vars(torch.optim).values():
        step = vars(kind).get("step") if isinstance(kind, type) else None
        while isinstance(step, FunctionType):
            if step.__code__ is code:
                yield step
            step = getattr(step, "__wrapped__", None)  # of what an optimizer that was made has wrapped around it


def _unbroken_step(func: Callable[..., Any]) -> Callable[..., Any]:
    """What `private.breaking_step` makes of a step, without the breaks."""

    def step(*args: Any, **kwargs: Any) -> Any:
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return step


def _code_inside(factory: Callable[[Any], Any]) -> CodeType:
    """The code of the functions that `factory` makes."""
    return factory(lambda: None).__code__


_UNBROKEN = _code_inside(_unbroken_step)

"""Prevents torch from importing Dynamo, 0.6 s of CPU, where nothing is compiled with it.

Some functions of torch import Dynamo at their first call to make callees untraced: the meta functions of many ops, and
methods of optimizers. Optimizer steps import it to break graphs. Before Dynamo is imported, nothing traces, so they are
called directly. Once it is imported, by `torch.compile` for example, torch's behaviour is restored.
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
    """Call these functions directly until Dynamo is imported."""
    if private.DYNAMO in sys.modules:
        return
    # The wrapper of these functions looks this attribute up by `getattr`, a name that its module can define, too.
    module: Any = private.untraced_calls
    module.getattr = _getattr
    # Classes, wrappers and the script refer to these functions, so the functions stay and their code is replaced.
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
    """Yield the steps of torch's optimizers that break Dynamo's graphs."""
    code = _code_inside(private.breaking_step)
    if code.co_freevars != _UNBROKEN.co_freevars:
        return
    for kind in vars(torch.optim).values():
        step = vars(kind).get("step") if isinstance(kind, type) else None
        while isinstance(step, FunctionType):
            if step.__code__ is code:
                yield step
            step = getattr(step, "__wrapped__", None)  # an optimizer instance has wrapped it


def _unbroken_step(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a step like `private.breaking_step`, without the graph breaks."""

    def step(*args: Any, **kwargs: Any) -> Any:
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return step


def _code_inside(factory: Callable[[Any], Any]) -> CodeType:
    """Return the code of the functions that `factory` returns."""
    return factory(lambda: None).__code__


_UNBROKEN = _code_inside(_unbroken_step)

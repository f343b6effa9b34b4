"""Dynamo traces Python frames of compiled code, also after a graph break, where ops run. Kernels are no code of the
user: neither they nor what they call (the engine, xDSL, jax) is for Dynamo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from lazytpu.frontend.torch_private import LEAVE_ALONE, set_frame_strategy


def untraced(function: Callable[..., Any]) -> None:
    """Keep Dynamo out of a Python function, and of what it calls."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, FunctionType):  # frames of other callables are torch's, which Dynamo leaves alone
        set_frame_strategy(function.__code__, LEAVE_ALONE)

"""Exclusion of kernels from Dynamo, which traces Python frames of compiled code, also after a graph break, where ops
run. Kernels, and the code that they call (the engine, xDSL, jax), are not user code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from lazytpu.frontend.torch_private import LEAVE_ALONE, set_frame_strategy


def untraced(function: Callable[..., Any]) -> None:
    """Keep Dynamo from tracing a Python function and its callees."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, FunctionType):  # frames of other callables are torch's, which Dynamo does not trace
        set_frame_strategy(function.__code__, LEAVE_ALONE)

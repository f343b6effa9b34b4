"""Where a step begins: the preparation of data or weights before it is a program of its own in fused mode.

Shuffling, scaling or augmenting a batch on the device may differ each time, and the step's program would differ too if
the step were recorded after it. Checked on a miss only.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch import nn

from lazytpu.frontend.torch_private import MODULE_CALL, backward_id


def belongs_to_step(args: Iterable[Any]) -> bool:
    """Whether an op with these arguments is part of a step: of a backward pass, of a graph that autograd makes, or of
    the call of a module that has parameters (one without may be a transform of the data)."""
    if backward_id() != -1:
        return True
    if is_differentiated(args):
        return True
    module = _outermost_module(sys._getframe(1))
    return module is not None and next(module.parameters(), None) is not None


class _Node(threading.local):
    """Whether this thread computes the results of a node that autograd has made, such as a custom kernel's."""

    computing = False


NODE = _Node()


def is_differentiated(args: Iterable[Any]) -> bool:
    """Whether autograd creates, or has just created, a node for an op with these arguments."""
    return NODE.computing or (torch.is_grad_enabled() and any(map(_requires_grad, args)))


def _requires_grad(arg: Any) -> bool:
    if isinstance(arg, torch.Tensor):
        return arg.requires_grad
    return isinstance(arg, list | tuple) and any(map(_requires_grad, arg))


def _outermost_module(frame: FrameType | None) -> nn.Module | None:
    """The module whose call is running; the outermost one if its forward calls others."""
    outermost: FrameType | None = None
    while frame is not None:
        if frame.f_code is MODULE_CALL:
            outermost = frame
        frame = frame.f_back
    return None if outermost is None else outermost.f_locals["self"]

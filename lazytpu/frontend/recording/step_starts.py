"""Where a step begins: the preparation of data or weights before it is a program of its own in fused mode.

Shuffling, scaling or augmenting a batch on the device may differ each time, and the step's program would differ too if
the step were recorded after it.

Where nothing is kept for a backward pass, each call of a model from the same place is a step: the rounds of a sampler
and the batches of an evaluation are then the same trace, however many there are and whatever is done with the results.
Checked on a miss only.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn

from lazytpu.frontend.torch_private import MODULE_CALL, backward_id
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import State


def belongs_to_step(args: Iterable[Any]) -> bool:
    """Whether an op with these arguments is part of a step: of a backward pass, of a graph that autograd makes, or of
    the call of a module that has parameters (one without may be a transform of the data)."""
    if backward_id() != -1:
        return True
    if is_differentiated(args):
        return True
    call = _outermost_call(sys._getframe(1))
    return call is not None and next(call.f_locals["self"].parameters(), None) is not None


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


def _outermost_call(frame: FrameType | None) -> FrameType | None:
    """The frame of the module's call that is running; of the outermost one if its forward calls others."""
    outermost: FrameType | None = None
    while frame is not None:
        if frame.f_code is MODULE_CALL:
            outermost = frame
        frame = frame.f_back
    return outermost


class _Call(NamedTuple):
    """The last call of a model that a recorder saw, in its trace `epoch`: `running` lives as long as the call."""

    epoch: int
    running: ReferenceType[Any]


_calls: WeakKeyDictionary[Recorder, _Call] = WeakKeyDictionary()


def place_of_call(r: Recorder, parent: State) -> tuple[Any, bool]:
    """The model whose call the op belongs to and the place of that call, None outside of any; and whether that model
    was called from that place before, in the trace that is at `parent`.

    A call is known by the bound method that torch makes for it. One whose `forward` is a plain function, which outlives
    its calls, is told from the one before it only if something was recorded between them.
    """
    call = _outermost_call(sys._getframe(1))
    if call is None or call.f_back is None or call.f_back.f_back is None:  # between them is Module._wrapped_call_impl
        return None, False
    caller, forward = call.f_back.f_back, call.f_locals["forward_call"]
    place = id(call.f_locals["self"]), caller.f_code, caller.f_lasti
    last = _calls.get(r)
    _calls[r] = _Call(r.epoch, ref(forward))
    if parent.place != place:
        return place, _has(parent, place)
    return place, last is not None and last.epoch == r.epoch and last.running() is not forward


def _has(state: State | None, place: Any) -> bool:
    while state is not None and state.place != place:
        state = state.parent
    return state is not None

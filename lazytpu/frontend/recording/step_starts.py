"""Where a step begins: the preparation of data or weights before it is a program of its own in fused mode.

Shuffling, scaling or augmenting a batch on the device may differ each time, and the step's program would differ too if
the step were recorded after it.

Where nothing is kept for a backward pass, each call of a model is a step: the rounds of a sampler and the batches of an
evaluation are then the same trace, however many there are and whatever is done with the results. Checked on a miss
only.
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

from lazytpu.frontend.lines import user_place
from lazytpu.frontend.observed import class_name, parameters, requires_grad
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
    return call is not None and next(parameters(call.f_locals["self"]), None) is not None


class _Node(threading.local):
    """Whether this thread computes the results of a node that autograd has made, such as a custom kernel's."""

    computing = False


NODE = _Node()


def is_differentiated(args: Iterable[Any]) -> bool:
    """Whether autograd creates, or has just created, a node for an op with these arguments."""
    return NODE.computing or (torch.is_grad_enabled() and any(map(_requires_grad, args)))


def _requires_grad(arg: Any) -> bool:
    if isinstance(arg, torch.Tensor):
        return requires_grad(arg)
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


FEW = 4  # a trace that is kept for a backward pass has a result alive in this many records, or fewer
_calls: WeakKeyDictionary[Recorder, _Call] = WeakKeyDictionary()


def called_again(r: Recorder, parent: State) -> tuple[str | None, bool]:
    """The kind of model whose call the op belongs to, None outside of any; and whether that call begins a step: such a
    model was called before in the trace that is at `parent`, and nothing of the trace is kept for a backward pass.

    A call is known by the bound method that torch makes for it. One whose `forward` is a plain function, which outlives
    its calls, is told from the one before it only if something was recorded between them.
    """
    call = _outermost_call(sys._getframe(1))
    if call is None:
        return None, False
    module, forward = call.f_locals["self"], call.f_locals["forward_call"]
    kind, last, epoch = _kind(module, call), _calls.get(r), r.epoch
    _calls[r] = _Call(epoch, ref(forward))
    if last is not None and last.running() is forward:
        return kind, False
    follows = bool(parent.recorded) and parent.recorded[-1].call == kind
    if follows and (last is None or last.epoch != epoch):  # the same call: what it recorded before was known
        return kind, False
    return kind, _has(parent, kind) and not _trains(module) and not keeps_graph(r, parent)


def _kind(module: nn.Module, call: FrameType) -> str:
    """The name of the module's class. One of torch is a part of many models: with it goes where it is called."""
    name = ".".join(class_name(module))
    return f"{name} at {user_place(call)}" if name.startswith("torch.") else name


def _has(state: State | None, kind: str) -> bool:
    while state is not None and all(record.call != kind for record in state.recorded):
        state = state.parent
    return state is not None


def _trains(module: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(map(requires_grad, parameters(module)))


_kept: WeakKeyDictionary[Recorder, tuple[int, int]] = WeakKeyDictionary()  # by recorder: (epoch, depth to ask again)


def keeps_graph(r: Recorder, state: State) -> bool:
    """Whether autograd keeps results of the trace that is at `state` for a backward pass. An evaluation has the states
    of a training step for as long as it records the same; but then few of its results are alive.

    Where they are kept, that is taken to hold until the trace is an eighth longer: to ask at each record of a long
    trace would take longer than to record it.
    """
    if state.traits.in_backward or not state.traits.in_graph:
        return state.traits.in_backward
    epoch, until = _kept.get(r, (-1, 0))
    if epoch == r.epoch and state.depth < until:
        return True
    values = [value for reference in r.values if (value := reference()) is not None]
    keeps = FEW * sum(value.buffer is None for value in values) > state.depth
    if keeps:
        _kept[r] = r.epoch, state.depth + state.depth // 8
    return keeps

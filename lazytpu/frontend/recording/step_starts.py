"""Starts of steps: in fused mode, the preparation of data or weights before a step is a program of its own.

Shuffling, scaling or augmenting a batch on the device may differ each time. The step's program would differ, too, if
the step were recorded after it in the same trace.

Where nothing is saved for a backward pass, each call of a model is a step. So the iterations of a sampler, and the
batches of an evaluation, are the same trace, whatever their number and the use of their results. Checked on a miss
only.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
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
from lazytpu.trace.value import Layout


def belongs_to_step(args: Iterable[Any]) -> bool:
    """Return whether an op with these arguments is part of a step: of a backward pass, of an autograd graph, or of the
    call of a module with parameters (a module without any may be a transform of the data)."""
    if backward_id() != -1:
        return True
    if is_differentiated(args):
        return True
    call = _outermost_call(sys._getframe(1))
    return call is not None and next(parameters(call.f_locals["self"]), None) is not None


class _Node(threading.local):
    """Whether this thread computes the results of a node that autograd has created, such as a custom kernel's."""

    computing = False


NODE = _Node()


def is_differentiated(args: Iterable[Any]) -> bool:
    """Return whether autograd creates, or has just created, a node for an op with these arguments."""
    return NODE.computing or (torch.is_grad_enabled() and any(map(_requires_grad, args)))


def may_require_grad(results: Sequence[Layout | None]) -> bool:
    """Return whether a result may require a gradient: not those of `isnan` or `argmax`. An op without results of its
    own writes to an argument."""
    dtypes = [layout.dtype for layout in results if layout is not None]
    return not dtypes or any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)


def _requires_grad(arg: Any) -> bool:
    if isinstance(arg, torch.Tensor):
        return requires_grad(arg)
    return isinstance(arg, list | tuple) and any(map(_requires_grad, arg))


def _outermost_call(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the running module call; of the outermost one if its forward calls others."""
    outermost: FrameType | None = None
    while frame is not None:
        if frame.f_code is MODULE_CALL:
            outermost = frame
        frame = frame.f_back
    return outermost


class _Call(NamedTuple):
    """The last call of a model that a recorder saw, in its trace `epoch`. The referent of `running` lives as long as
    the call."""

    epoch: int
    running: ReferenceType[Any]


# A trace whose results are saved for a backward pass has a live result in every FEW records, or more often.
FEW = 4
_calls: WeakKeyDictionary[Recorder, _Call] = WeakKeyDictionary()


def called_again(r: Recorder, parent: State) -> tuple[str | None, bool]:
    """Return the kind of model whose call the op belongs to (None outside any), and whether that call begins a step.

    It does if such a model was called before in the trace at `parent`, and nothing of the trace is saved for a backward
    pass.

    A call is identified by the bound method that torch creates for it. If `forward` is a plain function, which outlives
    its calls, two calls are distinguished only if something was recorded between them.
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
    # The same call: its earlier records were hits.
    if follows and (last is None or last.epoch != epoch):
        return kind, False
    return kind, _has(parent, kind) and not _trains(module) and not keeps_graph(r, parent)


def _kind(module: nn.Module, call: FrameType) -> str:
    """Return the name of the module's class. A torch class is a part of many models, so it includes the place of the
    call."""
    name = ".".join(class_name(module))
    return f"{name} at {user_place(call)}" if name.startswith("torch.") else name


def _has(state: State | None, kind: str) -> bool:
    while state is not None and all(record.call != kind for record in state.recorded):
        state = state.parent
    return state is not None


def _trains(module: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(map(requires_grad, parameters(module)))


# by recorder: (epoch, depth at which to check again)
_kept: WeakKeyDictionary[Recorder, tuple[int, int]] = WeakKeyDictionary()


def keeps_graph(r: Recorder, state: State) -> bool:
    """Return whether autograd saves results of the trace at `state` for a backward pass.

    An evaluation has the same states as a training step while it records the same ops, but then few of its results are
    alive. A positive answer is assumed to hold until the trace is an eighth longer: a check at each record of a long
    trace would take longer than recording it.
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

"""Who owns the values on the device: a module, an optimizer, the autograd graph, or the script.

Nothing is noted while ops are recorded. A report searches all of Python's objects, which takes about 0.1 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from lazytpu.frontend import names, observed, tensors
from lazytpu.frontend.names import values_of
from lazytpu.trace.value import Value


class Owner(NamedTuple):
    """The category of a value, and the name of the module's or optimizer's tensor that holds it."""

    category: str
    name: str | None


_OF_KIND = {
    "parameter": "parameters",
    "buffer": "module buffers",
    "gradient": "gradients",
    "state": "optimizer state",
}
PARAMETER, GRADIENT = Owner("parameters", None), Owner("gradients", None)
ACTIVATION, TENSOR, PENDING = Owner("activations", None), Owner("other tensors", None), Owner("pending inputs", None)


def owners(objects: Mapping[type, Iterable[Any]]) -> dict[int, Owner]:
    """The owner of each device buffer, by the buffer's id; `objects` are all of Python's, by their type.

    A value with several holders gets the most specific one: a module or an optimizer, then a leaf that requires a
    gradient, then the autograd graph ("activations": computed from such leaves, or saved for the backward pass with no
    tensor left), then the script. "Pending inputs" are held by recorded ops alone, until those run.
    """
    by_buffer: dict[int, Owner] = {}
    for recorder in tensors.recorders():
        by_buffer.update((id(buffer), PENDING) for buffer in list(recorder.buffers))
    for value in objects.get(Value, ()):
        _note(by_buffer, value, ACTIVATION)
    held = [group for kind, group in objects.items() if issubclass(kind, torch.Tensor)]
    visible = [(tensor, value) for group in held for tensor in group for _, value in values_of(tensor)]
    for _, value in visible:
        _note(by_buffer, value, TENSOR)
    for tensor, value in visible:
        if observed.requires_grad(tensor):
            _note(by_buffer, value, PARAMETER if observed.is_leaf(tensor) else ACTIVATION)
            for _, of_gradient in values_of(observed.gradient(tensor)):
                _note(by_buffer, of_gradient, GRADIENT)
    for kind, name, tensor in names.named():
        for part, value in values_of(tensor):
            _note(by_buffer, value, Owner(_OF_KIND[kind], f"{name}.{part}" if name and part else name))
    return by_buffer


def _note(by_buffer: dict[int, Owner], value: Value, owner: Owner) -> None:
    if value.buffer is not None:
        by_buffer[id(value.buffer)] = owner

"""The owners of values on the device: a module, an optimizer, the autograd graph, or the script.

Recording stores nothing for this. A report searches all Python objects, which takes about 0.1 s.
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
    """Return the owner of each device buffer, by the buffer's id. `objects` are all Python objects, by type.

    A value with several holders gets the most specific one: a module or an optimizer, then a leaf that requires a
    gradient, then the autograd graph, then the script. "Activations" are computed from such leaves, or saved for the
    backward pass without a tensor. "Pending inputs" are held by recorded ops alone, until those run.
    """
    by_buffer: dict[int, Owner] = {}
    for recorder in tensors.recorders():
        by_buffer.update((id(buffer), PENDING) for buffer in list(recorder.buffers))
    for value in objects.get(Value, ()):
        _note(by_buffer, value, ACTIVATION)
    tensor_lists = [group for kind, group in objects.items() if issubclass(kind, torch.Tensor)]
    visible = [(tensor, value) for group in tensor_lists for tensor in group for _, value in values_of(tensor)]
    for _, value in visible:
        _note(by_buffer, value, TENSOR)
    for tensor, value in visible:
        if observed.requires_grad(tensor):
            _note(by_buffer, value, PARAMETER if observed.is_leaf(tensor) else ACTIVATION)
            for _, of_gradient in values_of(observed.gradient(tensor)):
                _note(by_buffer, of_gradient, GRADIENT)
    for kind, name, tensor in names.named():
        for component, value in values_of(tensor):
            _note(by_buffer, value, Owner(_OF_KIND[kind], f"{name}.{component}" if name and component else name))
    return by_buffer


def _note(by_buffer: dict[int, Owner], value: Value, owner: Owner) -> None:
    if value.buffer is not None:
        by_buffer[id(value.buffer)] = owner

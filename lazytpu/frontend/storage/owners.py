"""The owners of values on the device: a module, an optimizer, the autograd graph, or the script.

Recording stores nothing for this. A report searches all Python objects, which takes about 0.1 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from lazytpu.frontend import names, observed, tensors
from lazytpu.frontend.names import values_of
from lazytpu.frontend.storage.holders import holders
from lazytpu.trace.value import Value


class Owner(NamedTuple):
    """The category of a value, the name of the module's or optimizer's tensor that holds it, and the path to the
    script's tensor that holds it."""

    category: str
    name: str | None
    holder: str | None = None


class Graphs(NamedTuple):
    """The number of autograd's graphs that tensors keep alive, and the paths to some of these tensors."""

    count: int
    holders: tuple[str, ...]


_OF_KIND = {
    "parameter": "parameters",
    "buffer": "module buffers",
    "gradient": "gradients",
    "state": "optimizer state",
}
PARAMETER, GRADIENT = Owner("parameters", None), Owner("gradients", None)
ACTIVATION, TENSOR, PENDING = Owner("activations", None), Owner("other tensors", None), Owner("pending inputs", None)


def owners(objects: Mapping[type, Iterable[Any]], search: bool = False) -> tuple[dict[int, Owner], Graphs]:
    """Return the owner of each device buffer, by the buffer's id, and the graphs of autograd. `objects` are all Python
    objects, by type. With `search`, the owners of the script's tensors have their holders.

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
    roots, paths = _roots([tensor for tensor, _ in visible]), dict[int, str]()
    if search:
        # The tensors of modules and optimizers have names.
        unnamed = [(tensor, value) for tensor, value in visible if _is_unnamed(by_buffer, value)]
        searched = list({id(tensor): tensor for tensor in (*(tensor for tensor, _ in unnamed), *roots)}.values())
        lists = (objects, *objects.values(), tensor_lists, visible, unnamed, roots)
        paths = holders(searched, {id(thing) for thing in (*lists, *visible, *unnamed)})
        for tensor, value in unnamed:
            if id(tensor) in paths:
                _note(by_buffer, value, by_buffer[id(value.buffer)]._replace(holder=paths[id(tensor)]))
    held = [paths[id(tensor)] for tensor in roots if id(tensor) in paths]
    return by_buffer, Graphs(len(roots), tuple(held))


def _is_unnamed(by_buffer: Mapping[int, Owner], value: Value) -> bool:
    return value.buffer is not None and by_buffer[id(value.buffer)].name is None


def _roots(visible: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a tensor for each graph of autograd: the last results, which no other visible tensor is computed from."""
    of_node = {node: tensor for tensor in visible if (node := observed.graph_node(tensor)) is not None}
    inner: set[Any] = set()
    pending = list(of_node)
    while pending:
        before = [node for node, _ in pending.pop().next_functions if node is not None and node not in inner]
        inner.update(before)
        pending += before
    return [tensor for node, tensor in of_node.items() if node not in inner]


def _note(by_buffer: dict[int, Owner], value: Value, owner: Owner) -> None:
    if value.buffer is not None:
        by_buffer[id(value.buffer)] = owner

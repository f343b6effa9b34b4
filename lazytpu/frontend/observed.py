"""Reads of the user's modules, optimizers and tensors that run no user code.

Names and reports are computed while an op is recorded or compiled. A user's property, `__torch_function__`, mode or
mapping would run inside that op, and could raise into it. So all functions here call torch's and Python's own
descriptors. Overrides of a subclass have no effect, and an object without the attribute yields nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lazytpu.frontend.torch_private import (
    ScriptMapping,
    TensorBase,
    make_subclass,
    no_torch_dispatch,
    no_torch_function,
    without_functions,
)
from lazytpu.trace.value import Value

_dict_of_module: Any = nn.Module.__dict__["__dict__"].__get__
_dict_of_optimizer: Any = torch.optim.Optimizer.__dict__["__dict__"].__get__
_device: Any = vars(TensorBase)["device"].__get__
_grad: Any = vars(TensorBase)["grad"].__get__
_grad_fn: Any = vars(TensorBase)["grad_fn"].__get__
_is_leaf: Any = vars(TensorBase)["is_leaf"].__get__
_requires_grad: Any = vars(TensorBase)["requires_grad"].__get__
_storage: Any = TensorBase.untyped_storage
# Of classes, whose metaclass may override them, and of modules, which `vars` would import if their loader is lazy.
namespace: Any = vars(type)["__dict__"].__get__
bases: Any = vars(type)["__mro__"].__get__
plain_name: Any = vars(type)["__name__"].__get__
qualified_name: Any = vars(type)["__qualname__"].__get__
module_namespace: Any = vars(ModuleType)["__dict__"].__get__

PARAMETERS, BUFFERS, CHILDREN = "_parameters", "_buffers", "_modules"


def is_a(thing: Any, kind: type) -> bool:
    """Do `isinstance` by the real type: a proxy or mock may claim another class, and `__class__` may raise."""
    return issubclass(type(thing), kind)


def attributes(holder: nn.Module | torch.optim.Optimizer) -> dict[str, Any]:
    """Return the `__dict__` of a module or optimizer."""
    return _dict_of_module(holder) if is_a(holder, nn.Module) else _dict_of_optimizer(holder)


def items(mapping: Any) -> list[tuple[Any, Any]]:
    """Return the entries of a dict, copied at once, since other threads may add entries; nothing for other objects."""
    if is_a(mapping, dict):
        return list(dict.items(mapping))
    return list(mapping.items()) if type(mapping) in ScriptMapping else []


def members(module: nn.Module, kind: str) -> list[tuple[str, Any]]:
    """Return the (name, member) pairs of a module itself: of its PARAMETERS, BUFFERS or CHILDREN."""
    pairs = items(attributes(module).get(kind))
    wanted = nn.Module if kind is CHILDREN else torch.Tensor
    return [(name, member) for name, member in pairs if type(name) is str and is_a(member, wanted)]


def walk(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each module in a module, with the prefix of its members' names, parents first."""
    seen, pending = {id(module)}, [("", module)]
    while pending:
        prefix, parent = pending.pop()
        yield prefix, parent
        for name, child in reversed(members(parent, CHILDREN)):
            if id(child) not in seen:
                seen.add(id(child))
                pending.append((f"{prefix}{name}.", child))


def parameters(module: nn.Module) -> Iterator[torch.Tensor]:
    """Return the parameters of a module and its submodules."""
    return (tensor for _, inner in walk(module) for _, tensor in members(inner, PARAMETERS))


def groups(optimizer: torch.optim.Optimizer) -> Iterator[list[Any]]:
    """Yield the parameters of each group of an optimizer."""
    listed: Any = attributes(optimizer).get("param_groups")
    for group in list.copy(listed) if is_a(listed, list) else ():
        tensors: Any = dict(items(group)).get("params")
        yield list.copy(tensors) if is_a(tensors, list) else []


def states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Any, list[tuple[Any, Any]]]]:
    """Yield each parameter for which an optimizer has state, with the entries of that state."""
    for parameter, state in items(attributes(optimizer).get("state")):
        yield parameter, items(state)


def value_of(tensor: Any) -> Value | None:
    """Return the value in a tensor's storage; None unless it is a dense tensor on tpu with memory.

    Wrappers without memory, such as torch.func's, have none.
    """
    if not is_a(tensor, torch.Tensor):
        return None
    with without_functions():
        try:
            storage = _storage(tensor)
        except RuntimeError:  # a tensor without a storage: sparse, batched, or a wrapper of others
            return None
    value = getattr(storage, "_value", None)
    return value if type(value) is Value else None


def requires_grad(tensor: torch.Tensor) -> bool:
    """Return a tensor's `requires_grad`."""
    with without_functions():
        return _requires_grad(tensor)


def is_leaf(tensor: torch.Tensor) -> bool:
    """Return a tensor's `is_leaf`."""
    with without_functions():
        try:
            return _is_leaf(tensor)
        except RuntimeError:  # one of several views of an op, whose base was written: torch refuses to say its history
            return False


def graph_node(tensor: torch.Tensor) -> Any:
    """Return the node of autograd's graph that computed a tensor; None if there is none."""
    with without_functions():
        try:
            return _grad_fn(tensor)
        except RuntimeError:  # as in is_leaf
            return None


def gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the `.grad` of a leaf; None for any other tensor, because torch warns about its `.grad`."""
    with without_functions():
        return _grad(tensor) if is_leaf(tensor) else None


def on_device(tensor: Any) -> bool:
    """Return whether a tensor is on tpu."""
    if not is_a(tensor, torch.Tensor):
        return False
    with without_functions():
        return _device(tensor).type == "tpu"


def class_name(thing: Any) -> tuple[str, str]:
    """Return the module of an object's class, and the class's qualified name."""
    module = namespace(type(thing)).get("__module__")
    return module if type(module) is str else "", qualified_name(type(thing))


_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)
_ASKED = frozenset(
    ("shape", "size", "stride", "storage_offset", "dim", "ndim", "numel", "dtype", "device", "layout", "itemsize")
    + ("untyped_storage", "nbytes", "is_conj", "is_neg", "is_contiguous", "is_leaf", "requires_grad", "grad", "detach")
    + ("resolve_conj", "resolve_neg", "__class__", "__getattribute__", "__torch_function__")
)
"The attributes of a tensor that kernels read."
_FUNCTION = {"__torch_function__"}


def is_overriding(thing: Any) -> bool:
    """Return whether a tensor's class overrides attributes that kernels read.

    A class with its own `__torch_dispatch__` does not count: torch calls that before any kernel.
    """
    kind = type(thing)
    if kind in _PLAIN or not issubclass(kind, torch.Tensor):
        return False
    overriding = False
    for base in bases(kind):
        if base is torch.Tensor:
            break
        names = namespace(base)
        if names.get("__torch_dispatch__", no_torch_dispatch) is not no_torch_dispatch:
            return False
        overridden = names.keys() & _ASKED
        inert = overridden == _FUNCTION and names["__torch_function__"] is no_torch_function
        overriding |= bool(overridden) and not inert
    return overriding


def plain(thing: Any) -> Any:
    """Return an alias of such a tensor that is a `torch.Tensor`; any other object unchanged."""
    if not is_overriding(thing):
        return thing
    with without_functions():
        return make_subclass(torch.Tensor, thing)

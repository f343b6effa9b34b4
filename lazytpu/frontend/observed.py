"""Reads the user's modules, optimizers and tensors without running the user's code.

Names and reports are computed while an op is recorded or compiled. A property, a `__torch_function__`, a mode or a
mapping of the user would run inside of that op, and could raise into it. So everything here calls torch's and Python's
own descriptors: what a subclass overrides has no effect, and an object that lacks the attribute has nothing to show.
"""

from __future__ import annotations

from collections.abc import Iterator
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
_is_leaf: Any = vars(TensorBase)["is_leaf"].__get__
_requires_grad: Any = vars(TensorBase)["requires_grad"].__get__
_storage: Any = TensorBase.untyped_storage
_dict_of_class: Any = vars(type)["__dict__"].__get__
_bases: Any = vars(type)["__mro__"].__get__
_qualified_name: Any = vars(type)["__qualname__"].__get__

PARAMETERS, BUFFERS, CHILDREN = "_parameters", "_buffers", "_modules"


def is_a(thing: Any, kind: type) -> bool:
    """`isinstance`, by the real type: a proxy or a mock may claim another class, and `__class__` may raise."""
    return issubclass(type(thing), kind)


def attributes(holder: nn.Module | torch.optim.Optimizer) -> dict[str, Any]:
    """The `__dict__` of a module or an optimizer."""
    return _dict_of_module(holder) if is_a(holder, nn.Module) else _dict_of_optimizer(holder)


def items(mapping: Any) -> list[tuple[Any, Any]]:
    """The entries of a dict, copied at once: other threads may add theirs. None of anything else."""
    if is_a(mapping, dict):
        return list(dict.items(mapping))
    return list(mapping.items()) if type(mapping) in ScriptMapping else []


def members(module: nn.Module, kind: str) -> list[tuple[str, Any]]:
    """The (name, member) pairs of a module itself: of its PARAMETERS, BUFFERS or CHILDREN."""
    pairs = items(attributes(module).get(kind))
    wanted = nn.Module if kind is CHILDREN else torch.Tensor
    return [(name, member) for name, member in pairs if type(name) is str and is_a(member, wanted)]


def walk(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Each module in a module, with the prefix of its members' names, parents first."""
    seen, pending = {id(module)}, [("", module)]
    while pending:
        prefix, parent = pending.pop()
        yield prefix, parent
        for name, child in reversed(members(parent, CHILDREN)):
            if id(child) not in seen:
                seen.add(id(child))
                pending.append((f"{prefix}{name}.", child))


def parameters(module: nn.Module) -> Iterator[torch.Tensor]:
    """The parameters of a module and of those in it."""
    return (tensor for _, inner in walk(module) for _, tensor in members(inner, PARAMETERS))


def groups(optimizer: torch.optim.Optimizer) -> Iterator[list[Any]]:
    """The parameters of each group of an optimizer."""
    listed: Any = attributes(optimizer).get("param_groups")
    for group in list.copy(listed) if is_a(listed, list) else ():
        tensors: Any = dict(items(group)).get("params")
        yield list.copy(tensors) if is_a(tensors, list) else []


def states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Any, list[tuple[Any, Any]]]]:
    """Each parameter that an optimizer has state for, and the entries of that."""
    for parameter, state in items(attributes(optimizer).get("state")):
        yield parameter, items(state)


def value_of(tensor: Any) -> Value | None:
    """The value in a tensor's storage; None for anything but a dense tensor on tpu, and for wrappers without memory,
    such as those of torch.func."""
    if not is_a(tensor, torch.Tensor):
        return None
    with without_functions():
        try:
            storage = _storage(tensor)
        except RuntimeError:  # a tensor without a storage: sparse, batched, a wrapper of others
            return None
    value = getattr(storage, "_value", None)
    return value if type(value) is Value else None


def requires_grad(tensor: torch.Tensor) -> bool:
    """A tensor's `requires_grad`."""
    with without_functions():
        return _requires_grad(tensor)


def is_leaf(tensor: torch.Tensor) -> bool:
    """A tensor's `is_leaf`."""
    with without_functions():
        return _is_leaf(tensor)


def gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """The `.grad` of a leaf; None for any other tensor, about whose `.grad` torch warns."""
    with without_functions():
        return _grad(tensor) if _is_leaf(tensor) else None


def on_device(tensor: Any) -> bool:
    """Whether a tensor is on tpu."""
    if not is_a(tensor, torch.Tensor):
        return False
    with without_functions():
        return _device(tensor).type == "tpu"


def class_name(thing: Any) -> tuple[str, str]:
    """The module of an object's class, and the class's qualified name."""
    module = _dict_of_class(type(thing)).get("__module__")
    return module if type(module) is str else "", _qualified_name(type(thing))


_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)
_ASKED = frozenset(
    ("shape", "size", "stride", "storage_offset", "dim", "ndim", "numel", "dtype", "device", "layout", "itemsize")
    + ("untyped_storage", "nbytes", "is_conj", "is_neg", "is_contiguous", "is_leaf", "requires_grad", "grad", "detach")
    + ("resolve_conj", "resolve_neg", "__class__", "__getattribute__", "__torch_function__")
)
"What kernels read of a tensor."
_FUNCTION = {"__torch_function__"}


def is_overriding(thing: Any) -> bool:
    """Whether a tensor's class overrides what kernels read of it. One with a `__torch_dispatch__` of its own does that
    by torch's rules, and torch calls it before any kernel."""
    kind = type(thing)
    if kind in _PLAIN or not issubclass(kind, torch.Tensor):
        return False
    overriding = False
    for base in _bases(kind):
        if base is torch.Tensor:
            break
        own = _dict_of_class(base)
        if own.get("__torch_dispatch__", no_torch_dispatch) is not no_torch_dispatch:
            return False
        asked = own.keys() & _ASKED
        overriding |= bool(asked) and (asked != _FUNCTION or own["__torch_function__"] is not no_torch_function)
    return overriding


def plain(thing: Any) -> Any:
    """An alias of such a tensor that is a `torch.Tensor`; anything else itself."""
    if not is_overriding(thing):
        return thing
    with without_functions():
        return make_subclass(torch.Tensor, thing)

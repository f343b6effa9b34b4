"""Names of a trace's values, for readers of its IR: parameters and buffers of modules, states of optimizers.

Values do not refer to tensors, so modules and optimizers are noted by torch's own hooks, which are called when a module
gets a parameter, a buffer or a child, and when an optimizer steps; copies of modules when they get their state.
Searching all of Python's objects instead would cost half a second per compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lazytpu.frontend.recording.tensors import parts, value_of
from lazytpu.trace.value import Value

# By id: a module may define equality, and is then no key.
_modules: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_optimizers: WeakValueDictionary[int, torch.optim.Optimizer] = WeakValueDictionary()


_HELD = ("_parameters", "_buffers")


def install() -> None:
    """Note every module and optimizer from now on."""
    register_module_parameter_registration_hook(note_module)
    register_module_module_registration_hook(note_module)
    register_module_buffer_registration_hook(note_module)
    register_optimizer_step_pre_hook(note_optimizer)
    module: Any = nn.Module
    module.__setstate__ = _noting(module.__setstate__)  # of copies and of pickled ones no hook tells


def _noting(set_state: Callable[[nn.Module, Any], None]) -> Callable[[nn.Module, Any], None]:
    @wraps(set_state)
    def __setstate__(self: nn.Module, state: Any) -> None:
        set_state(self, state)
        note_module(self, "", None)

    return __setstate__


def note_module(module: nn.Module, name: str, member: Any) -> None:
    """The hook of modules; dynamo traces it, and finds nothing in it."""
    if not torch.compiler.is_compiling():
        _modules[id(module)] = module


def note_optimizer(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """The hook of optimizers; for dynamo like that of modules."""
    if not torch.compiler.is_compiling():
        _optimizers[id(optimizer)] = optimizer


class Named(NamedTuple):
    """A tensor that a module or an optimizer holds. `kind` is "parameter", "buffer", "gradient" or "state"; `name` is
    None if the parameter belongs to no module."""

    kind: str
    name: str | None
    tensor: Any


def named(epoch: int | None = None) -> Iterator[Named]:
    """All that modules and optimizers hold. A tensor's name in the outermost module, the longest, comes last. Of
    gradients only those of parameters that trace `epoch` uses, if it is given: other threads may be at work on the
    others, and autograd's, which give a parameter its gradient, hold no lock that a reader could take."""
    names: dict[int, str] = {}
    for module in _outermost():
        members = [("parameter", *member) for member in module.named_parameters()]
        members += [("buffer", *member) for member in module.named_buffers()]
        for kind, name, tensor in members:
            if len(name) > len(names.get(id(tensor), "")):
                names[id(tensor)] = name
                yield from _with_gradient(kind, name, tensor, epoch)
    for optimizer in list(_optimizers.values()):
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if id(parameter) not in names:
                yield from _with_gradient("parameter", None, parameter, epoch)
        for parameter, state in list(optimizer.state.items()):  # other threads may add theirs
            name = names.get(id(parameter))
            for key, tensor in list(state.items()):
                yield Named("state", None if name is None else f"{name}.{key}", tensor)


def holders() -> list[nn.Module | torch.optim.Optimizer]:
    """The modules and optimizers that were noted, also those that `gc.freeze()` hides from the garbage collector."""
    return [*_modules.values(), *_optimizers.values()]


def _outermost() -> list[nn.Module]:
    """The modules that are not part of another one."""
    modules = [module for module in list(_modules.values()) if "_parameters" in vars(module)]
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner]


def _with_gradient(kind: str, name: str | None, tensor: torch.Tensor, epoch: int | None) -> Iterator[Named]:
    yield Named(kind, name, tensor)
    if tensor.is_leaf and (
        epoch is None or _is_used(epoch, tensor)
    ):  # torch warns about the .grad of others
        yield Named("gradient", None if name is None else f"{name}.grad", tensor.grad)


def slot_names(epoch: int) -> dict[int, str]:
    """The names of the values that trace `epoch` uses, by slot. Of a tensor that consists of several, such as a sparse
    one, each has the name of its part. Called on a miss only."""
    names: dict[int, str] = {}
    for _, name, tensor in named(epoch):
        if name is not None:
            slots = [(part, value.slot) for part, value in values_of(tensor) if value.epoch == epoch]
            names.update((slot, f"{name}.{part}" if len(slots) > 1 else name) for part, slot in slots)
    return names


def parameter_slots(epoch: int) -> frozenset[int]:
    """The slots of the parameters and buffers of modules that trace `epoch` uses. Called once for a new trace: it asks
    for no names, which takes three times as long."""
    values = (value for tensor in _members() for _, value in values_of(tensor))
    return frozenset(value.slot for value in values if value.epoch == epoch)


def parameter_count() -> int:
    """How many parameters and buffers of modules are on the device."""
    return sum(bool(values_of(tensor)) for tensor in _members())


def _members() -> list[Any]:
    """The parameters and buffers of all modules, also of those inside others."""
    modules = [vars(module) for module in list(_modules.values())]
    held = [list(members[kind].values()) for members in modules for kind in _HELD if kind in members]
    return [tensor for tensors in held for tensor in tensors]


def _is_used(epoch: int, tensor: Any) -> bool:
    """Whether trace `epoch` uses a value of the tensor."""
    return any(value.epoch == epoch for _, value in values_of(tensor))


def model_names(epoch: int) -> list[str]:
    """The classes of the models whose parameters or buffers trace `epoch` uses; for torch's wrappers around a model,
    DistributedDataParallel or a compiled module, the model's class. Called on a miss only."""
    classes: dict[str, None] = {}
    for module in _outermost():
        members = chain(module.parameters(), module.buffers())
        if any(_is_used(epoch, member) for member in members):
            while type(module).__module__.startswith("torch.") and len(children := list(module.children())) == 1:
                (module,) = children
            classes[type(module).__name__] = None
    return list(classes)


def values_of(tensor: Any) -> list[tuple[str, Value]]:
    """The values that a tensor consists of, each with its name in it (see `parts`)."""
    return [(name, value_of(part)) for name, part in parts(tensor)]

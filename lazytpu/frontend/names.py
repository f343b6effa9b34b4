"""Names of a trace's values, for readers of its IR: parameters and buffers of modules, states of optimizers.

Values do not refer to tensors. So modules and optimizers are registered by torch's hooks: when a module gets a
parameter, buffer or child, when an optimizer steps, and when a copy of a module gets its state. Searching all Python
objects instead would take half a second per compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
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

from lazytpu.frontend import observed
from lazytpu.frontend.observed import BUFFERS, PARAMETERS, value_of
from lazytpu.frontend.tensors import parts
from lazytpu.frontend.torch_private import undisturbed
from lazytpu.trace.value import Value

# Keyed by id: a module may define equality, and then has no hash.
_modules: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_optimizers: WeakValueDictionary[int, torch.optim.Optimizer] = WeakValueDictionary()


def install() -> None:
    """Register every module and optimizer from now on."""
    register_module_parameter_registration_hook(note_module)
    register_module_module_registration_hook(note_module)
    register_module_buffer_registration_hook(note_module)
    register_optimizer_step_pre_hook(note_optimizer)
    module: Any = nn.Module
    module.__setstate__ = _noting(module.__setstate__)  # no hook runs for copied and unpickled modules


def _noting(set_state: Callable[[nn.Module, Any], None]) -> Callable[[nn.Module, Any], None]:
    @wraps(set_state)
    def __setstate__(self: nn.Module, state: Any) -> None:
        set_state(self, state)
        note_module(self, "", None)

    return __setstate__


def note_module(module: nn.Module, name: str, member: Any) -> None:
    """The hook of modules; Dynamo traces it, and finds no ops in it."""
    if not torch.compiler.is_compiling():
        _modules[id(module)] = module


def note_optimizer(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """The hook of optimizers; Dynamo traces it, and finds no ops in it."""
    if not torch.compiler.is_compiling():
        _optimizers[id(optimizer)] = optimizer


class Named(NamedTuple):
    """A tensor that a module or optimizer holds. `kind` is "parameter", "buffer", "gradient" or "state"; `name` is None
    if the parameter belongs to no module."""

    kind: str
    name: str | None
    tensor: Any


def named(epoch: int | None = None) -> Iterator[Named]:
    """Yield all tensors of modules and optimizers. A tensor's name in the outermost module, the longest, comes last.

    With `epoch`, gradients are limited to parameters that this trace uses. Other threads may be using the other ones,
    and autograd's threads, which set a parameter's gradient, hold no lock that a reader could take.
    """
    names: dict[int, str] = {}
    for module in _outermost():
        seen: set[int] = set()
        for kind, name, tensor in (*_members(module, "parameter", PARAMETERS), *_members(module, "buffer", BUFFERS)):
            if id(tensor) not in seen and len(name) > len(names.get(id(tensor), "")):
                names[id(tensor)] = name
                yield from _with_gradient(kind, name, tensor, epoch)
            seen.add(id(tensor))
    for optimizer in _alive(_optimizers):
        for parameter in (p for group in observed.groups(optimizer) for p in group):
            if observed.is_a(parameter, torch.Tensor) and id(parameter) not in names:
                yield from _with_gradient("parameter", None, parameter, epoch)
        for parameter, state in observed.states(optimizer):
            name = names.get(id(parameter))
            for key, tensor in state:
                if type(key) is str:
                    yield Named("state", None if name is None else f"{name}.{key}", tensor)


def holders() -> list[nn.Module | torch.optim.Optimizer]:
    """Return the registered modules and optimizers, including the ones that `gc.freeze()` hides from the garbage
    collector."""
    return [*_alive(_modules), *_alive(_optimizers)]


def optimizers() -> list[torch.optim.Optimizer]:
    """Return the optimizers that have stepped."""
    return _alive(_optimizers)


def _alive(noted: WeakValueDictionary[int, Any]) -> list[Any]:
    """Return the live objects of a dictionary to which other threads may add."""
    return [thing for reference in noted.valuerefs() if (thing := reference()) is not None]


def _outermost() -> list[nn.Module]:
    """Return the modules that are not part of another one."""
    modules = _alive(_modules)
    inner = {id(child) for module in modules for _, child in observed.members(module, observed.CHILDREN)}
    return [module for module in modules if id(module) not in inner]


def _members(module: nn.Module, kind: str, attribute: str) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield (kind, name, tensor) of a module and its submodules."""
    for prefix, inner in observed.walk(module):
        for name, tensor in observed.members(inner, attribute):
            yield kind, prefix + name, tensor


def _with_gradient(kind: str, name: str | None, tensor: torch.Tensor, epoch: int | None) -> Iterator[Named]:
    yield Named(kind, name, tensor)
    if epoch is None or _slots_in(epoch, tensor):
        gradient = observed.gradient(tensor)
        if gradient is not None:
            yield Named("gradient", None if name is None else f"{name}.grad", gradient)


def slot_names(epoch: int) -> dict[int, str]:
    """Return the names of the values that trace `epoch` uses, by slot. Called on a miss only.

    The name of a value inside a wrapper subclass or sparse tensor includes the name of its part: "bias.a".
    """
    names: dict[int, str] = {}
    for _, name, tensor in named(epoch):
        if name is not None:
            names.update((slot, f"{name}.{part}" if part else name) for part, slot in _slots_in(epoch, tensor))
    return names


def parameter_slots(epoch: int) -> frozenset[int]:
    """Return the slots of the parameters and buffers of modules that trace `epoch` uses.

    Called once for a new trace. It determines no names, which would take three times as long.
    """
    return frozenset(slot for tensor in _held() for _, slot in _slots_in(epoch, tensor))


def parameter_count() -> int:
    """Return the number of parameters and buffers of modules on the device."""
    return sum(bool(values_of(tensor)) for tensor in _held())


def _held() -> Iterator[torch.Tensor]:
    """Yield the parameters and buffers of all modules; submodules are registered, too."""
    for module in _alive(_modules):
        for kind in (PARAMETERS, BUFFERS):
            for _, tensor in observed.members(module, kind):
                yield tensor


def values_of(tensor: Any) -> list[tuple[str, Value]]:
    """Return the values of a tensor by name: its own value, named "", or the values of its parts.

    A class that does not expose its parts has none.
    """
    value = value_of(tensor)
    if value is not None:
        return [("", value)]
    try:
        with undisturbed():
            inside = [(name, value_of(part)) for name, part in parts(tensor)]
    except Exception:  # noqa: BLE001 (`__tensor_flatten__` is user code: it must not raise into an op)
        return []
    return [(name, value) for name, value in inside if value is not None]


def _slots_in(epoch: int, tensor: Any) -> list[tuple[str, int]]:
    """Return the slots of a tensor's values in trace `epoch`, each with its part's name; empty if the trace does not
    use them."""
    return [(name, value.slot) for name, value in values_of(tensor) if value.epoch == epoch]


def model_names(epoch: int) -> list[str]:
    """Return the classes of the models whose parameters or buffers trace `epoch` uses. Called on a miss only.

    For torch's wrappers around a model (DistributedDataParallel or a compiled module), it is the model's class.
    """
    classes: dict[str, None] = {}
    for module in _outermost():
        used = (*_members(module, "parameter", PARAMETERS), *_members(module, "buffer", BUFFERS))
        if any(_slots_in(epoch, tensor) for _, _, tensor in used):
            model, above = module, set[int]()
            while observed.class_name(model)[0].startswith("torch.") and id(model) not in above:
                above.add(id(model))
                children = observed.members(model, observed.CHILDREN)
                model = children[0][1] if len(children) == 1 else model
            classes[observed.class_name(model)[1].rpartition(".")[2]] = None
    return list(classes)

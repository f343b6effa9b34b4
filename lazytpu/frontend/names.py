"""Names of a trace's values, for readers of its IR: parameters and buffers of modules, states of optimizers.

Values do not refer to tensors, so modules and optimizers are noted by torch's own hooks, which are called when a module
gets a parameter, a buffer or a child, and when an optimizer steps; copies of modules when they get their state.
Searching all of Python's objects instead would cost half a second per compile.
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

# By id: a module may define equality, and is then no key.
_modules: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_optimizers: WeakValueDictionary[int, torch.optim.Optimizer] = WeakValueDictionary()


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
    """The modules and optimizers that were noted, also those that `gc.freeze()` hides from the garbage collector."""
    return [*_alive(_modules), *_alive(_optimizers)]


def _alive(noted: WeakValueDictionary[int, Any]) -> list[Any]:
    """The objects in a dictionary, to which other threads may add theirs."""
    return [thing for reference in noted.valuerefs() if (thing := reference()) is not None]


def _outermost() -> list[nn.Module]:
    """The modules that are not part of another one."""
    modules = _alive(_modules)
    inner = {id(child) for module in modules for _, child in observed.members(module, observed.CHILDREN)}
    return [module for module in modules if id(module) not in inner]


def _members(module: nn.Module, kind: str, held: str) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(kind, name, tensor) of what a module and those in it hold."""
    for prefix, inner in observed.walk(module):
        for name, tensor in observed.members(inner, held):
            yield kind, prefix + name, tensor


def _with_gradient(kind: str, name: str | None, tensor: torch.Tensor, epoch: int | None) -> Iterator[Named]:
    yield Named(kind, name, tensor)
    if epoch is None or _slots_in(epoch, tensor):
        gradient = observed.gradient(tensor)
        if gradient is not None:
            yield Named("gradient", None if name is None else f"{name}.grad", gradient)


def slot_names(epoch: int) -> dict[int, str]:
    """The names of the values that trace `epoch` uses, by slot; a value inside of a wrapper subclass or a sparse tensor
    has the name of its part, too: "bias.a". Called on a miss only."""
    names: dict[int, str] = {}
    for _, name, tensor in named(epoch):
        if name is not None:
            names.update((slot, f"{name}.{part}" if part else name) for part, slot in _slots_in(epoch, tensor))
    return names


def parameter_slots(epoch: int) -> frozenset[int]:
    """The slots of the parameters and buffers of modules that trace `epoch` uses. Called once for a new trace: it asks
    for no names, which takes three times as long."""
    return frozenset(slot for tensor in _held() for _, slot in _slots_in(epoch, tensor))


def parameter_count() -> int:
    """How many parameters and buffers of modules are on the device."""
    return sum(bool(values_of(tensor)) for tensor in _held())


def _held() -> Iterator[torch.Tensor]:
    """The parameters and buffers of all modules: those inside others were noted, too."""
    for module in _alive(_modules):
        for kind in (PARAMETERS, BUFFERS):
            for _, tensor in observed.members(module, kind):
                yield tensor


def values_of(tensor: Any) -> list[tuple[str, Value]]:
    """The values that a tensor consists of, each with its name in it: its own value, named "", or those of its parts.
    A class that does not show its parts has none."""
    value = value_of(tensor)
    if value is not None:
        return [("", value)]
    try:
        with undisturbed():
            inside = [(name, value_of(part)) for name, part in parts(tensor)]
    except Exception:  # noqa: BLE001  (`__tensor_flatten__` is the user's code: it must not raise into an op)
        return []
    return [(name, value) for name, value in inside if value is not None]


def _slots_in(epoch: int, tensor: Any) -> list[tuple[str, int]]:
    """The slots of a tensor's values in trace `epoch`, each with its part's name; none if that does not use them."""
    return [(name, value.slot) for name, value in values_of(tensor) if value.epoch == epoch]


def model_names(epoch: int) -> list[str]:
    """The classes of the models whose parameters or buffers trace `epoch` uses; for torch's wrappers around a model,
    DistributedDataParallel or a compiled module, the model's class. Called on a miss only."""
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

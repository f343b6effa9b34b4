"""Names of a trace's values, for reading its IR: parameters and buffers of modules, states of optimizers.

Values know no tensors, so modules and optimizers are noted as they come: by torch's own hooks, which are called as a
module gets a parameter, a buffer or a child, and as an optimizer steps. Looking through all of Python's objects instead
costs half a second a compile.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_pre_hook

# By id: a module may define equality, and is then no key.
_modules: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_optimizers: WeakValueDictionary[int, torch.optim.Optimizer] = WeakValueDictionary()


def install() -> None:
    """Note every module and optimizer from now on."""
    register_module_parameter_registration_hook(note_module)
    register_module_module_registration_hook(note_module)
    register_module_buffer_registration_hook(note_module)
    register_optimizer_step_pre_hook(note_optimizer)


def note_module(module: nn.Module, name: str, member: Any) -> None:
    """The hook of modules; dynamo traces it, and sees nothing in it."""
    if not torch.compiler.is_compiling():
        _modules[id(module)] = module


def note_optimizer(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """The hook of optimizers, likewise."""
    if not torch.compiler.is_compiling():
        _optimizers[id(optimizer)] = optimizer


def slot_names(epoch: int) -> dict[int, str]:
    """The names of the values that trace `epoch` knows, by slot. Runs on a miss only."""
    found: dict[int, str] = {}
    modules = [module for module in list(_modules.values()) if "_parameters" in vars(module)]
    inner = {id(child) for module in modules for child in module.children()}
    by_parameter: dict[int, str] = {}
    for module in modules:
        if id(module) in inner:
            continue
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if len(name) > len(by_parameter.get(id(tensor), "")):  # the outermost module's name is the longest
                by_parameter[id(tensor)] = name
                _note(found, epoch, tensor, name)
                if tensor.is_leaf:  # torch warns about the .grad of others
                    _note(found, epoch, tensor.grad, f"{name}.grad")
    for optimizer in list(_optimizers.values()):
        for parameter, state in optimizer.state.items():
            name = by_parameter.get(id(parameter))
            if name is not None:
                for key, tensor in state.items():
                    _note(found, epoch, tensor, f"{name}.{key}")
    return found


def _note(found: dict[int, str], epoch: int, tensor: Any, name: str) -> None:
    if isinstance(tensor, torch.Tensor) and tensor.device.type == "tpu" and tensor.layout is torch.strided:
        value = getattr(tensor.untyped_storage(), "_value", None)
        if value is not None and value.epoch == epoch:
            found[value.slot] = name

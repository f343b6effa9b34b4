"""Names of a trace's values, for reading its IR: parameters and buffers of modules, states of optimizers."""

from __future__ import annotations

import gc
from typing import Any

import torch


def slot_names(epoch: int) -> dict[int, str]:
    """The names of the values that trace `epoch` knows, by slot. Runs on a miss only: it looks through all objects,
    since values know no tensors (some 30 ms for half a million objects)."""
    found: dict[int, str] = {}
    modules: list[torch.nn.Module] = []
    optimizers: list[torch.optim.Optimizer] = []
    for thing in gc.get_objects():  # one whose constructor raised may still be there, without its tables
        if issubclass(type(thing), torch.nn.Module) and "_parameters" in vars(thing):
            modules.append(thing)
        elif issubclass(type(thing), torch.optim.Optimizer) and "state" in vars(thing):
            optimizers.append(thing)
    by_parameter: dict[int, str] = {}
    for module in modules:
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if len(name) > len(by_parameter.get(id(tensor), "")):  # the root module's name is the longest
                by_parameter[id(tensor)] = name
                _note(found, epoch, tensor, name)
                if tensor.is_leaf:  # torch warns about the .grad of others
                    _note(found, epoch, tensor.grad, f"{name}.grad")
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            name = by_parameter.get(id(parameter))
            if name is not None:
                for key, tensor in state.items():
                    _note(found, epoch, tensor, f"{name}.{key}")
    return found


def _note(found: dict[int, str], epoch: int, tensor: Any, name: str) -> None:
    if isinstance(tensor, torch.Tensor) and tensor.device.type == "tpu":
        value = getattr(tensor.untyped_storage(), "_value", None)
        if value is not None and value.epoch == epoch:
            found[value.slot] = name

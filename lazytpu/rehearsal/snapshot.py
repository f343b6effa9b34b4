"""The Python state of a training, saved and restored: modules, optimizers, schedulers, scalers, generators."""

from __future__ import annotations

import gc
import random
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler

from lazytpu.frontend import names, observed
from lazytpu.frontend.device.generators import generators
from lazytpu.frontend.torch_private import without_functions

OBSERVED = (nn.Module, torch.optim.Optimizer)
HOLDERS = (*OBSERVED, LRScheduler, GradScaler)
SMALL = 4096
"CPU tensors of up to this many elements are saved by value: an optimizer may count its steps in one."


class Snapshot:
    """A snapshot of the attributes of all `HOLDERS` in the process and of all generators of the device, including the
    containers in them, small CPU tensors, the gradients of parameters, and the states of the host's random generators.
    `restore` restores them.

    After `gc.freeze()`, only the modules and optimizers that torch has reported are found. Tensors on the device are
    saved by identity. The user's other objects (a list of losses, an iterator) are not saved.
    """

    def __init__(self) -> None:
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._tensors: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for thing in (*gc.get_objects(), *names.holders()):
            if issubclass(type(thing), HOLDERS):
                self._keep(observed.attributes(thing) if issubclass(type(thing), OBSERVED) else vars(thing))
        for generator in generators():
            self._keep(vars(generator))
        self._torch, self._python, self._numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()

    def _keep(self, thing: Any) -> None:
        kind = type(thing)  # isinstance() would run code of a proxy or a mock
        if issubclass(kind, torch.Tensor):
            with without_functions():
                self._keep_tensor(thing)
        elif issubclass(kind, dict | list | set | deque) and id(thing) not in self._containers:
            self._containers[id(thing)] = thing, list(thing.items()) if isinstance(thing, dict) else list(thing)
            for item in list(thing.values()) if isinstance(thing, dict) else list(thing):
                self._keep(item)
            if isinstance(thing, dict):
                for item in list(thing):  # the keys of an optimizer's state are parameters
                    self._keep(item)

    def _keep_tensor(self, tensor: torch.Tensor) -> None:
        if observed.is_leaf(tensor) and observed.requires_grad(tensor):
            self._gradients[id(tensor)] = tensor, observed.gradient(tensor)
        plain = observed.plain(tensor)
        if plain.device.type == "cpu" and plain.layout is torch.strided and not plain.is_inference():
            if plain.numel() <= SMALL and id(tensor) not in self._tensors:
                self._tensors[id(tensor)] = plain, plain._version, plain.clone()

    def restore(self) -> None:
        """Restore the changed state."""
        for container, before in self._containers.values():
            if isinstance(container, dict):
                if not _same(list(container.items()), before):
                    container.clear()
                    container.update(before)
            elif not _same(list(container), before):
                container.clear()
                (container.update if isinstance(container, set) else container.extend)(before)
        with torch.no_grad():
            for tensor, version, before in self._tensors.values():
                if tensor._version != version:
                    tensor.copy_(before)
        for tensor, gradient in self._gradients.values():
            if tensor.grad is not gradient:
                tensor.grad = gradient
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        np.random.set_state(self._numpy)


def _same(now: list[Any], before: list[Any]) -> bool:
    """Whether two lists hold the same objects, or pairs of the same objects."""
    if len(now) != len(before):
        return False
    for a, b in zip(now, before, strict=True):
        if a is not b and not (type(a) is tuple and len(a) == 2 and a[0] is b[0] and a[1] is b[1]):
            return False
    return True

"""What Python holds of a training, put back as it was: modules, optimizers, schedulers, scalers, generators."""

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

from lazytpu.frontend.device.generators import TpuGenerator

HOLDERS = (nn.Module, torch.optim.Optimizer, LRScheduler, GradScaler, TpuGenerator)
SMALL = 4096
"Elements of a tensor on the CPU whose values are kept: an optimizer counts its steps in one."


class Kept:
    """The attributes of all `HOLDERS` of the process when it is made, with the containers in them and the small CPU
    tensors, the gradients of parameters, and the random numbers of the host; `restore` puts them back.

    Tensors on the device are kept by identity. Other objects of the user's (a list of losses, an iterator) are not.
    """

    def __init__(self) -> None:
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._tensors: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for each in gc.get_objects():
            if issubclass(type(each), HOLDERS):
                self._keep(vars(each))
        self._torch, self._python, self._numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()

    def _keep(self, thing: Any) -> None:
        if isinstance(thing, torch.Tensor):
            self._keep_tensor(thing)
        elif isinstance(thing, dict | list | set | deque) and id(thing) not in self._containers:
            self._containers[id(thing)] = thing, list(thing.items()) if isinstance(thing, dict) else list(thing)
            for each in list(thing.values()) if isinstance(thing, dict) else list(thing):
                self._keep(each)
            if isinstance(thing, dict):
                for each in list(thing):  # an optimizer's state is kept by parameter
                    self._keep(each)

    def _keep_tensor(self, tensor: torch.Tensor) -> None:
        if tensor.is_leaf and tensor.requires_grad:
            self._gradients[id(tensor)] = tensor, tensor.grad
        if tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_inference():
            if tensor.numel() <= SMALL and id(tensor) not in self._tensors:
                self._tensors[id(tensor)] = tensor, tensor._version, tensor.detach().clone()

    def restore(self) -> None:
        """Put back what changed."""
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
    """Whether two lists hold the same objects; of pairs, the same two."""
    if len(now) != len(before):
        return False
    for a, b in zip(now, before, strict=True):
        if a is not b and not (type(a) is tuple and len(a) == 2 and a[0] is b[0] and a[1] is b[1]):
            return False
    return True

"""Python state of a training, saved and restored."""

from __future__ import annotations

import gc
import random
from collections import OrderedDict

import numpy as np
import torch
from torch import nn

from lazytpu.rehearsal.snapshot import SMALL, Snapshot


def test_scaler_and_host_random_state_are_restored():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scaler.scale(layer(torch.ones(1, 2)).sum()).backward()
    snapshot, before = Snapshot(), scaler.state_dict()
    drawn = torch.rand(2), random.random(), np.random.rand()
    scaler.step(optimizer)
    scaler.update(16.0)
    snapshot.restore()
    assert scaler.state_dict() == before
    again = torch.rand(2), random.random(), np.random.rand()
    assert torch.equal(drawn[0], again[0]) and drawn[1:] == again[1:]


def test_attributes_and_containers_of_modules_are_restored():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.seen, self.names = 0, [1], {"a": {1, 2}}
            self.register_buffer("mean", torch.zeros(2))

    module = Counting()
    buffers, names = module._buffers, module.names["a"]
    snapshot = Snapshot()
    module.calls, module.extra = 3, "new"
    module.seen.append(2)
    names.add(3)
    module.mean.add_(1)
    module.mean = torch.ones(5)
    snapshot.restore()
    assert (module.calls, module.seen, names) == (0, [1], {1, 2})
    assert not hasattr(module, "extra")
    assert module._buffers is buffers and module.mean.tolist() == [0, 0]


def test_optimizer_state_is_restored():
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight])
    snapshot = Snapshot()
    weight.grad = torch.ones(3)
    optimizer.step()
    snapshot.restore()
    assert not optimizer.state and weight.grad is None
    weight.grad = torch.ones(3)
    optimizer.step()
    snapshot = Snapshot()
    optimizer.step()
    snapshot.restore()
    assert optimizer.state[weight]["step"].item() == 1


def test_large_cpu_tensors_are_not_copied():
    module = nn.Module()
    module.register_buffer("table", torch.zeros(SMALL + 1))
    snapshot = Snapshot()
    module.table.add_(1)
    snapshot.restore()
    assert module.table.sum() == SMALL + 1


def test_containers_are_restored_in_order():
    module = nn.Module()
    module.order = OrderedDict(a=1, b=2)
    snapshot = Snapshot()
    module.order.move_to_end("a")
    snapshot.restore()
    assert list(module.order) == ["a", "b"]


def test_frozen_modules_and_optimizers_are_found():
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.5)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    gc.freeze()
    before, snapshot = optimizer.state[layer.weight]["momentum_buffer"], Snapshot()
    layer.extra = 3
    optimizer.state.clear()
    layer.weight.grad = None
    snapshot.restore()
    assert "extra" not in vars(layer)
    assert optimizer.state[layer.weight]["momentum_buffer"] is before
    assert layer.weight.grad is not None

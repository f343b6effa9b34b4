"""Moves of modules keep Parameter objects, whether the move or the optimizer came first."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(i))


def steps(module: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> list[float]:
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = module(torch.tensor([0, 3, 3, 6], device=device)).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_either_order_trains_the_same() -> None:
    torch.manual_seed(0)
    reference = Tied()
    first, second = copy.deepcopy(reference), copy.deepcopy(reference)
    before = torch.optim.SGD(first.parameters(), lr=0.1)
    weight = first.head.weight
    first.to("tpu")
    second.to("tpu")
    assert first.head.weight is weight is first.embedding.weight is before.param_groups[0]["params"][0]
    assert isinstance(weight, nn.Parameter)
    assert weight.is_leaf
    assert weight.requires_grad
    assert weight.device.type == "tpu"
    assert second.head.weight is second.embedding.weight
    expected = steps(reference, torch.optim.SGD(reference.parameters(), lr=0.1), "cpu")
    assert steps(first, before, "tpu") == pytest.approx(expected, rel=1e-5)
    assert steps(second, torch.optim.SGD(second.parameters(), lr=0.1), "tpu") == pytest.approx(expected, rel=1e-5)


def test_there_and_back() -> None:
    module = Tied()
    weight, values = module.head.weight, module.head.weight.detach().clone()
    module.to("tpu").cpu()
    assert module.head.weight is weight is module.embedding.weight
    assert weight.device.type == "cpu"
    assert torch.equal(weight.detach(), values)
    module.tpu().to(torch.float64)  # type: ignore[operator]
    assert weight.device.type == "tpu"
    assert weight.dtype == torch.float64
    assert module.head.weight is weight


def test_gradient_hooks_and_attributes_move_along() -> None:
    module = nn.Linear(3, 2)
    module(torch.ones(1, 3)).sum().backward()
    weight: Any = module.weight
    grad, seen = weight.grad, []
    weight.is_shared_by = "test"
    weight.register_hook(lambda g: seen.append("hook"))
    weight.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
    module.to("tpu")
    assert module.weight is weight
    assert weight.is_shared_by == "test"
    assert weight.grad is grad
    assert grad.device.type == "tpu"
    assert grad.tolist() == [[1, 1, 1]] * 2
    module(torch.ones(1, 3).to("tpu")).sum().backward()
    assert seen == ["hook", "after"]
    assert weight.grad.tolist() == [[2, 2, 2]] * 2


def test_buffers_frozen_parameters_and_dtypes() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    module[1].weight.requires_grad_(False)
    module.to("tpu", torch.bfloat16)
    assert {t.device.type for t in module.state_dict().values()} == {"tpu"}
    assert module[1].weight.dtype == torch.bfloat16
    assert not module[1].weight.requires_grad
    assert module[1].bias.requires_grad


def test_from_meta() -> None:
    with torch.device("meta"):
        module = nn.Linear(3, 2)
    weight = module.weight
    module.to_empty(device="tpu")
    assert module.weight is weight
    assert weight.device.type == "tpu"
    assert weight.shape == (2, 3)


def test_a_living_graph_refuses() -> None:
    module = nn.Linear(3, 2)
    loss = module(torch.ones(1, 3)).sum()
    module.to("tpu")
    with pytest.raises(RuntimeError, match="moved to another device after the forward of this backward"):
        loss.backward()
    linear = nn.Linear(3, 2)
    loss = linear(torch.ones(1, 3, requires_grad=True)).sum()  # saves the weight
    with pytest.raises(RuntimeError, match=r"cannot move Linear\.weight: .* Move the module before its first forward"):
        linear.to("tpu")
    assert loss.item() == loss.item()


def test_modules_on_the_cpu_are_moved_by_torch() -> None:
    module = nn.Linear(3, 2)
    weight, data = module.weight, module.weight.data_ptr()
    module.to("cpu").float()
    assert module.weight is weight
    assert weight.data_ptr() == data
    module.double()
    assert module.weight is weight
    assert weight.dtype == torch.float64


def test_moves_that_swap_contents_keep_objects_and_gradients() -> None:
    module = nn.Linear(2, 3).to("tpu")
    module.weight.grad = torch.ones(3, 2, device="tpu")
    weight, contents = module.weight, module.weight._cdata  # pyright: ignore[reportAttributeAccessIssue]
    held = weight.detach()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.to("cpu")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert module.weight is weight
    assert weight._cdata != contents  # pyright: ignore[reportAttributeAccessIssue]
    assert weight.device.type == "cpu"
    assert weight.grad is not None
    assert weight.grad.device.type == "cpu"
    assert torch.equal(held.cpu(), weight)

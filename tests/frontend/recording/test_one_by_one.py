"""Ops on lists whose tensors share memory: as on the CPU, where the elements are written one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lazytpu

Case = Callable[[str], list[torch.Tensor]]


def twice(device: str) -> list[torch.Tensor]:
    x = torch.arange(3.0, device=device)
    torch._foreach_add_([x, x], 1)
    return [x]


def overlapping(device: str) -> list[torch.Tensor]:
    x = torch.ones(4, device=device)
    torch._foreach_mul_([x[:3], x[1:]], 3)
    return [x]


def crosswise(device: str) -> list[torch.Tensor]:
    x, y = torch.arange(3.0, device=device), torch.ones(3, device=device)
    torch._foreach_add_([x, y], [y, x])
    return [x, y]


def numbers(device: str) -> list[torch.Tensor]:
    x, y = torch.ones(3, device=device), torch.full((3,), 2.0, device=device)
    torch._foreach_addcdiv_([x, y], [y, y], [x, x], [1.0, 2.0])
    return [x, y]


def one_for_all(device: str) -> list[torch.Tensor]:
    x, y = torch.tensor(3.0, device=device), torch.ones(3, device=device)
    torch._foreach_mul_([x, y], x)
    return [x, y]


@pytest.mark.parametrize("mode", ["fused", "strict"])
@pytest.mark.parametrize("case", [twice, overlapping, crosswise, numbers, one_for_all])
def test_each_element_sees_earlier_writes(case: Case, mode: str) -> None:
    with lazytpu.mode(mode):
        for ours, cpu in zip(case("tpu"), case("cpu"), strict=True):
            assert ours.tolist() == cpu.tolist()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam], ids=lambda o: o.__name__)
def test_two_parameters_of_one_storage(optimizer: type[torch.optim.Optimizer]) -> None:
    def trained(device: str) -> torch.Tensor:
        p = torch.nn.Parameter(torch.ones(2, device=device))
        q = torch.nn.Parameter(p.detach())
        p.grad = q.grad = torch.full((2,), 3.0, device=device)
        optimizer([p, q], lr=0.1, foreach=True).step()
        return p.detach()

    torch.testing.assert_close(trained("tpu").cpu(), trained("cpu"))


def test_parts_that_share_nothing_are_one_record() -> None:
    x = torch.ones(4, device="tpu")
    lazytpu.sync()
    before = lazytpu.metrics()["records"]
    torch._foreach_mul_([x[:2], x[2:]], 3)
    assert x.tolist() == [3.0] * 4
    assert lazytpu.metrics()["records"] == before + 1

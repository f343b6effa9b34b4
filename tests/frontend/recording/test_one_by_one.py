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


def test_elements_are_computed_on_their_own_devices() -> None:
    first = [torch.arange(3.0, device="tpu"), torch.ones(3)]
    second = [torch.full((3,), 2.0, device="tpu"), torch.full((3,), 3.0)]
    host = [[x.cpu() for x in tensors] for tensors in (first, second)]
    results = [*torch._foreach_pow(first, second), *torch._foreach_norm(first), *torch._foreach_mul(first, [2.0, 4.0])]
    wanted = [*torch._foreach_pow(*host), *torch._foreach_norm(host[0]), *torch._foreach_mul(host[0], [2.0, 4.0])]
    assert [x.device.type for x in results] == ["tpu", "cpu"] * 3
    assert all(torch.equal(got.cpu(), want) for got, want in zip(results, wanted, strict=True))
    torch._foreach_add_(first, second)
    torch._foreach_add_(*host)
    assert all(torch.equal(got.cpu(), want) for got, want in zip(first, host[0], strict=True))


def test_one_element_on_two_devices_is_refused() -> None:
    for tensors in ([torch.ones(2)], [torch.ones(2), torch.ones(2)]):
        with pytest.raises(RuntimeError, match="at least two devices"):
            torch._foreach_add([x.to("tpu") for x in tensors], tensors)


def test_foreach_copy_copies_between_devices() -> None:
    targets = [torch.zeros(2, device="tpu"), torch.zeros(2), torch.zeros(2, device="tpu")]
    torch._foreach_copy_(targets, [torch.ones(2), torch.ones(2, device="tpu"), torch.ones(2, device="tpu")])
    assert [x.tolist() for x in targets] == [[1.0, 1.0]] * 3
    assert [x.device.type for x in targets] == ["tpu", "cpu", "tpu"]

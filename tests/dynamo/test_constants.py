"""Inputs of a graph besides its arguments: constants, CPU tensors, random numbers, user-defined ops."""

from __future__ import annotations

import torch


def test_graphs_that_differ_in_a_constant_of_the_host_are_two() -> None:
    x = torch.ones(3, device="tpu")
    scalars = [torch.compile(lambda x, c=c: x + torch.tensor(c)) for c in (3.0, 4.0)]
    assert [f(x).tolist() for f in (*scalars, *scalars)] == [[4.0] * 3, [5.0] * 3] * 2
    vectors = [torch.compile(lambda x, c=c: x + torch.tensor(c).to(x.device)) for c in ([1.0, 2, 3], [4.0, 5, 6])]
    assert [f(x).tolist() for f in (*vectors, *vectors)] == [[2.0, 3, 4], [5.0, 6, 7]] * 2


def test_tensors_of_the_host_are_read_at_each_call() -> None:
    scale, offset = torch.tensor(2.0), torch.zeros(3)
    function = torch.compile(lambda x: x * scale + offset.to(x.device))
    x = torch.ones(3, device="tpu")
    assert function(x).tolist() == [2, 2, 2]
    scale.fill_(5)
    offset[0] = 1
    assert function(x).tolist() == [6, 5, 5]


def test_random_numbers_of_the_host_are_drawn_at_each_call() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4).to(x.device)

    x = torch.zeros(4, device="tpu")
    torch.manual_seed(3)
    expected = [function(x).tolist() for _ in range(3)]
    compiled = torch.compile(function)
    torch.manual_seed(3)
    assert [compiled(x).tolist() for _ in range(3)] == expected


def test_generators_of_the_device() -> None:
    generator = torch.Generator("tpu")

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4, device=x.device, generator=generator)

    x = torch.zeros(4, device="tpu")
    expected = [function(x).tolist() for _ in range(2)]
    generator.manual_seed(generator.initial_seed())
    compiled = torch.compile(function)
    assert [compiled(x).tolist() for _ in range(2)] == expected


calls = [0]


@torch.library.custom_op("lazytpu_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    calls[0] += 1
    return x * calls[0]


@counted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("lazytpu_tests::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor) -> None:
    calls[0] += 1
    x.mul_(calls[0])


def test_ops_of_the_user_run_at_each_call() -> None:
    def written(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        scale_(y)
        return y

    x = torch.ones(2, device="tpu")
    for function in (lambda x: counted(x) + 1, written):
        calls[0] = 0
        expected = [function(x).tolist() for _ in range(3)]
        calls[0] = 0
        compiled = torch.compile(function)
        assert [compiled(x).tolist() for _ in range(3)] == expected


def test_a_graph_that_reads_its_input() -> None:
    function = torch.compile(lambda x: (x.cpu() * 2).to(x.device) + x.cpu().sum().to(x.device))
    assert function(torch.ones(3, device="tpu")).tolist() == [5, 5, 5]
    assert function(torch.zeros(3, device="tpu")).tolist() == [0, 0, 0]

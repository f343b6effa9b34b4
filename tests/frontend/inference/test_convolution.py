"""Convolutions reject the same arguments as the CPU, at the call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

SETTINGS: list[dict[str, Any]] = [
    {"padding": -1}, {"stride": 0}, {"dilation": 0}, {"dilation": -1}, {"groups": 0}, {"groups": 2},
    {"padding": (1, 1, 1)}, {"stride": (1, 1, 1)},
]  # fmt: skip
TRANSPOSED: list[dict[str, Any]] = [
    {"output_padding": 1}, {"output_padding": -1}, {"output_padding": 3, "stride": 2}, {"groups": 2}, {"padding": -1},
]  # fmt: skip


def refusal(function: Any, device: str) -> str:
    with pytest.raises(RuntimeError) as error:
        function(device)
    return str(error.value).partition("output_padding_height")[0].partition("output_padding:")[0]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings_out_of_range(settings: dict[str, Any]) -> None:
    def call(device: str) -> torch.Tensor:
        return torch.conv2d(torch.ones(1, 3, 4, 4, device=device), torch.ones(2, 3, 2, 2, device=device), **settings)

    assert refusal(call, "tpu").partition(", but got")[0] == refusal(call, "cpu").partition(", but got")[0]


@pytest.mark.parametrize("settings", TRANSPOSED, ids=str)
def test_settings_of_transposed_convolutions(settings: dict[str, Any]) -> None:
    def call(device: str) -> torch.Tensor:
        image, weight = torch.ones(1, 3, 4, 4, device=device), torch.ones(3, 2, 2, 2, device=device)
        return torch.conv_transpose2d(image, weight, **settings)

    assert refusal(call, "tpu") == refusal(call, "cpu")


@pytest.mark.parametrize(
    ("weight", "bias"),
    [((2, 3, 2, 2), (3,)), ((0, 3, 2, 2), None), ((2, 3, 5, 5), None), ((2, 4, 2, 2), None), ((2, 3, 2), None)],
)
def test_operands_that_do_not_fit(weight: tuple[int, ...], bias: tuple[int, ...] | None) -> None:
    def call(device: str) -> torch.Tensor:
        of_bias = None if bias is None else torch.ones(bias, device=device)
        return torch.conv2d(torch.ones(1, 3, 4, 4, device=device), torch.ones(weight, device=device), of_bias)

    assert refusal(call, "tpu") == refusal(call, "cpu")


@pytest.mark.parametrize(("weight", "bias"), [("float64", "float32"), ("float32", "float64")])
def test_operands_of_two_dtypes(weight: str, bias: str) -> None:
    def call(device: str) -> torch.Tensor:
        image = torch.ones(1, 3, 4, 4, device=device)
        of_weight = torch.ones(2, 3, 2, 2, device=device, dtype=getattr(torch, weight))
        return torch.conv2d(image, of_weight, torch.ones(2, device=device, dtype=getattr(torch, bias)))

    assert refusal(call, "tpu") == refusal(call, "cpu")


def test_large_operands_are_refused_too() -> None:
    image = torch.empty(1, 3, 1024, 1024, device="tpu")
    with pytest.raises(RuntimeError, match="negative padding is not supported"):
        torch.conv2d(image, torch.ones(2, 3, 2, 2, device="tpu"), padding=-1)


@pytest.mark.parametrize("shapes", [((2, 0, 12), (0, 1, 3)), ((0, 4, 12), (4, 4, 3)), ((4, 12), (4, 4, 3))], ids=str)
@pytest.mark.parametrize("groups", [0, -1])
def test_groups_of_empty_convolutions(shapes: tuple[tuple[int, ...], tuple[int, ...]], groups: int) -> None:
    """Also when another empty convolution was accepted before."""

    def call(device: str) -> torch.Tensor:
        torch.conv1d(torch.ones(2, 0, 12, device=device), torch.ones(6, 0, 3, device=device))
        return torch.conv1d(*[torch.ones(shape, device=device) for shape in shapes], groups=groups)

    assert refusal(call, "tpu") == refusal(call, "cpu")

"""The memory format of results and gradients in three dimensions, where the CPU's kernels decide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


def _weight(x: Tensor, *sizes: int) -> Tensor:
    return torch.ones(sizes, dtype=x.dtype, device=x.device)


OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "conv3d": lambda x: F.conv3d(x, _weight(x, 2, x.shape[1], 1, 2, 2)),
    "conv3d dilated": lambda x: F.conv3d(x, _weight(x, 2, x.shape[1], 1, 2, 2), dilation=(1, 2, 1)),
    "conv_transpose3d": lambda x: F.conv_transpose3d(x, _weight(x, x.shape[1], 3, 1, 2, 3), stride=(1, 2, 3)),
    "channels_last weight": lambda x: F.conv3d(
        x, _weight(x, 2, x.shape[1], 1, 2, 2).to(memory_format=torch.channels_last_3d)
    ),
    "replicate": lambda x: F.pad(x, [1, 0, 1, 0, 1, 0], mode="replicate"),
    "reflect": lambda x: F.pad(x, [1, 0, 1, 0, 1, 0], mode="reflect"),
    "trilinear": lambda x: F.interpolate(x, (2, 3, 4), mode="trilinear"),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_strides_equal_the_cpus(name: str, dtype: torch.dtype) -> None:
    for shape in ((1, 2, 2, 5, 4), (2, 3, 2, 5, 4), (2, 1, 2, 5, 4)):
        for memory_format in (torch.channels_last_3d, torch.contiguous_format):
            strides: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
            for device in ("cpu", "tpu"):
                x = torch.ones(shape, dtype=dtype, device=device).to(memory_format=memory_format).requires_grad_()
                y = OPS[name](x)
                strides.append((y.stride(), torch.autograd.grad(y.sum(), x)[0].stride()))
            assert strides[1] == strides[0], (shape, memory_format)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_gradients_of_padding(mode: str) -> None:
    images = torch.ones(2, 3, 4, 5)
    for x in (images.to(memory_format=torch.channels_last), images.mT.contiguous().mT, images):
        strides: list[tuple[int, ...]] = []
        for device in ("cpu", "tpu"):
            leaf = x.to(device).requires_grad_()
            strides.append(torch.autograd.grad(F.pad(leaf, [1] * 4, mode=mode).sum(), leaf)[0].stride())
        assert strides[1] == strides[0], x.stride()


def test_fold_of_padded_windows() -> None:
    windows = torch.ones(1, 2, 10)
    strides = [F.fold(windows.to(d), (1, 19), (1, 2), (3, 1), (0, 1), (1, 2)).stride() for d in ("cpu", "tpu")]
    assert strides[1] == strides[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("name", ["rad2deg", "deg2rad", "nan_to_num", "logsigmoid", "ldexp", "pow"])
def test_results_of_transposed_tensors(name: str, dtype: torch.dtype) -> None:
    """With and without an out tensor that is resized."""
    if name == "logsigmoid" and dtype == torch.int8:
        dtype = torch.float64
    strides: list[list[tuple[int, ...]]] = []
    for device in ("cpu", "tpu"):
        x = torch.ones(4, 6, device=device).to(dtype).t()
        if name == "logsigmoid":
            function, arguments = torch._C._nn.log_sigmoid, (x,)
        else:
            operands = {"ldexp": (x, x), "pow": (2, x)}
            function, arguments = getattr(torch, name), operands.get(name, (x,))
        result = function(*arguments)
        out = torch.empty(0, dtype=result.dtype, device=device)
        strides.append([result.stride(), function(*arguments, out=out).stride()])
    assert strides[1] == strides[0]

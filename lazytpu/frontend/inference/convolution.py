"""Shapes, strides and errors of convolutions, as on the CPU (`check_shape_forward` in Convolution.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.torch_private import convolution_format, select_convolution, suggest_memory_format

aten = torch.ops.aten


def _format(input: torch.Tensor, weight: torch.Tensor, settings: Sequence[Any]) -> torch.memory_format:
    """Return the memory format of a convolution's result. `settings` are the arguments from the stride on.

    The CPU's convolutions keep channels_last if the input or the weight has it (and is not also contiguous). In three
    dimensions only oneDNN's do, so torch's own choice of a kernel is queried.
    """
    channels_last = torch.channels_last if input.dim() == 4 else torch.channels_last_3d
    if channels_last not in [suggest_memory_format(t) for t in (input, weight)]:
        return torch.contiguous_format
    if channels_last is torch.channels_last:
        return channels_last
    # Uninitialized CPU tensors, since the choice depends on the device.
    x, w = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu") for t in (input, weight))
    return convolution_format(x, w, select_convolution(x, w, None, *settings, None))


def _check_settings(
    rank: int,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
) -> None:
    """Raise RuntimeError for settings that are invalid for a convolution over `rank` dimensions."""
    named = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": output_padding}
    for name, values in named.items():
        if len(values) not in (1, rank):
            raise RuntimeError(
                f"expected {name} to be a single integer value or a list of {rank} values to match the convolution "
                f"dimensions, but got {name}={list(values)}"
            )
    if any(n < 0 for n in padding):
        raise RuntimeError("negative padding is not supported")
    if any(n < 0 for n in output_padding):
        raise RuntimeError("negative output_padding is not supported")
    if any(n <= 0 for n in stride):
        raise RuntimeError("non-positive stride is not supported")
    if any(n <= 0 for n in dilation):
        raise RuntimeError(f"dilation should be greater than zero, but got {list(dilation)}")
    if transposed and any(o >= max(s, d) for o, s, d in zip(output_padding, stride, dilation, strict=False)):
        raise RuntimeError(
            "output padding must be smaller than either stride or dilation, but got output_padding: "
            f"{list(output_padding)} stride: {list(stride)} dilation: {list(dilation)}"
        )


def _check_operands(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, transposed: bool, groups: int
) -> None:
    """Raise RuntimeError for a weight or bias that does not match the input, the groups or each other."""
    shape = list(weight.shape)
    if shape[0] < groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, but got weight of size "
            f"{shape} instead"
        )
    if shape[0] % groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, but got weight of "
            f"size [{shape}] instead"
        )
    if transposed and input.shape[1] != shape[0]:
        raise RuntimeError(
            f"Given transposed=1, weight of size {shape}, expected input{list(input.shape)} to have {shape[0]} "
            f"channels, but got {input.shape[1]} channels instead"
        )
    if weight.dtype != input.dtype:
        raise RuntimeError(
            f"Input type ({input.dtype}) and weight type ({weight.dtype}) should be the same or input should be a "
            "MKLDNN tensor and weight is a dense tensor"
        )
    if bias is None:
        return
    channels = shape[1] * groups if transposed else shape[0]
    if tuple(bias.shape) != (channels,):
        kind = f"transpose=True, weight of size {shape}" if transposed else f"weight of size {shape}"
        raise RuntimeError(
            f"Given {kind}, expected bias to be 1-dimensional with {channels} elements, but got bias of size "
            f"{list(bias.shape)} instead"
        )
    if bias.dtype != input.dtype:
        raise RuntimeError(f"Input type ({input.dtype}) and bias type ({bias.dtype}) should be the same")


@override("aten.convolution.default")
def convolution(**arguments: Any) -> torch.Tensor:
    """Return the meta function's shape, in the format that the CPU's kernels choose."""
    input, weight, bias, stride, padding, dilation, transposed, output_padding, groups = arguments.values()
    if groups <= 0:
        raise RuntimeError("non-positive groups is not supported")
    if input.dim() == weight.dim() > 2:
        _check_settings(input.dim() - 2, stride, padding, dilation, transposed, output_padding)
        _check_operands(input, weight, bias, transposed, groups)
        if 0 in input.shape[2:] and 0 not in input.shape[:2]:
            shape = list(input.shape)
            shape[2:2] = [1] * (4 - len(shape))  # the CPU computes vectors as images of one row
            raise RuntimeError(f"Only zero batch or zero channel inputs are supported, but got input shape: {shape}")
    result = aten.convolution.default(*arguments.values())
    settings = stride, padding, dilation, transposed, output_padding, groups
    memory_format = _format(input, weight, settings)
    return torch.empty(result.shape, dtype=result.dtype, device="meta", memory_format=memory_format)


@override("aten.convolution_backward.default")
def convolution_backward(**arguments: Any) -> tuple[torch.Tensor | None, ...]:
    """Return gradients in the layout of the convolution."""
    input, weight, mask = arguments["input"], arguments["weight"], arguments["output_mask"]
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    memory_format = _format(input, weight, [arguments[name] for name in names])
    grads = [torch.empty(t.shape, dtype=t.dtype, device="meta", memory_format=memory_format) for t in (input, weight)]
    sizes = arguments.get("bias_sizes") or arguments["grad_output"].shape[1:2]
    bias = torch.empty(sizes, dtype=input.dtype, device="meta")
    return tuple(g if m else None for g, m in zip([*grads, bias], mask, strict=True))

"""Sampling of images and volumes at given coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import wide
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

# `GridSamplerInterpolation` and `GridSamplerPadding` in ATen/native/GridSamplerUtils.h.
MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


@rule("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def grid_sampler(
    b: Builder, input: SSAValue, grid: SSAValue, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> SSAValue:
    """[N, C, …] sampled at the coordinates [N, …, dims], from -1 to 1; f16 and bf16 are computed in f32."""
    dtype, shape = b.out[0]
    if 0 in shape:
        return b.constant(0, dtype, shape)
    compute = wide(dtype)
    sampled = b.template(
        "grid_sampler",
        [b.convert(input, compute), b.convert(grid, compute)],
        [(compute, shape)],
        mode=MODES[interpolation_mode],
        padding=PADDINGS[padding_mode],
        align_corners=align_corners,
    )
    return b.convert(sampled[0], dtype)


@rule("aten.grid_sampler_2d_backward.default", "aten.grid_sampler_3d_backward.default")
def grid_sampler_backward(
    b: Builder,
    grad_output: SSAValue,
    input: SSAValue,
    grid: SSAValue,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: list[bool],
) -> tuple[SSAValue | None, SSAValue]:
    """Gradients of input (if requested) and grid."""
    dtype, compute = dtype_of(input), wide(dtype_of(input))
    if 0 in shape_of(grad_output):
        zeros = [b.constant(0, dtype, shape_of(v)) for v in (input, grid)]
        return zeros[0] if output_mask[0] else None, zeros[1]
    results = [(compute, shape_of(v)) for v in ((grid, input) if output_mask[0] else (grid,))]
    gradients = b.template(
        "grid_sampler_backward",
        [b.convert(v, compute) for v in (grad_output, input, grid)],
        results,
        mode=MODES[interpolation_mode],
        padding=PADDINGS[padding_mode],
        align_corners=align_corners,
        of_input=output_mask[0],
    )
    of_grid, of_input = b.convert(gradients[0], dtype), gradients[1] if output_mask[0] else None
    return None if of_input is None else b.convert(of_input, dtype), of_grid

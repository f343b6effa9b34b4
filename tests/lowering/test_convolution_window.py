"""Windows that XLA's algebraic simplifier would mistake for grouped convolutions, and then end the process."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from lazytpu.ir.reductions import windowed_shape
from lazytpu.lowering import emit, stablehlo_text
from lazytpu.lowering.convolution_window import ConvWindow, without_groups
from lazytpu.lowering.templates.registry import instance
from tests.lowering.harness import assert_close, compiled, interpreted, module_of, values


def is_group(window: ConvWindow, k: int) -> bool:
    """XLA's condition, in `SwapConvolutionOperandsIfBeneficial`, for a window of one dimension."""
    unpadded = window.low[0] == window.high[0] == 0 and window.rhs_dilation[0] == 1
    return unpadded and window.lhs_dilation[0] == k and window.strides[0] == k - 1


def test_only_groups_look_like_groups():
    changed = 0
    numbers = product((1, 2, 3), (-1, 0, 1), (-1, 0, 1), (1, 2, 3, 4), (1, 2), range(1, 6), range(1, 5))
    for stride, low, high, lhs_dilation, rhs_dilation, n, k in numbers:
        if (n - 1) * lhs_dilation + 1 + low + high < 0:
            continue
        original = ConvWindow([stride], [low], [high], [lhs_dilation], [rhs_dilation])
        window = without_groups(original, [n], [k])
        assert not is_group(window, k) or n == k
        assert (window is original) == (not is_group(original, k) or n == k)
        extra = windowed_shape([n], [k], *window)[0] - windowed_shape([n], [k], *original)[0]
        assert 0 <= extra <= 1
        changed += window is not original
    assert changed == 3 * 4  # kernels of 2, 3 and 4, inputs of the four other sizes


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("n", [2, 3, 11])
def test_values_with_a_larger_kernel(k, n):
    """The first dimension looks like a group, and the kernel is larger in the second, so that XLA swaps the two."""
    x, w = values("f32", (2, 2, n, 1)), values("f32", (4, 2, k, 3), seed=1)

    def build(b, x, w):
        return b.convolution(
            *(x, w),
            strides=[k - 1, 1],
            low=[0, 1],
            high=[0, 3],
            lhs_dilation=[k, 3],
            rhs_dilation=[1, 1],
            layout="NC01,OI01,NC01",
        )

    text = stablehlo_text(emit(module_of(build, ("f32", x.shape), ("f32", w.shape))))
    assert ("stablehlo.slice" in text) == (n != k)  # before XLA sees it
    assert_close(compiled(build, x, w)[0], interpreted(build, x, w)[0], factor=10)


@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_interior_padding_does_not_become_a_dilation(dtype):
    x, w = values(dtype, (2, 11, 1, 3)), values(dtype, (4, 3, 2, 3), seed=1)

    def spread(b, x):
        return b.pad(x, b.constant(0, dtype, ()), [0] * 4, [0] * 4, [0, 1, 0, 0])

    def build(b, x, w):
        window = {"strides": [1, 1], "low": [0, 1], "high": [0, 1], "lhs_dilation": [1, 1], "rhs_dilation": [1, 1]}
        return b.convolution(spread(b, x), w, **window, layout="N01C,OI01,N01C")

    types = (dtype, x.shape), (dtype, w.shape)
    barrier = "stablehlo.reduce_precision" if dtype == "f32" else "stablehlo.optimization_barrier"
    assert barrier in stablehlo_text(emit(module_of(build, *types)))
    assert barrier not in stablehlo_text(emit(module_of(spread, types[0])))
    assert_close(compiled(build, x, w)[0], interpreted(build, x, w)[0], factor=10)


def test_templates_use_the_same_window():
    window = {"strides": (1, 1), "low": (0, 1), "high": (0, 1), "lhs_dilation": (2, 1), "rhs_dilation": (1, 1)}
    parameters = {**window, "groups": 2, "precision": "highest"}

    def build(b, x, w):
        return b.template("convolution", [x, w], [("f32", (2, 4, 20, 1))], **parameters)[0]

    x, w = values("f32", (2, 4, 11, 1)), values("f32", (4, 2, 2, 3), seed=1)
    operands = ("f32", x.shape), ("f32", w.shape)
    assert b"slice" in instance("convolution", operands, parameters, "cpu").bytecode
    (got,) = compiled(build, x, w)
    padded = np.zeros((2, 4, 21, 3), np.float32)
    padded[:, :, ::2, 1:2] = x
    for group in range(2):
        image, kernel = padded[:, 2 * group : 2 * group + 2], w[2 * group : 2 * group + 2]
        want = sum(np.einsum("nchw,ocw->noh", image[:, :, t : t + 20], kernel[:, :, t]) for t in range(2))
        assert_close(got[:, 2 * group : 2 * group + 2, :, 0], want, factor=10)

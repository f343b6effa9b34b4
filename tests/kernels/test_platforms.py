"""Pallas kernels are interpreted on a CPU, and compiled by Mosaic on a TPU, from the same record."""

from __future__ import annotations

import re
from typing import Any

import jax
import pytest
import torch
from jax.experimental import pallas as pl

from lazytpu.engine.compiling.translate import translate
from lazytpu.lowering.errors import LoweringError
from lazytpu.pallas import custom_jax_kernel
from lazytpu.passes.target import Target
from lazytpu.rehearsal.rehearse import rehearse_once
from tests.kernels.pallas_kernels import matmul, softmax


def stablehlo(call: Any, target: str) -> str:
    """Return the StableHLO of the program that `call` records, for a target."""
    (program,) = rehearse_once(call)
    platform = "tpu" if target != "cpu" else "cpu"
    return translate(
        program.records,
        program.live,
        program.dead,
        program.names,
        name="step",
        bounds_check=False,
        target=Target.parse(target),
        platform=platform,
    ).stablehlo


@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_kernel_is_mosaic_on_a_tpu(target: str):
    x, y = torch.ones(16, 128, device="tpu"), torch.ones(128, 128, device="tpu")
    rows, product = custom_jax_kernel(softmax), custom_jax_kernel(lambda x, y: matmul(x, y, bm=8))
    text = stablehlo(lambda: rows(product(x, y)), target)
    assert text.count("@tpu_custom_call") == 2
    assert "stablehlo.while" not in text
    estimates = re.findall(r"flops\\22:(\d+)", text)
    assert estimates[0] == str(2 * 16 * 128 * 128 + 2 * 8 * 128)  # products, and the sums of a block


def test_kernel_is_interpreted_on_a_cpu():
    x = torch.ones(16, 128, device="tpu")
    rows = custom_jax_kernel(softmax)
    text = stablehlo(lambda: rows(x), "cpu")
    assert "custom_call" not in text
    assert "stablehlo.while" in text


def test_interpret_and_cost_estimate_of_the_kernel_are_kept():
    def scale(x: jax.Array) -> jax.Array:
        def body(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] * 2

        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        estimate = pl.CostEstimate(flops=123, transcendentals=45, bytes_accessed=678)
        return pl.pallas_call(body, out_shape=shape, cost_estimate=estimate)(x)

    def interpreted(x: jax.Array) -> jax.Array:
        def body(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] * 2

        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    x = torch.ones(8, 128, device="tpu")
    text = stablehlo(lambda: custom_jax_kernel(scale)(x), "v6e")
    assert (r"\22flops\22:123" in text.replace("\\22", r"\22")) and ("45" in text)
    assert "custom_call" not in stablehlo(lambda: custom_jax_kernel(interpreted)(x), "v6e")


def test_gradient_of_a_kernel_for_a_tpu():
    x = torch.ones(16, 128, device="tpu").requires_grad_()
    rows = custom_jax_kernel(softmax)

    def step() -> Any:
        x.grad = None
        rows(x).square().sum().backward()
        return x.grad

    assert stablehlo(step, "v6e").count("@tpu_custom_call") == 1  # the kernel; its derivative is XLA's


def added(x: jax.Array, i: jax.Array) -> jax.Array:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(body, grid=(2,), in_specs=[rows], out_specs=rows, out_shape=shape)(x + i.astype(x.dtype))


def narrow(x: jax.Array, i: jax.Array) -> jax.Array:
    with jax.enable_x64(False):
        return added(x, i)


def test_wide_operands_of_a_kernel_for_a_tpu_are_refused():
    x, i = torch.ones(16, 128, device="tpu"), torch.ones(16, 128, device="tpu", dtype=torch.int64)
    kernel = custom_jax_kernel(added)
    assert kernel(x, i).sum().item() == 4 * 16 * 128
    with pytest.raises(LoweringError, match=r"(?s)added cannot be lowered for 'tpu'.*64-bit numbers.*x.int\(\)"):
        stablehlo(lambda: kernel(x, i), "v6e")
    assert "tpu_custom_call" in stablehlo(lambda: kernel(x, i.int()), "v6e")
    assert "tpu_custom_call" in stablehlo(lambda: custom_jax_kernel(narrow)(x, i), "v6e")

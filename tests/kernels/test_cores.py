"""Kernels of `pl.kernel`, whose body runs once on each core and moves its blocks itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

import lazytpu
from lazytpu.kernels.jaxprs import equations, is_kernel
from lazytpu.kernels.pallas_calls import as_pallas_call
from lazytpu.pallas import custom_jax_kernel
from lazytpu.runtime.xla.jax_private import DIFFERENTIATES_MEMORY, imagine_chip
from tests.kernels.test_platforms import stablehlo

if hasattr(pltpu, "TensorCoreMesh"):  # since jax 0.12
    CORE = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
else:
    CORE = pltpu.create_tensorcore_mesh("core", num_cores=1)


def copied(x: jax.Array, y: jax.Array) -> jax.Array:
    """Adds by explicit copies to and from the chip's memory."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        def run(x: Any, y: Any, o: Any, semaphore: Any) -> None:
            pltpu.async_copy(x_ref, x, semaphore).wait()
            pltpu.async_copy(y_ref, y, semaphore).wait()
            o[...] = x[...] * y[...] + x[...]
            pltpu.async_copy(o, o_ref, semaphore).wait()

        blocks = [pltpu.VMEM(x.shape, x.dtype) for _ in range(3)]
        pl.run_scoped(run, *blocks, pltpu.SemaphoreType.DMA(()))

    return pl.kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype), mesh=CORE)(x, y)


def pipelined(x: jax.Array, y: jax.Array) -> jax.Array:
    """The same in blocks, by `emit_pipeline`, which asks for the properties of the chip."""

    def block(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...] * y[...] + x[...]

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(block, grid=(x.shape[0] // 8,), in_specs=[rows, rows], out_specs=[rows])(
            x_ref, y_ref, o_ref
        )

    return pl.kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype), mesh=CORE)(x, y)


KERNELS = pytest.mark.parametrize("function", [copied, pipelined])
Function = Callable[[jax.Array, jax.Array], jax.Array]


@KERNELS
@pytest.mark.parametrize("mode", ["fused", "strict", "lazy", "debug"])
def test_values(function: Function, mode: str):
    kernel = custom_jax_kernel(function)
    x, y = torch.randn(32, 128), torch.randn(32, 128)
    with lazytpu.mode(mode):
        result = kernel(x.to("tpu"), y.to("tpu"))
    assert result.device.type == "tpu"
    torch.testing.assert_close(result.cpu(), x * y + x)


@KERNELS
def test_gradients_and_their_gradients(function: Function):
    kernel = custom_jax_kernel(function)
    if not DIFFERENTIATES_MEMORY:
        with pytest.raises(NotImplementedError, match=r"no default gradient with this release of jax.*defvjp"):
            kernel(*(torch.ones(16, 128, device="tpu", requires_grad=True) for _ in range(2))).sum().backward()
        return
    found = []
    for device, call in (("cpu", lambda x, y: x * y + x), ("tpu", kernel)):
        torch.manual_seed(0)
        x, y = (torch.randn(16, 128).to(device).requires_grad_() for _ in range(2))
        (first,) = torch.autograd.grad(call(x, y).square().sum(), x, create_graph=True)
        found.append([t.cpu() for t in (first, *torch.autograd.grad(first.square().sum(), (x, y)))])
    for ours, theirs in zip(*reversed(found), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


@KERNELS
def test_kernel_is_mosaic_on_a_tpu_with_an_estimate(function: Function):
    x = torch.ones(32, 128, device="tpu")
    text = stablehlo(lambda: custom_jax_kernel(function)(x, x), "v6e")
    assert text.count("@tpu_custom_call") == 1
    assert int(re.findall(r"bytes_accessed\\22:(\d+)", text)[0]) == 3 * 32 * 128 * 4
    work = int(re.findall(r"flops\\22:(\d+)", text)[0])
    assert 2 * 32 * 128 <= work < 2.1 * 32 * 128  # a product and a sum, and indices of the pipeline


def test_an_estimate_of_the_kernel_is_kept():
    def scale(x: jax.Array) -> jax.Array:
        def body(x_ref: Any, o_ref: Any) -> None:
            pltpu.sync_copy(x_ref, o_ref)

        estimate = pl.CostEstimate(flops=123, transcendentals=45, bytes_accessed=678)
        return pl.kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype), mesh=CORE, cost_estimate=estimate)(x)

    x = torch.ones(8, 128, device="tpu")
    assert re.search(r"flops\\22:123", stablehlo(lambda: custom_jax_kernel(scale)(x), "v6e"))


def test_64_bits_are_refused_for_a_tpu():
    x = torch.ones(8, 128, device="tpu", dtype=torch.float64)
    with pytest.raises(Exception, match=r"64-bit numbers"):
        stablehlo(lambda: custom_jax_kernel(copied)(x, x), "v6e")


def test_loops_and_branches_count():
    """A loop as often as it runs, and the costliest branch."""

    def work(x: jax.Array) -> jax.Array:
        def body(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = jax.lax.fori_loop(0, 10, lambda i, a: a * 2.0, x_ref[...])

            @pl.when(pl.program_id(0) == 0)
            def _() -> None:
                o_ref[...] = jnp.exp(o_ref[...])

        return pl.pallas_call(body, grid=(3,), out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    x = torch.ones(8, 128, device="tpu")
    text = stablehlo(lambda: custom_jax_kernel(work)(x), "v6e")
    assert int(re.findall(r"flops\\22:(\d+)", text)[0]) // (8 * 128) == 3 * 10
    assert int(re.findall(r"transcendentals\\22:(\d+)", text)[0]) == 3 * 8 * 128


def scaled(x: jax.Array, y: jax.Array) -> jax.Array:
    """Multiplies by a pipeline in the block of another one, with references of both, in a called function as well."""

    @jax.jit
    def product(x: Any, y: Any) -> jax.Array:
        return x[...] * y[...]

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        def rows(y: Any) -> None:
            def columns(x: Any, o: Any) -> None:
                o[...] = product(x, y) + y[pl.ds(0, 8)]

            row = pl.program_id(0)
            tile = pl.BlockSpec((8, 128), lambda i: (row, i))
            pltpu.emit_pipeline(columns, grid=(2,), in_specs=[tile], out_specs=[tile])(x_ref, o_ref)

        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(rows, grid=(2,), in_specs=[block])(y_ref)

    return pl.kernel(body, jax.ShapeDtypeStruct(x.shape, x.dtype), mesh=CORE)(x, y)


def doubled(x: jax.Array) -> jax.Array:
    """Doubles in place, in memory that the kernel refers to."""
    memory = jax.new_ref(x)

    def body() -> None:
        def run(block: Any, semaphore: Any) -> None:
            pltpu.async_copy(memory, block, semaphore).wait()
            block[...] = block[...] * 2
            pltpu.async_copy(block, memory, semaphore).wait()

        pl.run_scoped(run, pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA(()))

    pl.kernel(body, (), mesh=CORE)()
    return memory[...]


def test_references_that_a_function_makes():
    x = torch.randn(8, 128)
    torch.testing.assert_close(custom_jax_kernel(doubled)(x.to("tpu")).cpu(), x * 2)


def test_pipelines_in_a_pipeline():
    x, y = torch.randn(16, 256), torch.randn(16, 128)
    result = custom_jax_kernel(scaled)(x.to("tpu"), y.to("tpu"))
    torch.testing.assert_close(result.cpu(), x * y.repeat(1, 2) + y.repeat(1, 2))


def test_several_bodies_are_refused_on_a_cpu():
    """jax interprets one body at most, such as the one of a SparseCore's scalar core here."""
    imagine_chip()
    scalar = plsc.ScalarSubcoreMesh(axis_name="core", num_cores=1)
    vector = plsc.VectorSubcoreMesh(core_axis_name="core", subcore_axis_name="part", num_cores=1)

    def on(meshes: list[Any]) -> Callable[[jax.Array], jax.Array]:
        def copied(x: jax.Array) -> jax.Array:
            def body(x_ref: Any, o_ref: Any) -> None:
                pltpu.sync_copy(x_ref, o_ref)

            return pl.kernel([body] * len(meshes), jax.ShapeDtypeStruct(x.shape, x.dtype), mesh=meshes)(x)

        return copied

    x = torch.ones(8, 128, device="tpu")
    assert custom_jax_kernel(on([scalar]))(x).sum().item() == 8 * 128
    with pytest.raises(ValueError, match=r"copied cannot be lowered for 'cpu': .*multiple mesh"):
        custom_jax_kernel(on([scalar, vector]))(x)
    closed = jax.make_jaxpr(on([scalar, vector]))(jax.ShapeDtypeStruct((8, 128), "float32"))
    (call,) = filter(is_kernel, equations(closed.jaxpr))
    with pytest.raises(NotImplementedError, match=r"no default gradient"):
        as_pallas_call(call)


def test_one_step_is_one_program():
    kernel = custom_jax_kernel(pipelined)
    x, w = torch.randn(32, 128, device="tpu"), torch.randn(128, 128, device="tpu")
    lazytpu.sync()
    before = lazytpu.metrics()["compiles"]
    for _ in range(3):
        kernel((x @ w).softmax(-1), x).sum().item()
    assert lazytpu.metrics()["compiles"] == before + 1

"""Pallas kernels from JAX's tutorials as layers of a torch model: softmax, blocked matmul, fused RMSNorm.

python examples/custom_kernel.py          # interpreted on a CPU, Mosaic on a TPU
"""

from __future__ import annotations

import functools
import sys

import jax
import jax.numpy as jnp
import torch
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import lazytpu

# --- softmax, a block of rows at a time


def softmax_kernel(x_ref, o_ref):
    x = x_ref[...]
    exps = jnp.exp(x - jnp.max(x, axis=-1, keepdims=True))
    o_ref[...] = exps / jnp.sum(exps, axis=-1, keepdims=True)


@lazytpu.pallas.custom_jax_kernel
def softmax(x: jax.Array) -> jax.Array:
    block = pl.BlockSpec((min(8, x.shape[0]), x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        softmax_kernel,
        grid=(pl.cdiv(x.shape[0], 8),),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x)


# --- a blocked matmul, which adds up the products of blocks in scratch memory


def matmul_kernel(x_ref, y_ref, z_ref, acc_ref, *, nsteps):
    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == nsteps - 1)
    def _():
        z_ref[...] = acc_ref[...].astype(z_ref.dtype)


@lazytpu.pallas.custom_jax_kernel
@functools.partial(jax.jit, static_argnames=["bm", "bk", "bn"])
def matmul(x: jax.Array, y: jax.Array, *, bm: int = 128, bk: int = 128, bn: int = 128):
    m, k = x.shape
    _, n = y.shape
    return pl.pallas_call(
        functools.partial(matmul_kernel, nsteps=k // bk),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
                pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
            grid=(m // bm, n // bn, k // bk),
        ),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    )(x, y)


# --- RMSNorm in one pass over the rows, with a gradient written by hand


def rms_norm_kernel(x_ref, w_ref, o_ref, *, eps):
    x = x_ref[...]
    scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    o_ref[...] = x * scale * w_ref[...]


@lazytpu.pallas.custom_jax_kernel
def rms_norm(x: jax.Array, weight: jax.Array, *, eps: float = 1e-6) -> jax.Array:
    rows = pl.BlockSpec((min(8, x.shape[0]), x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(rms_norm_kernel, eps=eps),
        grid=(pl.cdiv(x.shape[0], 8),),
        in_specs=[rows, pl.BlockSpec((1, x.shape[1]), lambda i: (0, 0))],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, weight.reshape(1, -1))


def rms_norm_forward(x, weight, *, eps=1e-6):
    return rms_norm.function(x, weight, eps=eps), (x, weight, eps)


def rms_norm_backward(saved, g):
    x, weight, eps = saved
    scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    normal, gw = x * scale, g * weight
    return (gw - normal * jnp.mean(gw * normal, axis=-1, keepdims=True)) * scale, jnp.sum(g * normal, axis=0)


rms_norm.defvjp(rms_norm_forward, rms_norm_backward)


# --- a torch model of them


class Classifier(torch.nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(width, 2 * width) / width**0.5)
        self.scale = torch.nn.Parameter(torch.ones(2 * width))
        self.head = torch.nn.Linear(2 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = rms_norm(matmul(x, self.up, bm=32, bk=32, bn=32).relu(), self.scale)
        return softmax(self.head(hidden))


def main(steps: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 32)
    target = (x[:, :4].argmax(-1)).to("tpu")
    x = x.to("tpu")

    torch.testing.assert_close(softmax(x).cpu(), x.cpu().softmax(-1))
    torch.testing.assert_close(matmul(x, x.t(), bm=32, bk=32, bn=32).cpu(), x.cpu() @ x.cpu().t(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        rms_norm(x, x[0]).cpu(), torch.nn.functional.rms_norm(x.cpu(), (32,), x[0].cpu(), 1e-6), rtol=1e-4, atol=1e-4
    )
    per_row = torch.func.vmap(torch.func.grad(lambda row: softmax(row[None]).square().sum()))(x)
    assert per_row.shape == x.shape

    model = Classifier(32, 4).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        chances = model(x)
        loss = -chances.gather(1, target[:, None]).log().mean()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}")
    calls = lazytpu.graphs()[-1].text().count("lazytpu.jax_call ")
    print(f"the last program has {calls} calls of custom kernels")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)

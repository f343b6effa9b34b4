"""Tensors and JAX arrays in the same memory."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import lazytpu
from lazytpu import interop
from lazytpu.frontend.tensors import value_of


def address(array: Any) -> int:
    return array.unsafe_buffer_pointer()


def test_memory_is_shared_both_ways():
    x = torch.arange(6.0).reshape(2, 3).to("tpu")
    array = interop.to_jax(x)
    assert address(array) == address(value_of(x).buffer.array)
    again = interop.from_jax(array)
    assert address(value_of(again).buffer.array) == address(array)
    assert (again * 2).tolist() == [[0, 2, 4], [6, 8, 10]]
    assert address(interop.to_jax(interop.from_jax(jnp.ones(3)))) != 0


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.int64, torch.float64, torch.bool, torch.float8_e5m2, torch.complex64]
)
def test_dtypes_are_preserved(dtype: torch.dtype):
    x = torch.tensor([0, 1, 1, 0]).to(dtype)
    array = interop.to_jax(x.to("tpu"))
    assert array.dtype.itemsize == dtype.itemsize
    back = interop.from_jax(array)
    assert back.dtype is dtype
    assert torch.equal(back.cpu().to(torch.complex128), x.to(torch.complex128))


def test_views_and_unwritten_memory():
    x = torch.arange(6.0).reshape(2, 3).to("tpu")
    assert interop.to_jax(x.t()).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert interop.to_jax(x[1]).tolist() == [3, 4, 5]
    assert interop.to_jax(torch.empty(2, 0, device="tpu")).shape == (2, 0)
    assert interop.to_jax(torch.zeros(2, device="tpu")).tolist() == [0, 0]


def test_exported_memory_is_never_donated():
    x = torch.ones(256, device="tpu")
    array = interop.to_jax(x)
    with lazytpu.mode("lazy"):
        x.add_(1)
        lazytpu.mark_step()
        x.mul_(3)
        lazytpu.mark_step()
    assert array.sum() == 256
    assert x.sum().item() == 256 * 6


def test_deleted_export_pins_nothing():
    x = torch.arange(256.0).to("tpu")
    buffer = value_of(x).buffer
    array = interop.to_jax(x)
    assert buffer.pins == 1
    del array
    gc.collect()
    assert buffer.pins == 0


def test_imported_memory_is_never_donated():
    array = jnp.arange(256.0)
    x = interop.from_jax(array)
    with lazytpu.mode("lazy"):
        for _ in range(3):
            x.add_(1)
            lazytpu.mark_step()
    assert array[3] == 3
    assert x[3].item() == 6


def test_array_donated_by_jax_invalidates_the_tensor():
    x = torch.ones(256, device="tpu")
    array = interop.to_jax(x)
    jax.block_until_ready(jax.jit(lambda a: a + 1, donate_argnums=0)(array))
    with pytest.raises(RuntimeError, match=r"deleted|donated"):
        (x + 1).cpu()
    assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="this array was deleted, or donated"):
        interop.from_jax(array)


def test_unsupported_exchanges_are_refused():
    x = torch.ones(2, device="tpu")
    with pytest.raises(RuntimeError, match=r"requires a gradient.*to_jax\(x.detach\(\)\), or call_jax"):
        interop.to_jax(x.requires_grad_())
    with pytest.raises(RuntimeError, match="this one is on 'cpu'"):
        interop.to_jax(torch.ones(2))
    with pytest.raises(TypeError, match="to_jax takes a tensor; got a list"):
        interop.to_jax([1])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"from_jax takes a jax\.Array; got a ndarray"):
        interop.from_jax(np.ones(2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"is traced.*torch_function"):
        jax.jit(interop.from_jax)(jnp.ones(2))
    with pytest.raises(NotImplementedError, match="no tensor can have the dtype int4"):
        interop.from_jax(jnp.ones(2, jnp.int4))
    with pytest.raises(IndexError):  # a failure on the device is reported here, as at any read
        interop.to_jax(torch.arange(3).to("tpu")[torch.tensor([7]).to("tpu")])


def test_call_jax_shares_gradients():
    x = torch.randn(5).to("tpu").requires_grad_()
    y = interop.call_jax(jnp.sin, x * 2)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), 2 * torch.cos(2 * x.detach().cpu()))


def test_views_trees_and_functions():
    x = torch.arange(3.0).to("tpu")
    viewed = interop.jax_view({"a": x, "n": 1})
    assert viewed["a"].tolist() == [0, 1, 2]
    assert interop.torch_view(viewed)["a"].tolist() == [0, 1, 2]
    assert interop.torch_view(jnp.cos)(x)[0].item() == 1
    assert interop.jax_view(torch.cos)(viewed["a"])[0] == 1

"""Conversion of tensors to JAX arrays and back, without a copy if both are on this device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from jax.core import Tracer

from lazytpu.aten import dtypes
from lazytpu.aten.host_arrays import from_numpy
from lazytpu.frontend import activation, tensors
from lazytpu.frontend.lines import call_site
from lazytpu.frontend.storage.copies import read
from lazytpu.ir.types import numpy_dtype
from lazytpu.runtime.xla import client
from lazytpu.trace.value import EMPTY, resident, row_major

TORCH_DTYPES = {numpy_dtype(name): dtype for dtype, name in dtypes.NAMES.items()}
"""The dtype of an array -> the dtype of its tensor."""


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Return a JAX array of a tensor; see `lazytpu.interop.to_jax`."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"to_jax takes a tensor; got a {type(tensor).__name__}")
    if tensor.requires_grad:
        raise RuntimeError(
            "this tensor requires a gradient, and a JAX array knows nothing of autograd: use to_jax(x.detach()), or "
            "call_jax(function, x), which shares gradients"
        )
    if tensor.device.type != "tpu":
        raise RuntimeError(f"to_jax takes a tensor on 'tpu'; this one is on '{tensor.device}': x.to('tpu') moves it")
    if not tensors.is_plain(tensor):
        raise RuntimeError(
            f"to_jax takes a dense tensor; a {type(tensor).__name__} ({tensor.layout}) holds others: give it "
            "those, such as x.to_local() of a DTensor, or make it dense"
        )
    tensor = tensor.resolve_conj().resolve_neg()
    if not tensors.is_natural(tensor, tensors.value_of(tensor).layout) or not tensor.is_contiguous():
        tensor = tensor.clone(memory_format=torch.contiguous_format)  # a view: its elements, on the device
    value = tensors.value_of(tensor)
    dtype = numpy_dtype(dtypes.name(tensor.dtype))
    with jax.enable_x64(True):  # 64-bit types stay 64-bit
        if value.buffer is EMPTY:
            return jax.device_put(np.zeros(tensor.shape, dtype), client.devices()[0])
        array = read(value, activation.engine().share)
        return array if array.dtype == dtype else array.view(dtype)


def from_jax(array: Any) -> torch.Tensor:
    """Return a tensor of a JAX array; see `lazytpu.interop.from_jax`."""
    if isinstance(array, Tracer):
        raise TypeError(
            "from_jax got an array that is traced (inside of jax.jit, grad or vmap) and has no values. To call torch "
            "there, wrap the torch function: lazytpu.interop.torch_function(function)"
        )
    if not isinstance(array, jax.Array):
        raise TypeError(f"from_jax takes a jax.Array; got a {type(array).__name__}")
    if array.is_deleted():
        raise RuntimeError("this array was deleted, or donated to a function of JAX")
    dtype = TORCH_DTYPES.get(array.dtype)
    if dtype is None:
        raise NotImplementedError(f"no tensor can have the dtype {array.dtype}: convert the array first")
    if not array.is_fully_addressable:
        raise RuntimeError("from_jax takes an array of this process's devices: gather it first (jax.device_get)")
    activation.activate()
    kind = tensors.layout(dtype, tuple(array.shape), row_major(tuple(array.shape)))
    if client.is_ours(array):
        with jax.enable_x64(True):
            bits = array.view(np.uint8) if dtype in dtypes.FLOATS8 else array
        return tensors.wrap(resident(kind, activation.engine().adopt(bits, call_site())))
    host = np.array(array)  # a copy in new memory
    flat = from_numpy(host.view(np.uint8) if dtype in dtypes.FLOATS8 else host, dtype)
    return flat.reshape(tuple(array.shape)).to("tpu")

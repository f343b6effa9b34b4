"""Errors of invalid kernels are raised at the call, with advice; the device stays usable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl

from lazytpu.pallas import custom_jax_kernel

COUNT = 0
KEPT: list[Any] = []


def counting(x: Any) -> Any:
    global COUNT
    COUNT += 1
    return x


def keeping(x: Any) -> Any:
    KEPT.append(x * 2)
    return x


def of_wrong_block(x: Any) -> Any:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[:1]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def printing(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


def declared(out_shape: Any) -> Callable[..., Any]:
    return custom_jax_kernel(out_shape=out_shape)(lambda x: x)


def aliased(aliases: dict[int, int], function: Any = lambda x: x) -> Callable[..., Any]:
    return custom_jax_kernel(input_output_aliases=aliases)(function)


CASES: dict[str, tuple[Any, type[Exception], str]] = {
    "numpy": (lambda x: np.exp(np.asarray(x)), TypeError, "is not a JAX function: .*Write it with jax.numpy"),
    "torch": (lambda x: torch.exp(x), TypeError, "is not a JAX function: it calls torch.*Write it with jax.numpy"),
    "tensor": (lambda x: torch.ones(2), TypeError, "returned a torch.Tensor: it is computed by torch"),
    "text": (lambda x: "a", TypeError, "returned a builtins.str: a kernel returns arrays"),
    "nothing": (lambda x: None, TypeError, "returned no array"),
    "branch": (lambda x: x if x.sum() > 0 else -x, TypeError, "depends on the values of an array.*jnp.where"),
    "leak": (keeping, RuntimeError, "keeping keeps an array.*Return it as a result"),
    "global": (counting, RuntimeError, "counting has a side effect .it changes COUNT.*Remove it"),
    "print": (printing, RuntimeError, "printing has a side effect .debug_print"),
    "callback": (lambda x: jax.pure_callback(np.sin, x, x), RuntimeError, "side effect .pure_callback"),
    "shapes": (lambda x: x + jnp.ones(3), TypeError, "incompatible shapes for broadcasting"),
    "block": (of_wrong_block, ValueError, "of_wrong_block: Invalid shape"),
    "axis": (lambda x: jax.lax.psum(x, "i"), RuntimeError, "unbound axis name: i"),
    "int4": (lambda x: x.astype(jnp.int4), NotImplementedError, "dtype int4, which no tensor can have"),
    "shape": (declared(jax.ShapeDtypeStruct((3,), jnp.float32)), ValueError, r"declared as float32\[3\] by out_shape"),
    "dtype": (declared(lambda x: x.astype(jnp.int32)), ValueError, "declared as int32.*returned float32.*Correct one"),
    "form": (declared(lambda x: (x, x)), ValueError, "declares results of the form"),
    "alias dtype": (aliased({0: 0}, lambda x: x.astype(int)), ValueError, "they have to be the same"),
    "alias place": (aliased({2: 0}), ValueError, "has 2: 0, but there are 1 operands and 1 results"),
    "too many": (lambda x, y: x, TypeError, "missing a required argument: 'y'"),
}


@pytest.mark.parametrize("name", CASES)
def test_invalid_functions_are_refused(name: str):
    function, kind, message = CASES[name]
    kernel = function if isinstance(function, type(custom_jax_kernel(jnp.sin))) else custom_jax_kernel(function)
    x = torch.ones(2, device="tpu")
    for _ in range(2):  # a refused call leaves no state
        with pytest.raises(kind, match=f"(?s){message}"):
            kernel(x)
    assert (x + 1).tolist() == [2, 2]


def test_array_of_an_earlier_call_is_refused():
    x = torch.ones(2, device="tpu")
    with pytest.raises(RuntimeError, match="keeps an array"):
        custom_jax_kernel(keeping)(x)
    with pytest.raises(RuntimeError, match=r"uses an array that an earlier call of it.*kept"):
        custom_jax_kernel(lambda x: x + KEPT[-1])(x)
    KEPT.clear()


def test_message_shows_no_file_of_lazytpu():
    with pytest.raises(TypeError) as caught:
        custom_jax_kernel(CASES["branch"][0])(torch.ones(2, device="tpu"))
    assert "lazytpu/kernels" not in str(caught.value)


def test_tensors_on_other_devices_are_refused():
    kernel, x = custom_jax_kernel(lambda x, y: x + y), torch.ones(2, device="tpu")
    for arguments in ((x.cpu(), x.cpu()), (x, x.cpu())):
        with pytest.raises(RuntimeError, match=r"but argument [xy], a float32\[2\], is on 'cpu'"):
            kernel(*arguments)
    assert kernel(x, x).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="expected tensors on 'tpu', got tensors on cpu"):
        kernel(x.cpu(), x.cpu())  # even if shapes and dtypes were seen before
    with pytest.raises(RuntimeError, match="two devices"):
        kernel(x, x.cpu())
    with pytest.raises(RuntimeError, match="is on 'cpu'"):
        kernel(torch.tensor(1.0), torch.tensor(1.0))
    assert kernel(x, torch.tensor(2.0)).tolist() == [3, 3]


@pytest.mark.parametrize("table", [np.ones(2), {1, 2}], ids=["array", "set"])
def test_settings_have_to_be_hashable(table: Any):
    with pytest.raises(TypeError, match=r"argument table\['t'\] is a .*hashable: pass data as a tensor"):
        custom_jax_kernel(lambda x, table: x)(torch.ones(2, device="tpu"), {"t": table})


def test_leaves_cannot_be_written():
    """As by torch's ops in place."""
    x = torch.ones(2, device="tpu").requires_grad_()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place"):
        aliased({0: 0}, lambda x: x * 2)(x)


def test_missing_kernel_of_a_graph_is_named():
    kernel, x = custom_jax_kernel(jnp.cos), torch.ones(2, device="tpu")
    kernel(x)
    with pytest.raises(RuntimeError, match="the kernel cos_0123456789abcdef is not known to this process"):
        torch.ops.lazytpu_kernels.cos.f1_1(x, "cos_0123456789abcdef")
    assert kernel(x).shape == (2,)


def test_kernel_has_to_be_callable():
    with pytest.raises(TypeError, match="made of a JAX function; got a int"):
        custom_jax_kernel(cast(Any, 5))
    with pytest.raises(TypeError, match="expected input_output_aliases="):
        custom_jax_kernel(input_output_aliases=cast(Any, [0]))(jnp.sin)

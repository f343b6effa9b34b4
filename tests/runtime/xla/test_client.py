"""The XLA client: platforms, and arrays to and from the device."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest

from lazytpu.runtime.errors import CompileError, RunError
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir
from tests import zygote
from tests.runtime.failed_arrays import failed_array

DTYPES = [
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16,
    ml_dtypes.bfloat16, np.float32, np.float64, np.complex64, np.complex128, ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
]  # fmt: skip


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env={"PATH": "", **environment}, capture_output=True, text=True, check=False
    )


def test_platform_name():
    assert client.platform() in ("cpu", "tpu", "gpu")
    assert client.devices()


def test_missing_platform_is_reported():
    code = "from lazytpu.runtime.xla import client; client.platform()"
    result = python(code, LAZYTPU_PLATFORM="tpu", JAX_PLATFORMS="cpu")
    assert result.returncode != 0
    assert "PlatformError: LAZYTPU_PLATFORM asks for tpu, but jax has no such platform here" in result.stderr
    assert "Install libtpu on a machine with a TPU" in result.stderr


@pytest.mark.parametrize("variable", ["JAX_PLATFORMS", "LAZYTPU_PLATFORM"])
def test_missing_plugin_is_reported(variable):
    code = "from lazytpu.runtime.xla import client; client.platform()"
    asked = {variable: "plug", "PJRT_NAMES_AND_LIBRARY_PATHS": "other:/a.so,plug:/nowhere/plugin.so"}
    # jax reads its variable on import.
    result = python(code, **asked) if variable.startswith("JAX_") else zygote.run(["-c", code], env=os.environ | asked)
    assert f"PlatformError: {variable} asks for plug" in result.stderr
    assert "PJRT_NAMES_AND_LIBRARY_PATHS names /nowhere/plugin.so" in result.stderr
    assert f"or unset {variable}" in result.stderr


def test_client_is_silent_for_any_order_of_imports():
    """jax sets the log level of jaxlib's C++ code if it is imported before jaxlib."""
    code = "import lazytpu.runtime.xla.mlir; from lazytpu.runtime.xla import client; client.devices()"
    assert python(code, LAZYTPU_PLATFORM="cpu").stderr == ""


def test_cpu_can_be_requested():
    code = "from lazytpu.runtime.xla import client; print(client.platform())"
    result = zygote.run(["-c", code], env=os.environ | {"LAZYTPU_PLATFORM": "cpu"})
    assert result.stdout.strip() == "cpu", result.stderr


def test_lowering_for_a_tpu_that_is_not_here_searches_for_none():
    """As by `lazytpu-show cost` of a dump. jax itself would wait for libtpu, if it is installed."""
    code = """
import numpy as np
from lazytpu.runtime.xla import jax_private
from lazytpu.runtime.xla.jax_functions import lower_jax_function
jax_private.backend_factories["tpu"] = None
lower_jax_function(lambda x: x + 1, [(np.dtype("float32"), (2,))], platform="tpu")
"""
    result = zygote.run(["-c", code], timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4)])
def test_every_dtype_survives_the_trip(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    device = client.to_device(array)
    back = client.to_host(device)
    assert device.dtype == back.dtype == array.dtype
    assert back.shape == shape
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


def test_jax_configuration_is_unchanged():
    client.to_device(np.zeros(2, np.float64))
    assert jax.numpy.asarray(np.zeros(2, np.float64)).dtype == np.float32


@pytest.mark.parametrize("view", [np.s_[::2], np.s_[::-1], np.s_[:, ::3], np.s_[1:2, 3]])
def test_strided_arrays(view):
    array = np.arange(24, dtype=np.int64).reshape(4, 6)
    for ordered in (array, np.asfortranarray(array)):
        np.testing.assert_array_equal(client.to_host(client.to_device(ordered[view])), array[view])


@pytest.mark.parametrize("size", [3, 1 << 20])
def test_to_device_copies(size):
    array = np.zeros(size, np.float64)
    device = client.to_device(array)
    array[:] = 7
    assert client.to_host(device).max() == 0


def test_to_host_returns_memory_of_the_caller():
    device = client.to_device(np.zeros(1000))
    first = client.to_host(device)
    first[:] = 1
    assert client.to_host(device).max() == 0


def test_to_host_without_a_copy_is_a_read_only_view():
    device = client.to_device(np.arange(1000.0))
    view = client.to_host(device, copy=False)
    assert not view.flags.writeable
    if client.platform() == "cpu":
        assert view.ctypes.data == client.address(device)
    del device
    assert view.sum() == 499500


@pytest.mark.parametrize("read", [client.to_host, lambda array: client.wait([array])])
def test_device_failure_is_raised_at_the_result(read):
    array = failed_array(client.to_device(np.zeros(3)), "the sum is cross")
    with pytest.raises(RunError, match=r"program.* failed: .*the sum is cross$") as caught:
        read(array)
    assert caught.value.lost is None


def test_compile_errors_keep_the_message_of_xla():
    with client.mlir_context():
        module = ir.Module.parse(
            """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
              %0 = stablehlo.custom_call @no_such_target(%x) : (tensor<2xf32>) -> tensor<2xf32>
              return %0 : tensor<2xf32>
            }"""
        )
    with pytest.raises(CompileError, match=r"XLA could not compile step 3: .*no_such_target") as caught:
        client.compile_module(module, name="step 3")
    assert caught.value.program == "step 3"
    assert "no_such_target" in caught.value.reason


def test_features_that_a_client_lacks_are_not_implemented():
    """For example LAPACK's functions, if the CPU's client is a plugin."""
    with client.mlir_context():
        module = ir.Module.parse(
            """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
              %0 = stablehlo.custom_call @lapack_nothing(%x) {api_version = 4 : i32} : (tensor<2xf32>) -> tensor<2xf32>
              return %0 : tensor<2xf32>
            }"""
        )
    with pytest.raises(NotImplementedError, match=r"lapack_nothing.* This client of XLA lacks it") as caught:
        client.compile_module(module, name="step 3")
    assert isinstance(caught.value, CompileError)


def test_compile_options_reach_xla(tmp_path):
    with client.mlir_context():
        module = ir.Module.parse("func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }")
    client.compile_module(module, options={"xla_dump_to": str(tmp_path)})
    assert list(tmp_path.iterdir())


def test_unknown_compile_option_is_a_compile_error():
    with client.mlir_context():
        module = ir.Module.parse("func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }")
    with pytest.raises(CompileError, match="xla_no_such_option"):
        client.compile_module(module, options={"xla_no_such_option": True})

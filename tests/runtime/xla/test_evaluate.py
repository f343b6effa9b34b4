"""The reference interpreter, with dtypes that its own interface cannot convert."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.evaluate import evaluate
from lazytpu.runtime.xla.mlir import ir

TYPES = {
    "i1": np.bool_, "i8": np.int8, "i64": np.int64, "ui8": np.uint8, "ui64": np.uint64, "f16": np.float16,
    "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "complex<f32>": np.complex64,
    "complex<f64>": np.complex128, "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip


def parse(text):
    with client.mlir_context():
        return ir.Module.parse(text)


@pytest.mark.parametrize("element", TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3)])
def test_every_dtype_is_converted(element, shape):
    kind = f"tensor<{'x'.join([*map(str, shape), element])}>"
    module = parse(f"func.func @main(%x: {kind}, %y: {kind}) -> ({kind}, {kind}) {{ return %y, %x : {kind}, {kind} }}")
    x = (np.arange(np.prod(shape, dtype=int)) % 3).reshape(shape).astype(TYPES[element])
    y = np.ones(shape).astype(TYPES[element])
    if np.iscomplexobj(x):
        x = x + np.asarray(1j, x.dtype)
    results = evaluate(module, [x, y])
    for actual, expected in zip(results, [y, x], strict=True):
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        assert actual.tobytes() == expected.tobytes()


def test_chlo_and_calls():
    module = parse(
        """func.func @main(%x: tensor<2xf64> {jax.buffer_donor = true}) -> (tensor<2xf64> {jax.result_info = "y"}) {
          %0 = call @helper(%x) : (tensor<2xf64>) -> tensor<2xf64>
          return %0 : tensor<2xf64>
        }
        func.func private @helper(%x: tensor<2xf64>) -> tensor<2xf64> {
          %0 = chlo.erf %x : tensor<2xf64> -> tensor<2xf64>
          return %0 : tensor<2xf64>
        }"""
    )
    before = str(module)
    (actual,) = evaluate(module, [np.array([0.5, -1.0])])
    np.testing.assert_allclose(actual, [0.5204998778130465, -0.8427007929497149], rtol=1e-12)
    assert str(module) == before


def test_arguments_must_match():
    module = parse("func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }")
    with pytest.raises(ValueError, match=r"@main takes .*float32.*; got .*int64"):
        evaluate(module, [np.array([1, 2])])

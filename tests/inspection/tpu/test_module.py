"""Reading StableHLO for advice."""

from __future__ import annotations

import pytest

from lazytpu.inspection.tpu.arrays import Array
from lazytpu.inspection.tpu.hlo import ProgramLine
from lazytpu.inspection.tpu.module import MatrixProduct, ModuleArgument, Result, read_module
from tests.inspection.tpu.recorded import text

NAMED = """
func.func public @main(
    %w: tensor<4x8xf32> {lazytpu.name = "w", tf.aliasing_output = 0 : i32},
    %d: tensor<i1> {jax.buffer_donor = true}, %i: tensor<3xui8>)
    -> (tensor<4x8xf32> {lazytpu.name = "w"}, tensor<3xui8>) {
  %0 = stablehlo.add %w, %w : tensor<4x8xf32> loc(fused["backward"("a.py":3:0), "b.py":4:0])
  return %0, %i : tensor<4x8xf32>, tensor<3xui8>
}
"""


def test_arguments_and_results():
    module = read_module(NAMED)
    f32, byte = Array("f32", (4, 8)), Array("ui8", (3,))
    assert module.arguments == (
        ModuleArgument("w", f32, True, 0),
        ModuleArgument(None, Array("i1", ()), True, None),
        ModuleArgument(None, byte, False, None),
    )
    assert module.results == (Result("w", f32, ProgramLine("a.py", 3, backward=True)), Result(None, byte, None))
    assert (f32.bytes, byte.bytes, Array("i1", (5,)).bytes) == (128, 3, 5)


@pytest.mark.parametrize(
    ("dtype", "nbytes"), [("bf16", 2), ("f8E4M3FN", 1), ("complex<f32>", 8), ("i64", 8), ("ui4", 1)]
)
def test_bytes_of_elements(dtype: str, nbytes: int):
    assert Array(dtype, (1,)).bytes == nbytes


def test_products():
    x, y, z = read_module(text("step.mlir")).products
    assert x == MatrixProduct(
        Array("f32", (256, 1000)),
        Array("f32", (1000, 640)),
        1,
        256,
        1000,
        640,
        "DEFAULT",
        ProgramLine("train.py", 10),
    )
    assert y.precision == "HIGHEST" and y.flops == 2 * 256 * 640 * 100
    assert z.line == ProgramLine("train.py", 12, backward=True)


def test_products_in_a_batch():
    module = read_module("""
func.func public @main(%q: tensor<2x3x5x64xbf16>, %k: tensor<2x3x7x64xbf16>) -> tensor<2x3x5x7xbf16> {
  %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] :
      (tensor<2x3x5x64xbf16>, tensor<2x3x7x64xbf16>) -> tensor<2x3x5x7xbf16>
  return %0 : tensor<2x3x5x7xbf16>
}""").products[0]
    assert (module.batch, module.rows, module.depth, module.columns, module.line) == (6, 5, 64, 7, None)


def test_collectives():
    exchanges = read_module(text("collectives.mlir")).exchanges
    kinds = [(exchange.kind, exchange.bytes, str(exchange.line)) for exchange in exchanges]
    assert kinds == [
        ("all-reduce", 1024 * 512 * 4, "train.py:4"),
        ("collective-permute", 256 * 512 * 2, "train.py:5"),
        ("all-gather", 1024 * 512 * 2, "train.py:6"),
    ]


def test_not_a_module():
    with pytest.raises(ValueError, match="expected a StableHLO module"):
        read_module("func.func @main(")

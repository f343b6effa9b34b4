"""A small module as text, and the same after the passes."""

BEFORE = """\
builtin.module {
  func.func @main(%w: tensor<16x4xf32> {lazytpu.name = "w", lazytpu.donate}, %x: tensor<8x4xf32>) -> (tensor<8x16xf32>, tensor<16x4xf32>) {
    %0 = lazytpu.transpose %w [1, 0] : (tensor<16x4xf32>) -> tensor<4x16xf32> loc("train.py":40:0)
    %1 = lazytpu.dot_general %x, %0 lhs_contract = [1] rhs_contract = [0] precision = highest : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32> loc("train.py":41:0)
    %2 = lazytpu.constant 1.0 : tensor<16x4xf32>
    %3 = lazytpu.sub %w, %2 : tensor<16x4xf32> loc("backward"("train.py":42:0))
    func.return %1, %3 : tensor<8x16xf32>, tensor<16x4xf32>
  }
}
"""  # noqa: E501

STABLEHLO = """\
#loc1 = loc("w")
module @lazytpu {
  func.func public @main(%w: tensor<16x4xf32> {lazytpu.name = "w", tf.aliasing_output = 1 : i32} loc("w"), %arg1: tensor<8x4xbf16>) -> (tensor<8xi1>, tensor<16x4xcomplex<f32>>) {
    %0 = "stablehlo.custom"(%w) : (tensor<16x4xf32>) -> tensor<8xi1> loc(#loc2)
    %1 = stablehlo.complex %w, %w : tensor<16x4xcomplex<f32>> loc(#loc4)
    return %0, %1 : tensor<8xi1>, tensor<16x4xcomplex<f32>> loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc2 = loc("train.py":41:0)
#loc4 = loc("backward"(#loc3))
"""  # noqa: E501

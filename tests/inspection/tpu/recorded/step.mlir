module @step {
func.func public @main(%x: tensor<256x1000xf32> loc("x"), %w: tensor<1000x640xf32>, %v: tensor<640x100xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<f32>, tensor<640x100xf32>) {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<256x1000xf32>, tensor<1000x640xf32>) -> tensor<256x640xf32> loc("train.py":10:0)
  %t = stablehlo.tanh %h : tensor<256x640xf32> loc("train.py":11:0)
  %o = stablehlo.dot_general %t, %v, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<256x640xf32>, tensor<640x100xf32>) -> tensor<256x100xf32> loc("train.py":12:0)
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %l = stablehlo.reduce(%o init: %c) applies stablehlo.add across dimensions = [0, 1] : (tensor<256x100xf32>, tensor<f32>) -> tensor<f32> loc("backward"("train.py":13:0))
  %one = stablehlo.constant dense<1.0> : tensor<256x100xf32>
  %g = stablehlo.dot_general %t, %one, contracting_dims = [0] x [0] : (tensor<256x640xf32>, tensor<256x100xf32>) -> tensor<640x100xf32> loc("backward"("train.py":12:0))
  %nv = stablehlo.subtract %v, %g : tensor<640x100xf32> loc("train.py":14:0)
  return %l, %nv : tensor<f32>, tensor<640x100xf32>
}
}

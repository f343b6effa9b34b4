module @exchange attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<256x512xbf16>, %w: tensor<512x512xbf16>, %g: tensor<1024x512xf32>) -> (tensor<256x512xbf16>, tensor<1024x512xf32>, tensor<1024x512xbf16>) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<256x512xbf16>, tensor<512x512xbf16>) -> tensor<256x512xbf16> loc("train.py":3:0)
    %1 = "stablehlo.all_reduce"(%g) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<1024x512xf32>) -> tensor<1024x512xf32> loc("train.py":4:0)
    %2 = "stablehlo.collective_permute"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}> : (tensor<256x512xbf16>) -> tensor<256x512xbf16> loc("train.py":5:0)
    %3 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<256x512xbf16>) -> tensor<1024x512xbf16> loc("train.py":6:0)
    return %2, %1, %3 : tensor<256x512xbf16>, tensor<1024x512xf32>, tensor<1024x512xbf16>
  }
}

"""A small training step, and a step of clusters, with their cost by the model."""

from __future__ import annotations

from typing import Any

from lazytpu.inspection.step.costs import CostedStep
from lazytpu.inspection.step.costs import costed as _costed


def costed(text: str, passes: str = "", cost: dict[str, Any] | None = None) -> CostedStep:
    return _costed(text, "step", "v6e", passes=passes, by_model=True, cost=cost)


STEP = """\
builtin.module {
  func.func @main(%x: tensor<4096x256xf32> {lazytpu.name = "x"}, %w: tensor<256x128xf32> {lazytpu.name = "layer.weight", lazytpu.alias = 0 : i64}) -> (tensor<256x128xf32>, tensor<f32>) {
    %0 = lazytpu.dot_general %x, %w lhs_contract = [1] rhs_contract = [0] precision = highest : (tensor<4096x256xf32>, tensor<256x128xf32>) -> tensor<4096x128xf32> loc("model.py":5:0)
    %1 = lazytpu.constant 0.0 : tensor<4096x128xf32> loc("model.py":5:0)
    %2 = lazytpu.max %0, %1 : tensor<4096x128xf32> loc("model.py":5:0)
    %3 = lazytpu.reduce add %2 dims = [0, 1] : (tensor<4096x128xf32>) -> tensor<f32> loc("train.py":9:0)
    %4 = lazytpu.exp %2 : tensor<4096x128xf32> loc("backward"("model.py":5:0))
    %5 = lazytpu.dot_general %x, %4 lhs_contract = [0] rhs_contract = [0] precision = default : (tensor<4096x256xf32>, tensor<4096x128xf32>) -> tensor<256x128xf32> loc("backward"("model.py":5:0))
    %6 = lazytpu.sub %w, %5 : tensor<256x128xf32> loc("train.py":11:0)
    func.return %6, %3 : tensor<256x128xf32>, tensor<f32>
  }
}
"""  # noqa: E501

MODULES = """\
builtin.module {
  func.func @main(%x: tensor<512x512xf32>) -> (tensor<512x512xf32>) {
    %0 = lazytpu.reduce add %x dims = [0] : (tensor<512x512xf32>) -> tensor<512xf32> loc("forward/blocks.0.act"("model.py":5:0))
    %1 = lazytpu.broadcast_in_dim %0 dims = [1] : (tensor<512xf32>) -> tensor<512x512xf32> loc("forward/blocks.0"("model.py":6:0))
    %2 = lazytpu.mul %x, %1 : tensor<512x512xf32> loc("forward/blocks.0"("model.py":6:0))
    %3 = lazytpu.reduce add %2 dims = [0] : (tensor<512x512xf32>) -> tensor<512xf32> loc("forward/blocks.1.act"("model.py":5:0))
    %4 = lazytpu.broadcast_in_dim %3 dims = [1] : (tensor<512xf32>) -> tensor<512x512xf32> loc("backward/blocks.1.act"("model.py":5:0))
    %5 = lazytpu.sub %2, %4 : tensor<512x512xf32> loc("backward/blocks.1.act"("model.py":5:0))
    func.return %5 : tensor<512x512xf32>
  }
}
"""  # noqa: E501

CLUSTERS = """\
builtin.module {
  func.func @main(%x: tensor<8xf32>) -> (tensor<8xf32>) {
    %0 = func.call @cluster_0(%x) : (tensor<8xf32>) -> tensor<8xf32> loc("model.py":5:0)
    %1 = func.call @cluster_0(%0) : (tensor<8xf32>) -> tensor<8xf32> loc("model.py":5:0)
    %2 = lazytpu.neg %1 : tensor<8xf32> loc("model.py":6:0)
    func.return %2 : tensor<8xf32>
  }
  func.func private @cluster_0(%y: tensor<8xf32>) -> (tensor<8xf32>) {
    %0 = lazytpu.exp %y : tensor<8xf32> loc("model.py":2:0)
    %1 = lazytpu.sin %0 : tensor<8xf32> loc("model.py":3:0)
    func.return %1 : tensor<8xf32>
  }
}
"""

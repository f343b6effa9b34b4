"""Attention as models write it, as IR: scores, a softmax, a product, and the backward pass of all three."""

from __future__ import annotations

FUSE = "fuse-attention{least=0},dce"
X, P, R = "tensor<2x2x128x8xf32>", "tensor<2x2x128x128xf32>", "tensor<2x2x128xf32>"
ARGUMENTS = f"%q : {X}, %k : {X}, %v : {X}, %g : {X}, %s : tensor<f32>, %m : tensor<2x128xi1>"

SCORES = f"""
    %0 = lazytpu.dot_general %q, %k lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [3]
         precision = default : ({X}, {X}) -> {P}"""
CAUSAL = f"""
    %rows = lazytpu.iota dim = 2 : tensor<1x1x128x128xi32>
    %columns = lazytpu.iota dim = 3 : tensor<1x1x128x128xi32>
    %seen = lazytpu.compare GE %rows, %columns
            : (tensor<1x1x128x128xi32>, tensor<1x1x128x128xi32>) -> tensor<1x1x128x128xi1>
    %mask = lazytpu.broadcast_in_dim %seen dims = [0, 1, 2, 3] : (tensor<1x1x128x128xi1>) -> tensor<2x2x128x128xi1>
    %low = lazytpu.constant -inf : {P}
    %masked = lazytpu.select %mask, %0, %low : (tensor<2x2x128x128xi1>, {P}, {P}) -> {P}"""


def softmax(of: str, dim: int = 3) -> str:
    kept_dims = [d for d in range(4) if d != dim]
    return f"""
    %max = lazytpu.reduce max {of} dims = [{dim}] : ({P}) -> {R}
    %1 = lazytpu.broadcast_in_dim %max dims = {kept_dims} : ({R}) -> {P}
    %2 = lazytpu.sub {of}, %1 : {P}
    %3 = lazytpu.exp %2 : {P}
    %sum = lazytpu.reduce add %3 dims = [{dim}] : ({P}) -> {R}
    %4 = lazytpu.broadcast_in_dim %sum dims = {kept_dims} : ({R}) -> {P}
    %p = lazytpu.div %3, %4 : {P}"""


OUTPUT = f"""
    %o = lazytpu.dot_general %p, %v lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [2]
         precision = default : ({P}, {X}) -> {X}"""
RETURN = f"\n    func.return %o : {X}"

BACKWARD = f"""
    %dv = lazytpu.dot_general %p, %g lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [2] rhs_contract = [2]
          precision = default : ({P}, {X}) -> {X}
    %dp = lazytpu.dot_general %g, %v lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [3]
          precision = default : ({X}, {X}) -> {P}
    %5 = lazytpu.mul %dp, %p : {P}
    %6 = lazytpu.reduce add %5 dims = [3] : ({P}) -> {R}
    %7 = lazytpu.broadcast_in_dim %6 dims = [0, 1, 2] : ({R}) -> {P}
    %8 = lazytpu.sub %dp, %7 : {P}
    %ds = lazytpu.mul %8, %p : {P}
    %dq = lazytpu.dot_general %ds, %k lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [2]
          precision = default : ({P}, {X}) -> {X}
    %dk = lazytpu.dot_general %q, %ds lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [2] rhs_contract = [2]
          precision = default : ({X}, {P}) -> tensor<2x2x8x128xf32>"""
GRADIENTS = f"\n    func.return %o, %dq, %dk, %dv : {X}, {X}, tensor<2x2x8x128xf32>, {X}"

"""Builder methods of attention."""

from __future__ import annotations

from xdsl.ir import SSAValue

from lazytpu.ir.attention import Attention, AttentionBackwardOp, AttentionOp, attention_type, gradient_types
from lazytpu.ir.building.core import Core, flag_prop
from lazytpu.ir.types import type_of


class AttentionMethods(Core):
    def attention(self, of: Attention) -> SSAValue:
        """Scaled dot-product attention, [batch, heads, L, V]."""
        return self.one(AttentionOp, of.operands, attention_type(of), of.properties())

    def attention_backward(self, grad: SSAValue, of: Attention, of_bias: bool = False) -> list[SSAValue]:
        """Gradients of query, key and value, and with `of_bias` of the bias, from the gradient of the output."""
        types = gradient_types(type_of(grad), of, of_bias)
        props = of.properties() | {"of_bias": flag_prop(of_bias)}
        return list(self.op(AttentionBackwardOp, (grad, *of.operands), types, props).results)

"""Builder methods of matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue

from lazytpu.ir import contractions
from lazytpu.ir.building.core import Core, array_props, integer_prop
from lazytpu.ir.types import dtype_of, string, type_of


class ContractionMethods(Core):
    def dot_general(
        self,
        x: SSAValue,
        y: SSAValue,
        lhs_batch: Sequence[int],
        rhs_batch: Sequence[int],
        lhs_contract: Sequence[int],
        rhs_contract: Sequence[int],
        precision: str = "highest",
        dtype: str | None = None,
    ) -> SSAValue:
        """Products summed over the contracted dims, in dtype `dtype` (default: x's dtype)."""
        lists = {
            "lhs_batch": lhs_batch,
            "rhs_batch": rhs_batch,
            "lhs_contract": lhs_contract,
            "rhs_contract": rhs_contract,
        }
        result = contractions.dot_general_type(type_of(x), type_of(y), **lists, dtype=dtype or dtype_of(x))
        props = array_props(lists) | {"precision": contractions.precision(precision)}
        return self.one(contractions.DotGeneralOp, (x, y), result, props)

    def convolution(
        self,
        x: SSAValue,
        w: SSAValue,
        *,
        strides: Sequence[int],
        low: Sequence[int],
        high: Sequence[int],
        lhs_dilation: Sequence[int],
        rhs_dilation: Sequence[int],
        feature_groups: int = 1,
        batch_groups: int = 1,
        layout: str,
        window_reversal: Sequence[int] | None = None,
        precision: str = "highest",
        dtype: str | None = None,
    ) -> SSAValue:
        """A convolution; `layout`, such as "NC01,OI01,NC01", names the dimensions of x, w and the result."""
        lists = {
            "strides": strides,
            "low": low,
            "high": high,
            "lhs_dilation": lhs_dilation,
            "rhs_dilation": rhs_dilation,
            "window_reversal": [0] * len(strides) if window_reversal is None else window_reversal,
        }
        result = contractions.convolution_type(
            type_of(x),
            type_of(w),
            **lists,
            feature_groups=feature_groups,
            batch_groups=batch_groups,
            layout=contractions.conv_layout(layout),
            dtype=dtype or dtype_of(x),
        )
        props: dict[str, Attribute] = array_props(lists)
        props |= {"feature_groups": integer_prop(feature_groups), "batch_groups": integer_prop(batch_groups)}
        props |= {"layout": string(layout), "precision": contractions.precision(precision)}
        return self.one(contractions.ConvolutionOp, (x, w), result, props)

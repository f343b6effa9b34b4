"""Meta functions of running extremes called by the names of their helpers, which have none in torch."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.inference.infer import override

aten = torch.ops.aten


@override("aten._cummax_helper.default", "aten._cummin_helper.default")
def extremes(self: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> tuple[Any, ...]:
    """Check the arguments; the results are written to `values` and `indices`."""
    aten.cummax.default(self, dim)
    for target in (values, indices):
        if target.shape != self.shape:
            raise RuntimeError(f"expected results of the input's shape {list(self.shape)}, got {list(target.shape)}")
    return ()

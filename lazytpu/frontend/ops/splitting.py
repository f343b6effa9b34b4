"""tensor_split at indices that are on the device."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


def tensor_split(tensor: torch.Tensor, tensor_indices_or_sections: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    """The kernel of aten::tensor_split.tensor_indices_or_sections: the indices are read, since the views' shapes depend
    on them.

    torch's own kernel needs them on the CPU. It raises RuntimeError for indices that are not int64 or have
    more than one dimension.
    """
    where = tensor_indices_or_sections
    if where.dtype is not torch.int64 or where.dim() > 1:
        refused = torch.empty([1] * where.dim(), dtype=where.dtype, device="cpu")
        return aten.tensor_split.tensor_indices_or_sections(torch.empty(1, device="cpu"), refused)
    if where.dim() == 0:
        return aten.tensor_split.sections(tensor, int(where.item()), dim)
    return aten.tensor_split.indices(tensor, where.tolist(), dim)


COMPOSITES: dict[str, Any] = {"tensor_split.tensor_indices_or_sections": tensor_split}

"""Registration of the kernels of sparse tensors."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.sparse import embedding, indexing, pointwise, products, reductions, refusals, softmax, structure

KEY, COMPRESSED_KEY, DENSE_KEY = "SparsePrivateUse1", "SparseCsrPrivateUse1", "PrivateUse1"
ROOMS = (structure, pointwise, products, reductions, indexing, softmax)


def register(fallback: torch.library.Library, aten: torch.library.Library) -> dict[str, Any]:
    """Register all kernels of sparse tensors. Returns the kernels that convert dense tensors to sparse ones."""
    fallback.fallback(refusals.fallback, KEY)
    fallback.fallback(refusals.fallback, COMPRESSED_KEY)
    for room in ROOMS:
        for name, function in room.KERNELS.items():
            aten.impl(name, function, KEY)
    for name, function in refusals.OF_SPARSE.items():
        aten.impl(name, function, KEY)
    for name, function in refusals.CONSTRUCTORS.items():
        aten.impl(name, function, COMPRESSED_KEY)
    return {**structure.OF_DENSE, **refusals.OF_DENSE, **embedding.OF_DENSE, **indexing.OF_DENSE}

"""Ops that sparse tensors do not support: they raise at the call, with a hint to the dense alternative."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

aten = torch.ops.aten

COMPRESSED = "_to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc".split()


def refuse(what: str) -> NoReturn:
    """Raise the NotImplementedError with a hint to dense tensors."""
    raise NotImplementedError(
        f"{what} is not supported on 'tpu'. Make the tensors dense first, with .to_dense() (and sparse=False in "
        "modules that ask for sparse gradients), or compute it on the CPU, with .cpu(): see docs/sparse.md."
    )


def fallback(op: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """The kernel of every op that has none for sparse tensors."""
    refuse(f"'{op}' of sparse tensors")


def compressed(*args: Any, layout: torch.layout | None = None, **kwargs: Any) -> NoReturn:
    """The kernel of the constructors of compressed sparse tensors."""
    refuse(f"a tensor of layout {layout or 'sparse_csr'}")


def _conversion(name: str) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> NoReturn:
        refuse(f"a tensor of layout torch.{name.removeprefix('_to_')}")

    return kernel


OF_DENSE = OF_SPARSE = {name: _conversion(name) for name in COMPRESSED}
CONSTRUCTORS = dict.fromkeys(
    ("_sparse_compressed_tensor_unsafe", "_sparse_compressed_tensor_with_dims", "empty.memory_format"), compressed
)

"""A loaded program that was exported before, as one record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.forward_ad import unpack_dual

from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.recording.kernels import kernel
from lazytpu.frontend.torch_private import is_wrapped, transforms

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
LIBRARY.define("exported(Tensor[] arguments, str program, str results) -> Tensor[]")


def call(
    arguments: Sequence[torch.Tensor], program: str, results: Sequence[tuple[str, tuple[int, ...]]]
) -> list[torch.Tensor]:
    """Record a call of the program with the digest `program` on all of its arguments. Returns its results, of these
    dtypes (torch's names) and shapes.

    The results have no derivative: a backward pass that reaches them raises RuntimeError. Raises NotImplementedError
    for arguments of torch.func, and with tangents.
    """
    if any(map(_is_transformed, arguments)):
        raise NotImplementedError(
            "a program loaded by lazytpu.export.load has no derivative and no batched form, so torch.func and "
            "forward-mode derivatives cannot pass through it. Take its arguments from outside of them, or use the "
            "module that it was exported from"
        )
    kinds = ";".join(f"{dtype}:{','.join(map(str, shape))}" for dtype, shape in results)
    op = torch.ops.lazytpu.exported.default
    if not arguments:  # torch would choose the device by them
        return list(kernel(op).call([], program, kinds))
    return op(list(arguments), program, kinds)


def _is_transformed(tensor: torch.Tensor) -> bool:
    return (transforms() is not None and is_wrapped(tensor)) or unpack_dual(tensor).tangent is not None


@override("lazytpu.exported.default")
def _exported(arguments: Sequence[torch.Tensor], program: str, results: str) -> list[torch.Tensor]:
    metas: list[torch.Tensor] = []
    for kind in results.split(";") if results else ():
        dtype, _, sizes = kind.partition(":")
        shape = [int(size) for size in sizes.split(",")] if sizes else []
        metas.append(torch.empty(shape, dtype=getattr(torch, dtype), device="meta"))
    return metas


def _backward(ctx: Any, *gradients: Any) -> Any:
    raise RuntimeError(
        "a program loaded by lazytpu.export.load has no derivative: only its results were exported. Call it under "
        "torch.no_grad(), or train the module that it was exported from"
    )


LIBRARY.impl("exported", _exported, "Meta")
torch.library.register_autograd("lazytpu::exported", _backward, lib=LIBRARY)

"""Records without torch's dispatcher, for ops that a composite function would call with it."""

from __future__ import annotations

import torch

from lazytpu.frontend.ops.views import PLAIN
from lazytpu.frontend.torch_private import dispatch_modes, is_transformed


def concerns_device_alone(*tensors: torch.Tensor | None) -> bool:
    """Return whether the dispatcher would only call the device's kernel for an op on these tensors.

    False with dispatch modes, transforms of torch.func and autograd; with subclasses and wrappers; on other devices;
    and for lazily negated tensors. Lazily conjugated tensors count as plain: a kernel may have to resolve them.
    """
    if dispatch_modes() or is_transformed():
        return False
    differentiates = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is None:
            continue
        try:
            value = tensor.untyped_storage()._value  # pyright: ignore[reportAttributeAccessIssue]
        except (AttributeError, RuntimeError):  # the second from wrappers, which have no storage
            return False
        if value is None or type(tensor) not in PLAIN or tensor.is_neg() or (differentiates and tensor.requires_grad):
            return False
    return True

"""Registration in two steps: the name of the device at import, the kernels when the first tensor is made."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from lazytpu.frontend import torch_private as private

NAME = "tpu"

_registered = False
_activated = False
_conflict: str | None = None
_lock = threading.RLock()
_libraries: list[torch.library.Library] = []  # a library's registrations end with it


def register() -> None:
    """Make "tpu" a device of torch. Cheap, and done once.

    If another package owns PrivateUse1 already, nothing is done here, and `activate` raises RuntimeError naming it.
    """
    global _registered, _conflict
    with _lock:
        if _registered:
            return
        _registered = True
        owner = private.backend_name()
        if owner not in (private.default_backend_name,):
            _conflict = owner
            return
        from lazytpu.frontend.device_module import MODULE

        private.setup_backend(NAME, backend_module=MODULE)
        _register_first_use()


def _register_first_use() -> None:
    """Every tensor begins with one of these kernels; they activate the device and call the real ones."""
    first = torch.library.Library("aten", "IMPL")
    for name in ("empty.memory_format", "empty_strided"):

        def kernel(*args: Any, _name: str = name, **kwargs: Any) -> torch.Tensor:
            activate()
            from lazytpu.frontend.creation import KERNELS

            return KERNELS[_name](*args, **kwargs)

        with warnings.catch_warnings():  # torch warns that BackendSelect's entry of empty is overridden; it is not
            warnings.simplefilter("ignore")
            first.impl(name, kernel, "PrivateUse1")
    _libraries.append(first)


def check_owner() -> None:
    """Raise RuntimeError when PrivateUse1 belongs to another package."""
    register()
    if _conflict is not None:
        raise RuntimeError(
            f"torch's PrivateUse1 device is already taken by {_conflict!r}, so lazytpu cannot register 'tpu'. "
            "Only one such backend fits into a process: uninstall the other one, or start Python with "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import lazytpu first."
        )


def activate() -> None:
    """Load the engine and register all kernels; done at the first tensor, or by `import lazytpu` users calling it."""
    global _activated
    check_owner()
    with _lock:
        if _activated:
            return
        _activated = True
        from lazytpu import wiring  # the one place that knows all rooms

        wiring.start()
        _register_kernels()
        _install_patches()


def _register_kernels() -> None:
    from lazytpu.frontend import copies, data_dependent, metadata, redirects
    from lazytpu.frontend.kernels import kernel, lazy

    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(lambda op, *args, **kwargs: kernel(op).call(*args, **kwargs), "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    _libraries.extend((fallback, aten))
    by_hand: dict[str, Callable[..., Any]] = {
        **metadata.KERNELS,
        **copies.KERNELS,
        **redirects.KERNELS,
        **data_dependent.KERNELS,
    }
    for name, function in by_hand.items():
        aten.impl(name, function, "PrivateUse1")
    for op in recorded_explicitly():
        name = op._schema.name.removeprefix("aten::")
        name += f".{op._overloadname}" if op._overloadname != "default" else ""
        if name not in by_hand and name not in ("empty.memory_format", "empty_strided"):
            aten.impl(name, lazy(op), "PrivateUse1")


# CompositeExplicit ops recorded whole: their C++ kernels would call several others.
_COARSE = """
    native_dropout native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward embedding
    embedding_dense_backward stack cat repeat masked_fill.Scalar masked_fill.Tensor ones_like zeros_like full_like
    fill_.Scalar fill_.Tensor zero_ new_zeros new_ones new_full select_backward slice_backward diagonal_backward
    unfold_backward mean std.correction var.correction var_mean.correction std_mean.correction sum linalg_vector_norm
    _fused_sgd_ _fused_adam_ _fused_adamw_ _fused_adagrad_ normal_ uniform_ bernoulli_.float bernoulli_.Tensor
    bernoulli.p random_ random_.to random_.from exponential_ cauchy_ geometric_ log_normal_ binary_cross_entropy
    binary_cross_entropy_backward mse_loss mse_loss_backward nll_loss_forward nll_loss_backward
    nll_loss2d_forward nll_loss2d_backward _log_softmax _softmax _log_softmax_backward_data _softmax_backward_data
    where.self _unsafe_index.Tensor _unsafe_index_put gelu gelu_backward silu silu_backward threshold_backward
    clamp clamp.Tensor rsub.Tensor rsub.Scalar floor_divide fill.Scalar fill.Tensor div.Tensor_mode full arange.start_step
    arange.start arange tril triu eye eye.m linspace logspace scalar_tensor
    index_put index_put_ _index_put_impl_ dot vdot mv upsample_nearest2d upsample_bilinear2d constant_pad_nd
""".split()


def recorded_explicitly() -> list[Any]:
    """Ops that composite kernels would beat the fallback to: x + x would become empty and add.out.

    Ops that only change metadata (transpose_ and the like) stay with torch's native kernels.
    """
    found: list[Any] = []
    for full in private.op_names():
        if not full.startswith("aten::"):
            continue
        name, _, overload = full.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        if op is None or torch.Tag.inplace_view in op.tags or _is_view(op):
            continue
        structured = private.has_kernel(full, "CompositeExplicitAutogradNonFunctional")
        if structured or name.startswith(("_foreach_", "_amp_")) or full.removeprefix("aten::") in _COARSE:
            found.append(op)
    return found


def _is_view(op: Any) -> bool:
    return any(a.alias_info is not None and not a.alias_info.is_write for a in op._schema.arguments)


def _install_patches() -> None:
    from lazytpu.frontend import autocast, dlpack, module_move, pinned, storage_patches, streams

    for part in (storage_patches, streams, autocast, module_move, dlpack, pinned):
        part.install()

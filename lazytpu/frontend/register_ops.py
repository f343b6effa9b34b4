"""Registration of the kernels of dense tensors: hand-written ones, and for all other ops a kernel that generates
theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from lazytpu.frontend import activation, cpu_fallback
from lazytpu.frontend import torch_private as private
from lazytpu.frontend.device import streams
from lazytpu.frontend.library import replace_kernel
from lazytpu.frontend.ops import (
    attention,
    attention_of_shards,
    counting,
    ctc,
    data_dependent,
    jagged,
    linear,
    linear_algebra,
    logsumexp_attention,
    metadata,
    packing,
    pooling,
    quantization,
    recurrent,
    redirects,
    splitting,
    strided,
    views,
)
from lazytpu.frontend.recording import creation
from lazytpu.frontend.recording.kernels import callable_of
from lazytpu.frontend.recording.untraced import untraced
from lazytpu.frontend.sparse.register import register as register_sparse
from lazytpu.frontend.storage import copies
from lazytpu.options import options

_libraries: list[torch.library.Library] = []  # kept alive: the registrations of a torch library end with it


def register_kernels() -> None:
    """Register all kernels. The engine must have been started."""
    fallback = torch.library.Library("_", "IMPL")
    aten = torch.library.Library("aten", "IMPL")
    _libraries.extend((fallback, aten))

    def record_first(op: Any, *args: Any, **kwargs: Any) -> Any:
        """Record an op for the first time: generate and register its kernel, which takes all further calls."""
        try:
            kernel = callable_of(op)
        except NotImplementedError as error:
            if not options.cpu_fallback:
                raise cpu_fallback.offered(op, error) from None
            return cpu_fallback.run(op, args, kwargs)
        if op._schema.name.startswith("aten::"):
            replace_kernel(aten, op.name(), kernel)
        return kernel(*args, **kwargs)

    def record_named(name: str, *args: Any, **kwargs: Any) -> Any:
        """Do the same for an op by its name in aten: torch creates an object for each op that is looked up, in 10
        us."""
        return record_first(_op(name), *args, **kwargs)

    fallback.fallback(record_first, "PrivateUse1")
    by_hand: dict[str, Callable[..., Any]] = {
        **metadata.KERNELS,
        **views.KERNELS,
        **copies.KERNELS,
        **redirects.KERNELS,
        **data_dependent.KERNELS,
        **counting.KERNELS,
        **jagged.KERNELS,
        **linear_algebra.KERNELS,
        **recurrent.KERNELS,
        **register_sparse(fallback, aten),
        **ctc.KERNELS,
        **strided.KERNELS,
        **attention_of_shards.KERNELS,
        **logsumexp_attention.KERNELS,
        **streams.KERNELS,
        **quantization.KERNELS,
    }
    for name, function in by_hand.items():
        aten.impl(name, function, "PrivateUse1")
    for name, function in creation.KERNELS.items():
        replace_kernel(aten, name, function)  # replaces the kernel of the first use
    for name, function in packing.OWN.items():
        packing.LIBRARY.impl(name, function, "PrivateUse1")
    # Its schema does not declare the write, so torch would pass it a copy.
    for key in ("Conjugate", "Negative"):
        aten.impl("_copy_from", torch.library.fallthrough_kernel, key)
    # composed of ops that autograd sees
    modules = (attention, ctc, linear, packing, pooling, recurrent, splitting)
    composites = {name: function for module in modules for name, function in module.COMPOSITES.items()}
    for name, function in composites.items():
        aten.impl(name, function, "PrivateUse1")
    differentiable = {**composites, **recurrent.DERIVATIVES}
    for name, function in differentiable.items():
        aten.impl(name, function, "AutogradPrivateUse1")
    for name, function in recurrent.BATCHED.items():
        for key in ("Batched", "FuncTorchBatched"):  # autograd's own vmap, and torch.func's
            aten.impl(name, function, key)
    by_torch = (
        *by_hand.values(),
        *packing.OWN.values(),
        *creation.KERNELS.values(),
        *differentiable.values(),
        record_first,
        record_named,
    )
    for function in by_torch:
        untraced(function)
    engine = activation.engine()
    explicit = engine.remembered("explicit", lambda: recorded_explicitly(engine.rules()))
    for name in explicit:
        if name not in by_hand and name not in creation.KERNELS:
            aten.impl(name, partial(record_named, name), "PrivateUse1")


# torch's own kernels of these call _copy_from and empty_strided, which are ours.
_NATIVE = frozenset({"aten::copy_", "aten::new_empty_strided"})


def recorded_explicitly(rules: Collection[str]) -> list[str]:
    """Return the names of the aten ops whose composite kernels in torch would take precedence over the fallback.

    Without it, x + x would become empty and add.out, abs an empty tensor and abs.out, full_like an empty tensor and
    fill_. `rules` are the ops that have a rule of their own. Ops that only change metadata (transpose_ and similar)
    keep torch's native kernels.
    """
    names: list[str] = []
    for full in private.op_names():
        if not full.startswith("aten::"):
            continue
        name = full.removeprefix("aten::")
        op = _op(name)
        if op is None or torch.Tag.inplace_view in op.tags or _is_view(op) or full in _NATIVE:
            continue
        structured = private.has_kernel(full, "CompositeExplicitAutogradNonFunctional")
        composite = private.has_kernel(full, "CompositeExplicitAutograd")
        # math_mish_backward and similar ones round each of their ops to half precision, unlike the CPU's own kernel
        composite = composite or (
            private.has_kernel(full, "CompositeImplicitAutograd") and private.has_kernel(full, "CPU")
        )
        if structured or name.startswith(("_foreach_", "_amp_")) or (composite and _has_rule(op, rules)):
            names.append(name)
    return names


def _op(name: str) -> Any:
    """Return the aten op with torch's name, such as "add.Tensor"; None when Python does not know it."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _has_rule(op: Any, rules: Collection[str]) -> bool:
    """Return whether the op, or the functional form of an op that writes, has a rule."""
    if str(op) in rules:
        return True
    functional = activation.engine().functional(op)
    return functional is not None and str(functional) in rules


def _is_view(op: Any) -> bool:
    return any(a.alias_info is not None and not a.alias_info.is_write for a in op._schema.arguments)

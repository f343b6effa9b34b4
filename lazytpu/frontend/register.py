"""Registration in two steps: the name of the device at import, the kernels when the first tensor is made."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from lazytpu import interrupts
from lazytpu.frontend import ports
from lazytpu.frontend import torch_private as private
from lazytpu.options import options

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
        private.rename_backend(NAME)  # the module below names its device
        from lazytpu.frontend.device.device_module import MODULE
        from lazytpu.frontend.device.hook_errors import Guard

        private.setup_backend(NAME, backend_module=MODULE, device_guard=Guard())
        _register_first_use()
        from lazytpu.frontend.patches import install as patches

        patches.install()


def _register_first_use() -> None:
    """Every tensor begins with one of these kernels; they activate the device and call the real ones."""
    first = torch.library.Library("aten", "IMPL")
    for name in ("empty.memory_format", "empty_strided"):

        def kernel(*args: Any, _name: str = name, **kwargs: Any) -> torch.Tensor:
            activate()
            from lazytpu.frontend.ops.creation import KERNELS

            return KERNELS[_name](*args, **kwargs)

        _implement(first, name, kernel)
    _libraries.append(first)


def _implement(library: torch.library.Library, name: str, function: Callable[..., Any]) -> None:
    """Register a kernel that takes the place of another, which torch would warn about once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(name, function, "PrivateUse1")


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
        _activated = True  # the imports below make tensors
        interrupts.install()
        try:
            from lazytpu import wiring  # the one place that knows all rooms

            wiring.start()
            _register_kernels()
            from lazytpu.frontend.ops import transformer
            from lazytpu.frontend.patches import autocast, printing
            from lazytpu.frontend.recording import modes

            autocast.install()
            printing.install()
            modes.install()
            transformer.install()
        except BaseException:
            _activated = False  # the next tensor raises it again
            raise


def _register_kernels() -> None:
    from lazytpu.frontend import cpu_fallback
    from lazytpu.frontend.device import streams
    from lazytpu.frontend.ops import (
        attention,
        copies,
        counting,
        creation,
        ctc,
        data_dependent,
        linear_algebra,
        metadata,
        redirects,
        splitting,
        strided,
    )
    from lazytpu.frontend.recording.kernels import callable_of

    fallback = torch.library.Library("_", "IMPL")
    aten = torch.library.Library("aten", "IMPL")
    _libraries.extend((fallback, aten))

    def record_first(op: Any, *args: Any, **kwargs: Any) -> Any:
        """Records an op for the first time: its kernel is generated and registered, so that its next calls go there."""
        try:
            found = callable_of(op)
        except NotImplementedError as error:
            if not options.cpu_fallback:
                raise cpu_fallback.offered(op, error) from None
            return cpu_fallback.run(op, args, kwargs)
        if op._schema.name.startswith("aten::"):
            _implement(aten, op.name(), found)
        return found(*args, **kwargs)

    def record_named(name: str, *args: Any, **kwargs: Any) -> Any:
        """The same for an op by its name in aten: torch makes an object for each op that is looked up, for 10 us."""
        return record_first(_op(name), *args, **kwargs)

    fallback.fallback(record_first, "PrivateUse1")
    from lazytpu.frontend.sparse.register import register as register_sparse

    by_hand: dict[str, Callable[..., Any]] = {
        **metadata.KERNELS,
        **copies.KERNELS,
        **redirects.KERNELS,
        **data_dependent.KERNELS,
        **counting.KERNELS,
        **linear_algebra.KERNELS,
        **register_sparse(fallback, aten),
        **ctc.KERNELS,
        **strided.KERNELS,
        **streams.KERNELS,
    }
    for name, function in by_hand.items():
        aten.impl(name, function, "PrivateUse1")
    for name, function in creation.KERNELS.items():
        _implement(aten, name, function)  # from here on without the kernel of the first use
    for key in ("Conjugate", "Negative"):  # its schema does not say that it writes, so torch would hand it a copy
        aten.impl("_copy_from", torch.library.fallthrough_kernel, key)
    composites = {**attention.COMPOSITES, **ctc.COMPOSITES, **splitting.COMPOSITES}  # made of ops that autograd sees
    for name, function in composites.items():
        aten.impl(name, function, "AutogradPrivateUse1")
        aten.impl(name, function, "PrivateUse1")
    engine = ports.engine()
    explicit = engine.remembered("explicit", lambda: recorded_explicitly(engine.rules()))
    for name in explicit:
        if name not in by_hand and name not in creation.KERNELS:
            aten.impl(name, partial(record_named, name), "PrivateUse1")


# torch's own kernels end in _copy_from and empty_strided, which are ours.
_NATIVE = frozenset({"aten::copy_", "aten::new_empty_strided"})


def recorded_explicitly(rules: Collection[str]) -> list[str]:
    """Ops of aten, by name, whose composite kernels in torch would beat the fallback: x + x would become empty and
    add.out, abs an empty tensor and abs.out, full_like an empty tensor and fill_. `rules` are the ops that have a rule
    of their own.

    Ops that only change metadata (transpose_ and the like) stay with torch's native kernels.
    """
    found: list[str] = []
    for full in private.op_names():
        if not full.startswith("aten::"):
            continue
        name = full.removeprefix("aten::")
        op = _op(name)
        if op is None or torch.Tag.inplace_view in op.tags or _is_view(op) or full in _NATIVE:
            continue
        structured = private.has_kernel(full, "CompositeExplicitAutogradNonFunctional")
        composite = private.has_kernel(full, "CompositeExplicitAutograd")
        if structured or name.startswith(("_foreach_", "_amp_")) or (composite and _is_known(op, rules)):
            found.append(name)
    return found


def _op(name: str) -> Any:
    """The op of aten that torch calls `name`, such as "add.Tensor"; None when Python does not know it."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _is_known(op: Any, rules: Collection[str]) -> bool:
    """Whether the op, or the functional form of an op that writes, has a rule."""
    if str(op) in rules:
        return True
    other = ports.engine().functional(op)
    return other is not None and str(other) in rules


def _is_view(op: Any) -> bool:
    return any(a.alias_info is not None and not a.alias_info.is_write for a in op._schema.arguments)

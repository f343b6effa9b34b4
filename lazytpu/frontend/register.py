"""Registration in two stages: the name of the device at import, the kernels at its first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch

from lazytpu import interrupts
from lazytpu.collection import rest_at_exit
from lazytpu.frontend import activation
from lazytpu.frontend import torch_private as private
from lazytpu.frontend.library import replace_kernel

NAME = "tpu"

_registered = False


def register(start_engine: Callable[[], object]) -> bool:
    """Register "tpu" as a device of torch, once. Returns whether this call has registered it.

    This is cheap: `start_engine`, which creates the frontend's engine, and the kernels wait for the first use.

    If another package owns PrivateUse1, nothing is registered, and the first use raises RuntimeError naming it.
    """
    global _registered
    if _registered:
        return False
    _registered = True
    owner = private.backend_name()
    if owner != private.default_backend_name:
        activation.at_first_use(partial(_refuse, owner))
        return False
    activation.at_first_use(partial(_start, start_engine))
    private.rename_backend(NAME)  # before the modules below, which name their device
    from lazytpu.frontend.device.device_module import MODULE
    from lazytpu.frontend.device.hook_errors import Guard
    from lazytpu.frontend.patches import install as patches

    private.setup_backend(NAME, backend_module=MODULE, device_guard=Guard())
    _register_first_use()
    patches.install()
    return True


def _refuse(owner: str) -> NoReturn:
    raise RuntimeError(
        f"torch's PrivateUse1 device is already taken by {owner!r}, so lazytpu cannot register 'tpu'. "
        "Only one such backend fits into a process: uninstall the other one, or start Python with "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import lazytpu first."
    )


_first_use: list[torch.library.Library] = []  # kept alive: the registrations of a torch library end with it


def _register_first_use() -> None:
    """Register the kernels that create every tensor: they activate the device and call the real kernels."""
    library = torch.library.Library("aten", "IMPL")
    for name in ("empty.memory_format", "empty_strided"):

        def kernel(*args: Any, _name: str = name, **kwargs: Any) -> torch.Tensor:
            activation.activate()
            from lazytpu.frontend.recording.creation import KERNELS

            return KERNELS[_name](*args, **kwargs)

        replace_kernel(library, name, kernel)
    _first_use.append(library)


def _start(start_engine: Callable[[], object]) -> None:
    interrupts.install()
    rest_at_exit()  # first, since exit handlers run in reverse order
    start_engine()
    from lazytpu.frontend.libraries import without_dynamo, without_sympy
    from lazytpu.frontend.ops import flex_attention, transformer
    from lazytpu.frontend.patches import autocast, printing
    from lazytpu.frontend.recording import modes
    from lazytpu.frontend.register_ops import register_kernels

    register_kernels()
    autocast.install()
    printing.install()
    modes.install()
    flex_attention.install()
    transformer.install()
    without_dynamo.install()
    without_sympy.install()

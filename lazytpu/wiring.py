"""Connects the rooms: registers the device, and at its first use constructs the engine and gives it to the frontend.

Only this module, the package's `__init__` and the rooms above the engine import both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazytpu.frontend import activation
from lazytpu.frontend.register import register as register_device
from lazytpu.options import options
from lazytpu.versions import warn_unchecked

if TYPE_CHECKING:
    from lazytpu.engine.engine import Engine

ENGINE: Engine | None = None


def register() -> None:
    """Make "tpu" a device of torch. `import torch` calls this through the entry point, so it loads neither jax nor xDSL
    nor kernels."""
    if register_device(start):
        from lazytpu.dynamo import routing  # its import names the device

        routing.install()
        _register_backend()


def _register_backend() -> None:
    """Register the backend "tpu" with torch.distributed. The code for its groups is imported with the first group."""
    import torch.distributed as dist

    if dist.is_available():
        from lazytpu.frontend.libraries import gloo_hook

        def create(asked: Any, options: Any) -> Any:
            from lazytpu.distributed.backend import create as create_group

            return create_group(asked, start)

        dist.Backend.register_backend("tpu", create, extended_api=True, devices=["tpu", "cpu"])
        gloo_hook.install()


def start() -> Engine:
    """Return the engine; construct it at the first call. Raises ValueError for an invalid environment variable of
    lazytpu."""
    global ENGINE
    if ENGINE is None:
        from lazytpu.aten import symbolic_ints
        from lazytpu.engine.engine import Engine
        from lazytpu.frontend.lines import user_line
        from lazytpu.frontend.names import model_names, parameter_count, parameter_slots, slot_names
        from lazytpu.frontend.recording.growing import INFERENCE
        from lazytpu.frontend.storage.owners import owners
        from lazytpu.frontend.torch_private import python_dispatch, undisturbed
        from lazytpu.frontend.waits import unasked

        options.check()
        warn_unchecked()
        symbolic_ints.python_dispatch = python_dispatch
        frontend = slot_names, parameter_slots, parameter_count, model_names
        ENGINE = Engine(*frontend, owners, user_line, undisturbed, INFERENCE)
        ENGINE.inflight.waiting = unasked
        activation.install(ENGINE)
    return ENGINE

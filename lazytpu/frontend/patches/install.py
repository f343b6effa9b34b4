"""Installation of the patches of torch's Python modules that make "tpu" a device like any other there; each file
documents its patch.

All patches affect only tensors, storages and modules of the device. They are installed with the device's name, before
the first tensor, because `torch.load(..., map_location="tpu")` and `module.to("tpu")` may come first.
"""

from __future__ import annotations

from lazytpu.frontend import names, profiling
from lazytpu.frontend.device import accelerator, forks, generators, hook_errors, pinned, streams
from lazytpu.frontend.libraries import data_parallel, hooks
from lazytpu.frontend.patches import autocast, checkpointing, marking, module_move, momentum, nesting
from lazytpu.frontend.recording import step_ends
from lazytpu.frontend.storage import dlpack
from lazytpu.frontend.storage import methods as storage_patches


def install() -> None:
    """Install all patches except the casting policies of autocast, which activation adds."""
    autocast.prepare()
    devices = (accelerator, data_parallel, forks, generators, hook_errors, pinned, streams)
    tensors = (checkpointing, dlpack, marking, module_move, momentum, names, nesting, step_ends, storage_patches)
    for patch in (*devices, *tensors, hooks, profiling):
        patch.install()

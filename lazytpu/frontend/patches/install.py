"""What is changed in torch's Python modules so that "tpu" is a citizen there; each file says why and how.

All of it acts on tensors, storages and modules of the device alone. It is installed with the device's name, before the
first tensor: `torch.load(..., map_location="tpu")` and `module.to("tpu")` may come first. About 20 ms.
"""

from __future__ import annotations

from lazytpu.frontend.device import accelerator, forks, generators, hook_errors, pinned, streams
from lazytpu.frontend.libraries import (
    accelerate_hook,
    compile,
    data_parallel,
    lightning_hook,
    safetensors_hook,
    transformers_hook,
)
from lazytpu.frontend.patches import autocast, checkpointing, module_move
from lazytpu.frontend.recording import names, step_ends
from lazytpu.frontend.storage import dlpack
from lazytpu.frontend.storage import methods as storage_patches


def install() -> None:
    """Install everything but what `activate` adds: the casting policies of autocast."""
    autocast.prepare()
    devices = (accelerator, data_parallel, forks, generators, hook_errors, pinned, streams)
    tensors = (checkpointing, compile, dlpack, module_move, names, step_ends, storage_patches)
    # Each acts when its library is imported.
    libraries = (accelerate_hook, lightning_hook, safetensors_hook, transformers_hook)
    for part in (*devices, *tensors, *libraries):
        part.install()

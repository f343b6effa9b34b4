"""What is changed in torch's Python modules so that "tpu" is a citizen there; each file says why and how.

All of it acts on tensors, storages and modules of the device alone. It is installed with the device's name, before the
first tensor: `torch.load(..., map_location="tpu")` and `module.to("tpu")` may come first. About 20 ms.
"""

from __future__ import annotations

from lazytpu.frontend import (
    accelerator,
    autocast,
    dlpack,
    forks,
    generators,
    module_move,
    names,
    pinned,
    storage_patches,
    streams,
)


def install() -> None:
    """Install everything but what `activate` adds: the casting policies of autocast."""
    autocast.prepare()
    for part in (accelerator, dlpack, forks, generators, module_move, names, pinned, storage_patches, streams):
        part.install()

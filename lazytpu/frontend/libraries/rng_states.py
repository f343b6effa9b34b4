"""The state of the device's random numbers in checkpoints of libraries that store it only for devices they know by
name."""

from __future__ import annotations

import os

import torch

from lazytpu.frontend.device.generators import default_generator


def _path(folder: str | os.PathLike[str], process: int) -> str:
    return os.path.join(folder, f"random_states_tpu_{process}.pt")


def save(folder: str | os.PathLike[str], process: int) -> None:
    """Write the default generator's state into an existing folder, as 16 bytes in a file of torch.save."""
    torch.save(default_generator.get_state(), _path(folder, process))


def load(folder: str | os.PathLike[str], process: int) -> None:
    """Restore the state that `save` wrote; a folder without one, written elsewhere, has no effect."""
    path = _path(folder, process)
    if os.path.exists(path):
        default_generator.set_state(torch.load(path, weights_only=True))

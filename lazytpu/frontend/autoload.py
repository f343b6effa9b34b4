"""What `import torch` runs through the entry point: the name "tpu", and kernels that load the rest at first use."""

from __future__ import annotations


def autoload() -> None:
    """Register the device. Importing torch costs no jax, no xDSL and no kernels."""
    from lazytpu.frontend.register import register

    register()

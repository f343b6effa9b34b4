"""Hooks of other libraries. A hook's file is imported when its library is, so other programs do not pay for it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from lazytpu.frontend.libraries.on_import import Act, when_imported
from lazytpu.frontend.torch_private import REGISTER_FLOPS

_BATCHING = "transformers.generation.continuous_batching"

FILES = {
    "accelerate_hook": ("accelerate", "accelerate.commands.launch"),
    "continuous_batching_hook": (f"{_BATCHING}.cache", f"{_BATCHING}.initialization"),
    "flop_counter_hook": (REGISTER_FLOPS.module,),
    "lightning_hook": (
        *("lightning.pytorch.trainer.connectors.accelerator_connector", "lightning.fabric.connector"),
        *("lightning.pytorch.trainer.setup", "lightning.fabric.utilities.seed"),
        *("lightning.pytorch.strategies.ddp", "lightning.fabric.strategies.ddp"),
        # Lightning is published as one package and as two.
        *("pytorch_lightning.trainer.connectors.accelerator_connector", "lightning_fabric.connector"),
        *("pytorch_lightning.trainer.setup", "lightning_fabric.utilities.seed"),
        *("pytorch_lightning.strategies.ddp", "lightning_fabric.strategies.ddp"),
    ),
    "safetensors_hook": ("safetensors",),
    "transformers_hook": ("transformers.trainer",),
}
"""The file of each hook in this folder, and the modules that it changes: the keys of its `HOOKS`."""


def install() -> None:
    """Apply each hook right after its module is imported."""
    for file, names in FILES.items():
        for name in names:
            when_imported(name, _applying(file, name))


def _applying(file: str, name: str) -> Act:
    def apply(module: ModuleType) -> None:
        import_module(f"lazytpu.frontend.libraries.{file}").HOOKS[name](module)

    return apply

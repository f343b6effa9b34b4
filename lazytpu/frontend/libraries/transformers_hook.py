"""transformers.Trainer on the device: its checkpoints store the state of the device's random numbers as well.

The Trainer finds the device by itself (transformers 5) or by accelerate, see accelerate_hook.py. Installed when the
module of the Trainer is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from lazytpu.frontend.libraries import rng_states
from lazytpu.frontend.libraries.on_import import warn_unchecked

CHECKED = ("5.23",)
"""The releases of transformers, by major and minor number, against which this was checked."""


def _saving(save: Callable[..., None]) -> Callable[..., None]:
    @wraps(save)
    def _save_rng_state(self: Any, output_dir: str) -> None:
        save(self, output_dir)
        rng_states.save(output_dir, self.args.process_index)

    return _save_rng_state


def _loading(load: Callable[..., None]) -> Callable[..., None]:
    @wraps(load)
    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        load(self, checkpoint)
        if checkpoint is not None:
            rng_states.load(checkpoint, self.args.process_index)

    return _load_rng_state


def _hook(module: ModuleType) -> None:
    import transformers

    warn_unchecked("transformers", transformers.__version__, CHECKED)
    trainer: Any = module.Trainer
    trainer._save_rng_state = _saving(trainer._save_rng_state)
    trainer._load_rng_state = _loading(trainer._load_rng_state)


HOOKS = {"transformers.trainer": _hook}

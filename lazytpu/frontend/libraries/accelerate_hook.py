"""Hugging Face accelerate on the device: it identifies devices by name, and has no branch for unknown ones. Installed
when accelerate is imported.

- `Accelerator()` (and so `transformers.Trainer`) gets "tpu" where it would have fallen back to the CPU. Under torchrun
  it gets the process group "tpu" where each process would have trained alone. `Accelerator(cpu=True)` stays on the CPU.
- `accelerate launch` starts the requested number of processes.
- FSDP1's options accept the device.
- Its checkpoints store the state of the device's random numbers.
- `mixed_precision="fp16"` gets the device's gradient scaler.
- The device counts as memory for `device_map="auto"`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any

import torch

from lazytpu.frontend.libraries import rng_states
from lazytpu.frontend.libraries.on_import import warn_unchecked

CHECKED = ("1.15",)
"""The releases of accelerate, by major and minor number, against which this was checked."""


def _default_device(native: Callable[[Any], torch.device]) -> property:
    def default_device(self: Any) -> torch.device:
        chosen = native(self)
        return torch.device("tpu") if chosen.type == "cpu" else chosen

    return property(
        default_device, doc="The device of this process: accelerate's own choice, tpu where that is the CPU."
    )


def _prepare_backend(native: Callable[..., Any]) -> Callable[..., Any]:
    """Choose the process group "tpu" under a launcher.

    accelerate's kinds of jobs are specific to devices. Neuron's kind differs from CUDA's only in the device's module,
    and in how objects are sent, which it decides by the device.
    """

    @wraps(native)
    def _prepare_backend(self: Any, cpu: bool = False, *args: Any, **kwargs: Any) -> Any:
        from accelerate.utils import DistributedType

        backend, kind = native(self, cpu, *args, **kwargs)
        alone = int(os.environ.get("LOCAL_RANK", -1)) == -1
        if kind != DistributedType.NO or cpu or alone or backend not in (None, "tpu"):
            return backend, kind
        # Otherwise it would name the device of DistributedDataParallel by the rank; each process has one, tpu:0.
        os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
        return "tpu", DistributedType.MULTI_NEURON

    return _prepare_backend


def _set_device(native: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(native)
    def set_device(self: Any) -> None:
        if self.device is None and self.backend == "tpu":
            self.device = self.default_device
        else:
            native(self)

    return set_device


def _saving(save: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(save)
    def save_accelerator_state(*args: Any, **kwargs: Any) -> Any:
        result = save(*args, **kwargs)
        arguments = signature(save).bind(*args, **kwargs).arguments
        rng_states.save(arguments["output_dir"], arguments["process_index"])
        return result

    return save_accelerator_state


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(load)
    def load_accelerator_state(*args: Any, **kwargs: Any) -> Any:
        result = load(*args, **kwargs)
        arguments = signature(load).bind(*args, **kwargs).arguments
        rng_states.load(arguments["input_dir"], arguments["process_index"])
        return result

    return load_accelerator_state


def _with_fp16(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        call = signature(init).bind(self, *args, **kwargs)
        precision = call.arguments.get("mixed_precision") or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if str(precision).lower() != "fp16" or torch.cuda.is_available():
            init(self, *args, **kwargs)
            return
        call.arguments["mixed_precision"] = "no"  # accelerate rejects fp16 on unknown devices
        init(*call.args, **call.kwargs)
        self.state._mixed_precision = "fp16"
        if self.device.type == "tpu":
            self.native_amp = True
            options = {} if self.scaler_handler is None else self.scaler_handler.to_kwargs()
            self.scaler = torch.amp.GradScaler("tpu", **options)

    return __init__


def _max_memory(native: Callable[..., dict[Any, int]]) -> Callable[..., dict[Any, int]]:
    """Return memory sizes by device number, including the device's; accelerate warns about devices that it cannot
    count."""
    from accelerate.utils.modeling import convert_file_size_to_int

    @wraps(native)
    def get_max_memory(max_memory: Any = None) -> dict[Any, int]:
        if torch.cuda.is_available():
            return native(max_memory)
        if max_memory is None:
            free, _ = torch.get_device_module("tpu").mem_get_info()
            return {0: free, **native(None)}
        devices = {key: size for key, size in max_memory.items() if isinstance(key, int)}
        rest_of = native({key: size for key, size in max_memory.items() if key not in devices})
        sizes = {key: convert_file_size_to_int(v) if isinstance(v, str) else v for key, v in devices.items()}
        return {**sizes, **rest_of}

    return get_max_memory


def _with_device(native: Callable[[Any], None]) -> Callable[[Any], None]:
    """Patch the options of FSDP1, whose last part rejects unknown devices.

    That part chooses the device on which parameters are created that rank 0 sends to the other ranks
    (`sync_module_states`, a default of `accelerate launch`).
    """

    @wraps(native)
    def __post_init__(self: Any) -> None:
        try:
            native(self)
        except RuntimeError as error:
            if "no available devices found" not in str(error):
                raise
            self.param_init_fn = lambda module: module.to_empty(device=torch.device("tpu"), recurse=False)

    return __post_init__


def _hook_launch(launch: Any) -> None:
    """Let `accelerate launch --num_processes 2` start several processes; without a device that it knows, it starts
    one."""
    native = launch.simple_launcher

    def simple_launcher(args: Any) -> None:
        several = not args.cpu and (args.num_processes or 0) > 1
        (launch.multi_gpu_launcher if several else native)(args)

    launch.simple_launcher = simple_launcher


def _hook(accelerate: ModuleType) -> None:
    warn_unchecked("accelerate", accelerate.__version__, CHECKED)
    from accelerate import accelerator, checkpointing, state
    from accelerate.utils import FullyShardedDataParallelPlugin, modeling

    _replace(state.PartialState, "default_device", lambda native: _default_device(native.fget))
    _replace(state.PartialState, "_prepare_backend", _prepare_backend)
    _replace(state.PartialState, "set_device", _set_device)
    for module in (checkpointing, accelerator):
        _replace(module, "save_accelerator_state", _saving)
        _replace(module, "load_accelerator_state", _loading)
    _replace(accelerator.Accelerator, "__init__", _with_fp16)
    _replace(FullyShardedDataParallelPlugin, "__post_init__", _with_device)
    for module in (modeling, accelerate.utils):
        _replace(module, "get_max_memory", _max_memory)


def _replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


HOOKS = {"accelerate": _hook, "accelerate.commands.launch": _hook_launch}

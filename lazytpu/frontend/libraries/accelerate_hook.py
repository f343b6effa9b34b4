"""Hugging Face accelerate on the device. It knows devices by name, and has no branch for others.

`Accelerator()` (and with it `transformers.Trainer`) gets "tpu" where it would have fallen back to the CPU, and under
torchrun the process group "tpu" where it would have trained in each process by itself; `accelerate launch` starts as
many processes as it is asked for; FSDP1's options know the device; its checkpoints store the state of the
device's random numbers; `mixed_precision="fp16"` gets the device's gradient scaler; the device counts as memory for
`device_map="auto"`. Installed when accelerate is imported. `Accelerator(cpu=True)` stays on the CPU.
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
from lazytpu.frontend.libraries.on_import import warn_unchecked, when_imported

CHECKED = ("1.15",)
"""Releases of accelerate that this was checked against, by major and minor number."""


def _default_device(native: Callable[[Any], torch.device]) -> property:
    def default_device(self: Any) -> torch.device:
        chosen = native(self)
        return torch.device("tpu") if chosen.type == "cpu" else chosen

    return property(
        default_device, doc="The device of this process: accelerate's own choice, tpu where that is the CPU."
    )


def _prepare_backend(native: Callable[..., Any]) -> Callable[..., Any]:
    """Its kinds of jobs are those of devices that it knows. That of Neuron differs from one of CUDA in nothing but the
    device's module, and in how objects are sent, which it decides by the device."""

    @wraps(native)
    def _prepare_backend(self: Any, cpu: bool = False, *args: Any, **kwargs: Any) -> Any:
        from accelerate.utils import DistributedType

        backend, kind = native(self, cpu, *args, **kwargs)
        alone = int(os.environ.get("LOCAL_RANK", -1)) == -1
        if kind != DistributedType.NO or cpu or alone or backend not in (None, "tpu"):
            return backend, kind
        # Else it would name the device of DistributedDataParallel by the rank; each process has one, tpu:0.
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
        call.arguments["mixed_precision"] = "no"  # accelerate refuses fp16 on devices that it does not know
        init(*call.args, **call.kwargs)
        self.state._mixed_precision = "fp16"
        if self.device.type == "tpu":
            self.native_amp = True
            options = {} if self.scaler_handler is None else self.scaler_handler.to_kwargs()
            self.scaler = torch.amp.GradScaler("tpu", **options)

    return __init__


def _max_memory(native: Callable[..., dict[Any, int]]) -> Callable[..., dict[Any, int]]:
    """Devices are numbers there, and accelerate warns about those that it cannot count."""
    from accelerate.utils.modeling import convert_file_size_to_int

    @wraps(native)
    def get_max_memory(max_memory: Any = None) -> dict[Any, int]:
        if torch.cuda.is_available():
            return native(max_memory)
        if max_memory is None:
            free, _ = torch.get_device_module("tpu").mem_get_info()
            return {0: free, **native(None)}
        devices = {key: size for key, size in max_memory.items() if isinstance(key, int)}
        others = native({key: size for key, size in max_memory.items() if key not in devices})
        sizes = {key: convert_file_size_to_int(v) if isinstance(v, str) else v for key, v in devices.items()}
        return {**sizes, **others}

    return get_max_memory


def _with_device(native: Callable[[Any], None]) -> Callable[[Any], None]:
    """The options of FSDP1. Their last part says on which device parameters are made that rank 0 sends to the others
    (`sync_module_states`, a default of `accelerate launch`), and refuses devices that it does not know."""

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
    """`accelerate launch --num_processes 2` starts one process where it knows no device."""
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


def install() -> None:
    """Hook accelerate when it is imported."""
    when_imported("accelerate", _hook)
    when_imported("accelerate.commands.launch", _hook_launch)

"""Lightning on the device: `Trainer(accelerator="tpu")` and `Fabric(accelerator="tpu")`, and `"auto"` without a GPU.

In Lightning "tpu" means torch_xla's devices. When one of Lightning's packages is imported, the name is registered
again. It then means an Accelerator for tpu:0 with the ordinary single-device strategy. Under torchrun it means the
devices of all ranks of this machine, with Lightning's strategies for several devices: DistributedDataParallel by
default.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

import torch

from lazytpu.frontend.libraries.on_import import warn_unchecked

CHECKED = ("2.6",)
"""The releases of Lightning, by major and minor number, against which this was checked."""

# The modules that choose accelerators, with the names of the class that does it, its registry, and the attributes for a
# precision plugin and a precision. Lightning is published as one package and as two.
_CONNECTORS = {
    **dict.fromkeys(
        (
            "lightning.pytorch.trainer.connectors.accelerator_connector",
            "pytorch_lightning.trainer.connectors.accelerator_connector",
        ),
        ("_AcceleratorConnector", "AcceleratorRegistry", "_precision_plugin_flag", "_precision_flag"),
    ),
    **dict.fromkeys(
        ("lightning.fabric.connector", "lightning_fabric.connector"),
        ("_Connector", "ACCELERATOR_REGISTRY", "_precision_instance", "_precision_input"),
    ),
}
_LOGGING = ("lightning.pytorch.trainer.setup", "pytorch_lightning.trainer.setup")
_SEEDS = ("lightning.fabric.utilities.seed", "lightning_fabric.utilities.seed")


# The modules of the strategy of DistributedDataParallel, with the name of its method for `device_ids`.
_STRATEGIES = {
    **dict.fromkeys(
        ("lightning.pytorch.strategies.ddp", "pytorch_lightning.strategies.ddp"), "determine_ddp_device_ids"
    ),
    **dict.fromkeys(
        ("lightning.fabric.strategies.ddp", "lightning_fabric.strategies.ddp"), "_determine_ddp_device_ids"
    ),
}


def _ranks_here() -> int:
    """Return the number of ranks that a launcher has started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _accelerator(base: Any) -> Any:
    """Return the device's Accelerator, a subclass of Lightning's `base`."""

    class TpuAccelerator(base):
        """One device, tpu:0, or one for each rank of this machine, identified by its number."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != "tpu":
                raise ValueError(f"Device should be tpu, got {device} instead.")

        def teardown(self) -> None:
            """Do nothing: memory is freed with the last tensor."""

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return dict(torch.get_device_module("tpu").memory_stats(device))

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            """Return the device numbers. `devices` is the number of ranks on this machine, a list of all their numbers,
            -1 or "auto"; anything else raises ValueError."""
            if isinstance(devices, str) and devices.strip("- ").isdigit():
                devices = int(devices)
            numbers = list(range(_ranks_here()))
            if devices in (len(numbers), -1, "auto") or (isinstance(devices, list | tuple) and [*devices] == numbers):
                return numbers
            raise ValueError(
                f"devices={devices!r}: a process drives one device, tpu:0. Use devices={len(numbers)}, as many as "
                "there are processes on this machine, and start one process per device (torchrun) for more."
            )

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device("tpu", index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return _ranks_here()

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def name() -> str:
            return "tpu"

    return TpuAccelerator


def _hook_connector(module: Any) -> None:
    connector_name, registry_name, plugin_name, precision_name = _CONNECTORS[module.__name__]
    version = __import__(module.__name__.partition(".")[0]).__version__
    warn_unchecked("lightning", version, CHECKED)
    accelerator, connector = _accelerator(module.Accelerator), getattr(module, connector_name)
    registry = getattr(module, registry_name)
    registry.register("tpu", accelerator, description="tpu:0, by lazytpu", override=True)
    choose_auto, choose_strategy = connector._choose_auto_accelerator, connector._choose_strategy
    check_precision = connector._check_and_init_precision

    def auto() -> str:
        chosen = choose_auto()
        return "tpu" if chosen == "cpu" else chosen

    @wraps(choose_strategy)
    def strategy(self: Any) -> Any:
        if not isinstance(self.accelerator, accelerator):
            return choose_strategy(self)
        if len(self._parallel_devices) * self._num_nodes_flag > 1:
            return "ddp"
        return module.SingleDeviceStrategy(device=self._parallel_devices[0])

    @wraps(check_precision)
    def precision(self: Any) -> Any:
        name = getattr(self, precision_name)
        mixed = name in ("16-mixed", "bf16-mixed") and getattr(self, plugin_name, None) is None
        if mixed and isinstance(self.accelerator, accelerator):
            return module.MixedPrecision(name, "tpu")
        return check_precision(self)

    connector._choose_auto_accelerator = staticmethod(auto)
    connector._choose_strategy, connector._check_and_init_precision = strategy, precision


def _hook_strategy(module: Any) -> None:
    """Pass no `device_ids` to DistributedDataParallel: Lightning would create it on a CUDA stream for them."""
    strategy, name = module.DDPStrategy, _STRATEGIES[module.__name__]
    native = getattr(strategy, name)

    @wraps(native)
    def device_ids(self: Any) -> list[int] | None:
        return None if self.root_device.type == "tpu" else native(self)

    setattr(strategy, name, device_ids)


def _hook_logging(module: Any) -> None:
    log = module._log_device_info

    @wraps(log)
    def log_device_info(trainer: Any) -> None:
        if trainer.accelerator.name() == "tpu":
            module.rank_zero_info("TPU available: True, used: True (tpu:0, by lazytpu)")
        else:
            log(trainer)

    module._log_device_info = log_device_info


def _hook_seeds(module: Any) -> None:
    """Let `isolate_rng`, which surrounds validation before the first step, also restore the device's random numbers."""
    collect, restore = module._collect_rng_states, module._set_rng_states

    @wraps(collect)
    def collect_rng_states(include_cuda: bool = True) -> dict[str, Any]:
        return {**collect(include_cuda), "torch.tpu": torch.get_device_module("tpu").get_rng_state_all()}

    @wraps(restore)
    def set_rng_states(rng_state_dict: dict[str, Any]) -> None:
        restore(rng_state_dict)
        if "torch.tpu" in rng_state_dict:
            torch.get_device_module("tpu").set_rng_state_all(rng_state_dict["torch.tpu"])

    module._collect_rng_states, module._set_rng_states = collect_rng_states, set_rng_states


HOOKS = {
    **dict.fromkeys(_CONNECTORS, _hook_connector),
    **dict.fromkeys(_STRATEGIES, _hook_strategy),
    **dict.fromkeys(_LOGGING, _hook_logging),
    **dict.fromkeys(_SEEDS, _hook_seeds),
}

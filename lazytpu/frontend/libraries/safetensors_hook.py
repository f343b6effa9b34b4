"""safetensors on the device: `load_file(name, device="tpu")` and `safe_open(name, "pt", device="tpu")`.

The library is written in Rust and identifies devices by name. A file opened for the device is opened for the CPU, and
each tensor is moved when it is read. Installed when safetensors is imported.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from lazytpu.frontend.libraries.on_import import when_imported


class _Opened:
    """An open file whose tensors are moved to the device; all other attributes are the file's."""

    def __init__(self, file: Any, device: torch.device):
        self._file = file
        self._device = device

    def __enter__(self) -> _Opened:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._file.get_tensor(name).to(self._device)

    def get_tensors(self, *names: Any) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self._device) for name, tensor in self._file.get_tensors(*names).items()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._file.get_slice(name), self._device)


class _Slice:
    """A tensor of a file that is read in slices."""

    def __init__(self, tensor_slice: Any, device: torch.device):
        self._part = tensor_slice
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._part[index].to(self._device)


def _hook(safetensors: ModuleType) -> None:
    opened = safetensors.safe_open

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        """Open a file of tensors; see the documentation of safetensors."""
        where = torch.device(device) if isinstance(device, str | torch.device) and str(device) != "mlx" else None
        if where is None or where.type != "tpu":
            return opened(filename, framework, device=device, **options)
        return _Opened(opened(filename, framework, device="cpu", **options), where)

    _replace(safetensors, safe_open)
    when_imported("safetensors.torch", lambda module: _replace(module, safe_open))


def _replace(module: Any, safe_open: Any) -> None:
    module.safe_open = safe_open


HOOKS = {"safetensors": _hook}

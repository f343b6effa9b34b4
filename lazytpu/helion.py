"""Kernels of Helion on the device. `install()` offers Helion's Pallas backend the names that it imports of TorchTPU.

Helion compiles a function of tiles to a Pallas kernel, and hands it to TorchTPU, which it knows by the name of its
package. Here the kernel becomes an op of `lazytpu.pallas.custom_jax_kernel` instead. docs/helion.md has an example.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import lazytpu
from lazytpu.frontend.libraries.on_import import when_imported
from lazytpu.frontend.lines import add_library, is_library

__all__ = ["install"]

_PACKAGE = "torch_tpu"


def install() -> None:
    """Put a module `torch_tpu` with the names that Helion imports into `sys.modules`. A second call does nothing.

    Call it before Helion compiles its first kernel. Raises RuntimeError if TorchTPU is installed or imported.
    """
    present = sys.modules.get(_PACKAGE)
    if getattr(present, "__lazytpu__", False):
        return
    if present is not None or importlib.util.find_spec(_PACKAGE) is not None:
        raise RuntimeError(
            f"{_PACKAGE}, which lazytpu.helion stands in for, is installed: two backends cannot both be Helion's. "
            f"Uninstall it (pip uninstall {_PACKAGE}), or run Helion's kernels on it without lazytpu"
        )
    pallas = _module("_internal.pallas.pallas", JaxCallable=_JaxCallable, jax_placeholder=_placeholder)
    pallas.__dict__.update(_get_kernel_invocation_key=_never, get_default_pallas_mesh=_refuse_mesh)
    kernels = _module("_internal.pallas.tpu_torch_pallas", call_custom_kernel=_never)
    hardware = _module("_internal.utils.hardware", get_tpu_device_name=_chip)
    modules = [
        _module("", __version__="0+lazytpu", __lazytpu__=True),
        _module("_internal"),
        _module("_internal.pallas", pallas=pallas, tpu_torch_pallas=kernels),
        _module("_internal.utils", hardware=hardware),
    ]
    sys.modules.update({module.__name__: module for module in (*modules, pallas, kernels, hardware)})
    when_imported("helion", lambda module: add_library(str(module.__file__)))
    when_imported("helion.runtime.kernel", _wrap_kernels)


def _module(name: str, **names: Any) -> ModuleType:
    module = ModuleType(f"{_PACKAGE}.{name}".rstrip("."))
    module.__path__ = []  # a package without files
    module.__dict__.update(names)
    return module


def _wrap_kernels(module: Any) -> None:
    """Let Helion's autotuner time runs on the device: in strict mode each call runs its kernel, while a recorded call
    whose result is dropped never runs. And count the code that Helion generates as code of no user."""
    search, generate = module.BoundKernel.autotune, module.BoundKernel.compile_config

    @functools.wraps(search)
    def timed(*arguments: Any, **options: Any) -> Any:
        with lazytpu.mode("strict"):
            return search(*arguments, **options)

    @functools.wraps(generate)
    def generated(*arguments: Any, **options: Any) -> Any:
        function = generate(*arguments, **options)
        if not is_library(file := function.__code__.co_filename):
            add_library(file)
        return function

    module.BoundKernel.autotune, module.BoundKernel.compile_config = timed, generated


class _JaxCallable:
    """A kernel of Helion as an op. Helion's subclass reads `output_shapes`, which stays empty: it would call compiled
    kernels of TorchTPU directly."""

    def __init__(
        self,
        name: str,
        jit_fn: Any,
        trace_key: str,
        mesh: Any = None,
        input_partition_specs: Any = None,
        input_output_aliases: Mapping[int, int] | None = None,
    ) -> None:
        from lazytpu.pallas import custom_jax_kernel

        if mesh is not None:
            _refuse_mesh()
        self.name, self.trace_key, self.mesh = name, trace_key, mesh
        self.input_output_aliases = dict(input_output_aliases or {})
        self.output_shapes: dict[Any, Any] = {}
        function = getattr(jit_fn, "__wrapped__", jit_fn)
        named = custom_jax_kernel(name=name.strip("_"), input_output_aliases=self.input_output_aliases)
        self._kernel = named(lambda *arrays: function(*arrays))

    def __call__(self, *tensors: Any) -> Any:
        return self._kernel(*tensors)


def _placeholder(tensor: Any) -> Any:
    """Return a tensor's shape and dtype for JAX."""
    import jax

    from lazytpu.aten import dtypes
    from lazytpu.ir.types import numpy_dtype

    return jax.ShapeDtypeStruct(tuple(tensor.shape), numpy_dtype(dtypes.name(tensor.dtype)))


def _chip() -> str:
    """Return JAX's name of the chip; where there is no TPU, of the one that Pallas kernels are traced for."""
    from lazytpu.runtime.xla import client

    return client.chip()


def _refuse_mesh() -> Any:
    raise NotImplementedError(
        "Helion kernels of several devices (hl.distributed) are not supported on 'tpu': a rank's kernel sees its own "
        "tensors alone. Call torch.distributed's collectives between kernels"
    )


def _never(*arguments: Any, **options: Any) -> Any:
    raise NotImplementedError("TorchTPU's direct calls are for kernels with output_shapes, which lazytpu leaves empty")

"""Runs a module on the number of devices that it is for: the program of a child process, since XLA fixes the number of
CPU devices at its start.

    python tests/lowering/replicas.py FOLDER

FOLDER holds modules of the `lazytpu` dialect, NAME.mlir, and arguments, NAME.npz: `arg0`, ... with one row per device.
Writes the results to NAME.out.npz: `result0`, ..., with one row per device.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import numpy as np

DEVICES = 4


def main(folder: Path) -> None:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    # The package without its __init__, which would load torch.
    package = types.ModuleType("lazytpu")
    package.__path__ = [str(Path(__file__).resolve().parents[2] / "lazytpu")]
    sys.modules["lazytpu"] = package
    for path in sorted(folder.glob("*.mlir")):
        with np.load(path.with_suffix(".npz")) as arguments:
            rows = [arguments[f"arg{i}"] for i in range(len(arguments.files))]
        np.savez(path.with_suffix(".out.npz"), **{f"result{i}": result for i, result in enumerate(run(path, rows))})


def run(path: Path, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """Return the results of the module in a file, each with one row per device."""
    import jax
    from jax._src.lib import _jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from lazytpu.ir.text import parse_module
    from lazytpu.lowering import emit
    from lazytpu.runtime.xla import client
    from lazytpu.runtime.xla.module_options import replicas_of

    module = emit(parse_module(path.read_text()))
    count = replicas_of(module)
    devices = client.devices()[:count]
    options = client.compile_options(0, None, replicas=count)
    program = client.client().compile_and_load(module, _jax.DeviceList(tuple(devices)), options)
    rows = NamedSharding(Mesh(np.array(devices), "d"), PartitionSpec("d"))
    spread = [
        jax.make_array_from_single_device_arrays(
            (count * argument.shape[1], *argument.shape[2:]),
            rows,
            [jax.device_put(row, device) for row, device in zip(argument, devices, strict=True)],
        )
        for argument in arguments
    ]
    results = program.execute_sharded(spread).disassemble_into_single_device_arrays()
    return [np.stack([np.asarray(row) for row in result]) for result in results]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Compiling for TPUs that this machine does not have: libtpu needs the name of a topology, and no device.

Checked against libtpu 0.0.42.1. Use this module in separate processes (`ahead`, `tpu_child`, the sweep of
tools/conformance). A process that is aimed at a topology can run nothing, and the compiler may end it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jax.experimental import topologies

from lazytpu.runtime.errors import CompileError, PlatformError
from lazytpu.runtime.tpu.coordinates import coordinates
from lazytpu.runtime.tpu.topology import Topology
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.analysis import Memory, memory_of
from lazytpu.runtime.xla.client import XlaError, compile_options
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.module_options import options_of, replicas_of

# XLA's name of a chip -> (its generation, the number of dimensions of a topology).
_KINDS = {"TPU v5 lite": ("v5e", 2), "TPU v5": ("v5p", 3), "TPU v6 lite": ("v6e", 2), "TPU7x": ("tpu7x", 3)}


def aim_at(topology: str, chips_per_host: tuple[int, ...] = ()) -> None:
    """Make this process compile for a TPU topology such as "v6e:2x2" that this machine need not have. It can run
    nothing afterwards. Call it before any other function of `client`. `chips_per_host` has three dimensions; if empty,
    libtpu chooses the usual arrangement. Raises PlatformError when libtpu is not installed or does not know the
    topology."""
    client.AIM.extend(_devices(topology, chips_per_host))


def here() -> tuple[str, tuple[int, ...]] | None:
    """Return the topology of this process's TPUs, as `aim_at` takes it; None for an unknown kind. A single chip is
    "v6e:1x1", with (1, 1, 1) chips per host."""
    chips, first = client.client().devices(), client.devices()[0]
    generation, dimensions = _KINDS.get(str(first.device_kind), ("", 0))
    if not generation:
        return None
    mine = [chip for chip in chips if chip.process_index == first.process_index]
    return f"{generation}:{'x'.join(map(str, _extents(chips)[:dimensions]))}", _extents(mine)


def places_here() -> tuple[Topology, list[tuple[int, ...]]]:
    """Return the topology of this job's TPUs, of which each process drives one, and the place of each process: the
    values of `coordinates`. Raises PlatformError for an unknown kind of TPU."""
    chips = sorted(client.client().devices(), key=lambda chip: chip.process_index)
    generation, dimensions = _KINDS.get(str(chips[0].device_kind), ("", 0))
    if not generation:
        raise PlatformError(f"the torus of {chips[0].device_kind} is unknown")
    slices = [getattr(chip, "slice_index", None) or 0 for chip in chips]
    topology = Topology(generation, _extents(chips)[:dimensions], len(set(slices)))
    places: list[tuple[int, ...]] = []
    for chip, number in zip(chips, slices, strict=True):
        place = {**dict(zip("xyz", chip.coords, strict=True)), "slice": number, "core": chip.core_on_chip}
        places.append(tuple(place[name] for name in coordinates(topology, 0)))
    return topology, places


def _extents(chips: Sequence[Any]) -> tuple[int, ...]:
    return tuple(len(set(along)) for along in zip(*(chip.coords for chip in chips), strict=True))


@cache
def _devices(topology: str, chips_per_host: tuple[int, ...] = ()) -> list[Any]:
    """Return the devices of a topology, slice by slice and host by host: the ranks of torchrun have this order."""
    name, _, slices = topology.partition("*")
    chosen: dict[str, Any] = {"chips_per_host_bounds": list(chips_per_host)} if chips_per_host else {}
    if slices:
        chosen["num_slices"] = int(slices)
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **chosen).devices)
    except (XlaError, RuntimeError, ValueError) as error:
        raise PlatformError(
            f"cannot compile for {topology}: {error}. libtpu compiles for TPUs that are not there "
            "(pip install 'lazytpu[tpu]'); it names topologies as v6e:2x2, v5e:2x4 or v5p:2x2x1."
        ) from error


def check_compiles(module: ir.Module, topology: str, *, name: str) -> None:
    """Compile a module for one device of a topology, in a process that continues to run programs on its own platform. A
    crash of the compiler ends the process. Raises PlatformError as `aim_at`, and CompileError for the program `name`.
    """
    chips = _devices(topology)
    chosen = compile_options(0, options_of(module), among=chips)
    try:
        chips[0].client.compile(module, executable_devices=client.device_list(1, chips), compile_options=chosen)
    except (XlaError, ValueError) as error:
        raise CompileError(name, str(error)) from error


def compile_ahead(module: ir.Module, *, name: str, options: Mapping[str, bool | int | str] | None = None) -> bytes:
    """Compile a module for the topology of `aim_at`, and return the serialized executable, for `deserialize` on such a
    TPU. Raises CompileError for the program `name`."""
    return bytes(_compiled(module, name, options).serialize())


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The TPU compiler's own description of a compiled module: an HloProto of the scheduled module, with cycles in the
    ops' backend_config (`proto`), its memory, and the values in each allocation (`buffers`)."""

    proto: bytes
    memory: Memory
    buffers: str


def compile_scheduled(
    module: ir.Module,
    *,
    name: str,
    partitions: int,
    shardy: bool,
    options: Mapping[str, bool | int | str],
    dump: Path,
) -> Scheduled:
    """Compile a module for the topology of `aim_at`, on its first `partitions` devices, with the options of
    `compile_options`. `shardy` says that the module has shardings of that dialect. The compiler writes to the folder
    `dump`. Raises CompileError."""
    dumping: dict[str, bool | int | str] = {"xla_dump_to": str(dump)}
    dumping |= dict.fromkeys(("xla_dump_hlo_as_text", "xla_dump_hlo_as_proto"), True)
    executable = _compiled(module, name, {**options, **dumping}, partitions, shardy)
    # Not `executable.hlo_modules()`: libtpu's protos may be newer than jaxlib's reader of them, which then refuses
    # asynchronous updates, as of collectives on the SparseCore. The compiler's own dump always exists.
    proto, buffers = (_dumped(dump, which) for which in ("after_codegen.hlo.pb", "buffer-assignment.txt"))
    return Scheduled(proto, memory_of(executable), buffers.decode())


def _compiled(
    module: ir.Module,
    name: str,
    options: Mapping[str, bool | int | str] | None,
    partitions: int = 1,
    shardy: bool = True,
) -> client.Executable:
    devices, replicas = client.devices(), replicas_of(module)
    # Each replica runs the whole module, unpartitioned.
    partitions = partitions if replicas == 1 else 1
    count = partitions * replicas
    if count > len(devices):
        raise CompileError(name, f"it is for {count} devices, and the topology has {len(devices)}")
    chosen = compile_options(0, {**options_of(module), **(options or {})}, partitions, replicas)
    if not shardy:  # Shardy would drop the source lines of a program of several devices
        chosen.executable_build_options.use_shardy_partitioner = False
    try:
        return client.client().compile(module, executable_devices=client.device_list(count), compile_options=chosen)
    except (XlaError, ValueError) as error:
        raise CompileError(name, str(error)) from error


def _dumped(dump: Path, which: str) -> bytes:
    """Return the largest file of that kind; auxiliary programs of the compiler are smaller."""
    files = sorted(dump.rglob(f"*{which}"), key=lambda path: path.stat().st_size)
    return files[-1].read_bytes() if files else b""
